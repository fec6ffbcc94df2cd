"""The checker of the soak accepts lawful histories, and finds each kind of violation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.features import parts
from tests.soak.app import BUDGET, LEASE, ROLLED_BACK, STEPS
from tests.soak.checker import CHECKS, MARGIN, violations
from tests.soak.explain import errors, explain
from tests.soak.history import (
    RETENTION,
    Batch,
    Failure,
    Handover,
    History,
    Run,
    Said,
    Tick,
    Watched,
)
from tests.soak.odd_rows import Odd
from tests.soak.timeline import Fault, length_within

SLOT = datetime(2026, 1, 5, 7, 0, tzinfo=timezone.utc)
#: How long a tick may take, in seconds.
SLOW = BUDGET + MARGIN


def minutes(number: int) -> datetime:
    return SLOT + timedelta(minutes=number)


def said(run: int, attempt: int, *words: tuple[str, float], key: str | None = None) -> list[Said]:
    pid = 100 * run + attempt
    return [Said(what, at, run, attempt, f"{run}/{attempt}", key, pid) for what, at in words]


def frozen(run: int, attempt: int, at: float, until: float) -> Fault:
    """Return the fault that froze the process of an execution."""
    return Fault("freezes", at, until, 100 * run + attempt, delays=True)


def claim(run: int, attempt: int, old: str = "queued") -> Handover:
    return Handover(run, old, "running", None, f"{run}/{attempt}", attempt - 1, attempt)


def end(run: int, attempt: int, status: str, **more: object) -> Handover:
    token = f"{run}/{attempt}"
    handover = Handover(run, "running", status, token, None, attempt, attempt)
    return replace(handover, **more)  # type: ignore[arg-type]


def lawful() -> History:
    """Return a lawful history with runs of every fate."""
    skip = {"skipped": 2, "from": minutes(0).isoformat(), "to": minutes(1).isoformat()}
    values = {"error_type": "WorkerLost", "expired": True}
    return History(
        runs=[
            Run(1, "plain", "succeeded", 1, 9, result={"token": "1/1"}),
            Run(2, "plain", "succeeded", 2, 9, result={"token": "2/2"}),
            Run(3, "effect", "succeeded", 1, 9, result={"token": "3/1"}),
            Run(4, "atomic", "succeeded", 1, 9, result={"token": "4/1"}),
            Run(5, "scheduled", "skipped", 0, 9, 1, minutes(1), skip),
            Run(6, "scheduled", "succeeded", 1, 9, 1, minutes(2), {"token": "6/1"}),
            Run(7, "failing", "dead", 1, 1),
            Run(8, "one_at_a_time", "succeeded", 1, 9, result={"token": "8/1"}),
            Run(9, "one_at_a_time", "succeeded", 1, 9, result={"token": "9/1"}),
            Run(10, "killing", "succeeded", 2, 9, result={"token": "10/2"}),
            Run(11, "plain", "succeeded", 2, 9, result={"token": "11/2"}),
            Run(12, "own_row", "succeeded", 1, 9, result={"token": "12/1"}),
            Run(16, "in_steps", "cancelled", 0, 9),
            # These runs are in a batch, and after one.
            Run(13, "joining", "cancelled", 0, 9),
            Run(14, "plain", "cancelled", 0, 9, batch_id=1),
            Run(15, "plain", "cancelled", 0, 9, batch_id=1),
        ],
        batches=[
            Batch(1, "batch", 13, SLOT, (2, 0, 0, 2)),
        ],
        failures=[
            Failure(2, 1, "2/1", "WorkerLost"),
            Failure(7, 1, "7/1", "RuntimeError"),
            Failure(10, 1, "10/1", "WorkerLost"),
            Failure(11, 1, "11/1", "WorkerLost"),
        ],
        effects={"e": "done"},
        entries=defaultdict(list, {4: [""], 16: list(STEPS[:2])}),
        handovers=[
            *(claim(1, 1), end(1, 1, "succeeded")),
            *(claim(2, 1), end(2, 1, "failed", **values)),
            *(claim(2, 2, "failed"), end(2, 2, "succeeded")),
            *(claim(3, 1), end(3, 1, "succeeded")),
            *(claim(4, 1), end(4, 1, "succeeded")),
            *(claim(6, 1), end(6, 1, "succeeded")),
            *(claim(7, 1), end(7, 1, "dead", error_type="RuntimeError")),
            *(claim(8, 1), end(8, 1, "succeeded")),
            *(claim(9, 1), end(9, 1, "succeeded")),
            *(claim(10, 1), end(10, 1, "failed", **values)),
            *(claim(10, 2, "failed"), end(10, 2, "succeeded")),
            *(claim(11, 1), end(11, 1, "failed", **values)),
            *(claim(11, 2, "failed"), end(11, 2, "succeeded")),
            *(claim(12, 1), end(12, 1, "succeeded")),
        ],
        said=[
            *said(1, 1, ("begun", 1), ("ended", 2)),
            # This run was frozen past its lease, then continued beside the attempt that replaced
            # it.
            *said(2, 1, ("begun", 1), ("ended", 9)),
            *said(2, 2, ("begun", 5), ("ended", 6)),
            *said(3, 1, ("begun", 1), ("ended", 3)),
            *said(3, 1, ("effect", 2), key="e"),
            *said(4, 1, ("begun", 1), ("ended", 2)),
            *said(6, 1, ("begun", 1), ("ended", 2)),
            *said(7, 1, ("begun", 1)),
            *said(8, 1, ("begun", 1), key="k"),
            *said(8, 1, ("ended", 2)),
            *said(9, 1, ("begun", 3), key="k"),
            *said(9, 1, ("ended", 4)),
            # A run that kills its process, in the tick 8.
            *said(10, 1, ("begun", 102)),
            *said(10, 2, ("begun", 110), ("ended", 111)),
            # This run was frozen between its claim and its beginning, past its lease.
            *said(11, 2, ("begun", 5), ("ended", 7)),
            *said(11, 1, ("begun", 6)),
            # A handler keeps SQLite's write lock for more than a lease, so the tick 11 fails.
            *said(12, 1, ("begun", 114), ("locked", 114), ("ended", 114 + 1.5 * LEASE)),
        ],
        watched=[Watched(1, minutes(0), minutes(3))],
        enqueued={1, 2, 3, 4, 7, 8, 9, 10, 11, 12},
        ticks=[
            *(Tick(0, 0, 3, 1), Tick(1, 0, 3, 2), Tick(-9, 0, 1, 3)),
            # One tick had a blocked output, one met a restart, and one is a resident worker.
            *(Tick(0, 0, 30, 4), Tick(0, 20, 50, 5), Tick(0, 0, 90, 6, True, asked=88)),
            *(Tick(0, 101, 103, 7), Tick(-9, 101, 103, 8), Tick(-15, 101, 102, 9, True, 101)),
            *(Tick(-9, 0, 99, 10, True), Tick(1, 114, 118, 11)),
            # This tick waited for that handler's lock beside its own work.
            Tick(0, 113, 113 + SLOW + 1.4 * LEASE, 12),
        ],
        faults=[
            *(frozen(2, 1, 2, 8.9), frozen(11, 1, 1, 5.5)),
            Fault("outputs blocked", 0, 25, 4, 4, delays=True),
            Fault("restarts", 25, 49, delays=True),
            Fault("rows locked", 0, 90),
        ],
        calm_since=99,
        odd=[
            Odd("payload null", "job_runs", 50, "run 50", handled=True),
            Odd("priority a text", "job_runs", 51, "run 51", reported=True),
            Odd("run_at infinity", "job_runs", 52, "run 52", waits=True),
        ],
        orphans={7: 2.5},
    )


Change = Callable[[History], object]


def run(history: History, run_id: int) -> Run:
    return next(run for run in history.runs if run.id == run_id)


def row(run_id: int, **values: object) -> Change:
    """Return a corruption that changes values in the row of a run."""
    return lambda history: vars(run(history, run_id)).update(values)


def batch(at: int, **values: object) -> Change:
    return lambda history: vars(history.batches[at]).update(values)


def step(at: int, **values: object) -> Change:
    """Return a corruption that alters a change of hands."""
    return lambda history: vars(history.handovers[at]).update(values)


def more(name: str, *items: object) -> Change:
    """Return a corruption that adds to one of the lists."""
    return lambda history: getattr(history, name).extend(items)


def put(name: str, key: object, value: object) -> Change:
    return lambda history: getattr(history, name).update({key: value})


def gone(name: str, is_gone: Callable[[Any], bool]) -> Change:
    def remove(history: History) -> None:
        setattr(history, name, [row for row in getattr(history, name) if not is_gone(row)])

    return remove


def both(*changes: Change) -> Change:
    return lambda history: [change(history) for change in changes]


def pruned(run_id: int, after: timedelta = RETENTION, **values: object) -> Change:
    return row(run_id, finished_at=SLOT, pruned_at=SLOT + after, **values)


def again(at: float) -> Change:
    """Return a corruption that repeats an effect."""
    return more("said", *said(3, 1, ("effect", at), key="e"))


def in_order(run_id: int, at: float) -> Said:
    return Said("begun", at, run_id, 1, f"{run_id}/1", "order:1", 1)


SECOND = timedelta(seconds=1)
MARK_IS_PRUNED = both(
    again(2.5), put("pruned_effects", "e", 1), lambda h: h.unpruned_effects.add("e")
)
HANDED = "handed:celery:host:1:a"
#: A run is handed on, and a worker of an executor begins it.
BEGUN = (
    Handover(90, "queued", "running", None, HANDED, 0, 1),
    Handover(90, "running", "running", HANDED, "90/1", 1, 1),
)
UNFROZEN = both(
    more("said", *said(11, 1, ("step", 6.8))),
    gone("faults", lambda fault: fault == frozen(11, 1, 1, 5.5)),
)
#: The corruptions that each check finds.
CORRUPTIONS: dict[str, dict[str, Change]] = {
    "no_run_is_lost": {
        "a run is lost": gone("runs", lambda run: run.id == 1),
        "a run is left behind": row(1, status="failed"),
    },
    "batches_end_once": {
        "a batch stays open": batch(0, finished_at=None),
        "followed twice": more("runs", Run(16, "joining", "cancelled", 0, 9)),
        "not followed": batch(0, then_run_id=None),
        "miscounted": batch(0, counts=(2, 1, 0, 1)),
    },
    "every_slot_matches_one_row": {
        "a slot is lost": gone("runs", lambda run: run.id == 6),
        "a slot is doubled": more("runs", Run(60, "scheduled", "skipped", 0, 9, 1, minutes(2))),
        "a slot that ran is skipped": lambda h: run(h, 5).result.update(to=minutes(2).isoformat()),
    },
    "slots_are_recorded_when_all_is_calm": {"a definition is behind": more("behind", 1)},
    "effects_happen_once": {
        "twice": again(2.5),
        "never": gone("said", lambda line: line.what == "effect"),
        "again, though its mark is there": both(MARK_IS_PRUNED, again(2.7)),
    },
    "nothing_is_pruned_early": {
        "a run": pruned(1, RETENTION - SECOND),
        "a run that waits": pruned(1, status="failed"),
        "a batch": both(row(13, finished_at=SLOT), batch(0, pruned_at=SLOT - SECOND)),
    },
    "rows_of_rolled_back_transactions_are_gone": {"kept": put("entries", ROLLED_BACK, [""])},
    "atomic_work_is_there_exactly_once": {
        "twice": put("entries", 4, ["", ""]),
        "of a failure": put("entries", 7, [""]),
        "a step twice": put("entries", 16, [*STEPS, STEPS[-1]]),
        "a chunk before its turn": put("entries", 16, [*STEPS[:3], STEPS[4]]),
        "not all steps": both(row(16, status="succeeded"), put("entries", 16, list(STEPS[:-1]))),
    },
    "no_executions_overlap": {
        "no lease was lost": step(3, error_type="RuntimeError"),
        "not frozen": gone("faults", lambda fault: fault == frozen(2, 1, 2, 8.9)),
        "long after it was frozen": more("said", *said(2, 1, ("step", 10.5))),
        "begun after its lease, and not frozen": UNFROZEN,
    },
    "no_stale_write_is_accepted": {
        "a stale result": row(2, result={"token": "2/1"}),
        "no execution": gone("said", lambda line: (line.run, line.what) == (1, "ended")),
    },
    "changes_of_hands_are_lawful": {
        "a living lease is reclaimed": step(3, expired=False),
        "what is held is claimed": lambda h: h.handovers.insert(
            1, Handover(1, "running", "running", "1/1", "1/0", 1, 2)
        ),
        "a token is used twice": step(4, new_token="2/1"),
        "begun twice by one token": more("handovers", *BEGUN, BEGUN[1]),
        "what had ended comes back": more(
            "handovers", Handover(1, "succeeded", "queued", None, None, 1, 1)
        ),
    },
    "failures_match_attempts": {
        "a failure is forgotten": gone("failures", lambda failure: failure.run_id == 11),
        "too many attempts": row(2, max_attempts=1),
    },
    "limits_hold": {"two at once": more("said", *said(8, 1, ("step", 3.5)))},
    "order_is_kept": {"turned": more("said", in_order(2, 6.0), in_order(1, 7.0))},
    "ticks_end_as_commands_do": {
        "a crash": more("ticks", Tick(70, 0, 1)),
        "a crash without a watchdog": more("ticks", Tick(-11, 0, 1)),
    },
    "ticks_end_in_their_time": {
        "waits for a locked row": more("ticks", Tick(0, 50, 80)),
        "waits longer than a handler's lock": more(
            "ticks", Tick(0, 113, 113 + SLOW + 1.6 * LEASE, 12)
        ),
        "holds the lock itself": lambda h: [vars(line).update(pid=12) for line in h.said],
        "stays when told to stop": more("ticks", Tick(0, 0, 91, 9, True, asked=91 - MARGIN - 1)),
    },
    "ticks_succeed_when_all_is_calm": {
        "fails": more("ticks", Tick(1, 110, 111)),
        "fails beside a short lock": more("ticks", Tick(1, 114 + LEASE, 120)),
    },
    "orphans_end_soon": {"one goes on": put("orphans", 8, 11.0)},
    "nothing_is_left_behind": {"a process": more("left", "the process 9 of the tick 8")},
    "odd_rows_are_reported": {"one is not": lambda h: vars(h.odd[0]).update(handled=False)},
    **{
        name: {fault: more("said", *lines) for fault, lines in corrupt.items()}
        for part in parts("soak")
        for name, corrupt in part.CORRUPTIONS.items()
    },
}


LAWFUL: dict[str, Change] = {
    "as it is": lambda history: None,
    "two of a rate at once": both(
        lambda h: [vars(line).update(key="rate:1") for line in h.said if line.key == "k"],
        more("said", *said(8, 1, ("step", 3.5))),
    ),
    **{name: more("said", *lines) for part in parts("soak") for name, lines in part.LAWFUL.items()},
    "a handed run begins once": more("handovers", *BEGUN),
    "pruned in time": both(
        *(MARK_IS_PRUNED, pruned(1), pruned(13), batch(0, pruned_at=SLOT + RETENTION))
    ),
}


@pytest.mark.parametrize("what", LAWFUL)
def test_a_lawful_history_violates_nothing(what: str) -> None:
    history = lawful()
    LAWFUL[what](history)
    assert violations(history) == {check.__name__: [] for check in CHECKS}


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_a_corrupted_history_violates(check: str) -> None:
    for fault, corrupt in CORRUPTIONS[check].items():
        history = lawful()
        corrupt(history)
        assert violations(history)[check] != [], fault


def test_an_explanation_tells_all_of_the_run() -> None:
    history = lawful()
    CORRUPTIONS["no_executions_overlap"]["no lease was lost"](history)
    text = explain(history, violations(history))
    assert "no_executions_overlap: run 2" in text
    assert "Said(what='begun', at=5, run=2" in text
    assert "8.900: freezes, pid 201" in text


def test_errors_in_logs_are_distinguished_from_the_output_of_runs() -> None:
    logs = (
        "failed  failing  run 7: RuntimeError: as asked\n  File 'x'\nKeyError: 'run 8'\nError: no"
    )
    assert errors(logs) == ["KeyError: 'run N'", "Error: no"]


def test_time_that_two_faults_share_counts_once() -> None:
    assert length_within([(0, 4), (2, 5), (8, 20)], 1, 10) == 6
    assert length_within([], 1, 10) == 0
