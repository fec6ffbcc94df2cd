"""The checker of the soak: it passes what may happen, and finds each thing that may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from tests.soak.app import BUDGET, LEASE, ROLLED_BACK
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
    """The process of an execution was frozen."""
    return Fault("freezes", at, until, 100 * run + attempt, delays=True)


def claim(run: int, attempt: int, old: str = "queued") -> Handover:
    return Handover(run, old, "running", None, f"{run}/{attempt}", attempt - 1, attempt)


def end(run: int, attempt: int, status: str, **more: object) -> Handover:
    token = f"{run}/{attempt}"
    made = Handover(run, "running", status, token, None, attempt, attempt)
    return replace(made, **more)  # type: ignore[arg-type]


def lawful() -> History:
    """One run of each fate: at once, reclaimed while frozen, an effect, atomic, slots, a limit."""
    skip = {"skipped": 2, "from": minutes(0).isoformat(), "to": minutes(1).isoformat()}
    lost = {"error_type": "WorkerLost", "expired": True}
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
            # In a batch, and after one inside it; each is followed by a run.
            Run(13, "joining", "cancelled", 0, 9),
            Run(14, "joining", "cancelled", 0, 9, batch_id=1),
            Run(15, "plain", "cancelled", 0, 9, batch_id=1),
        ],
        batches=[
            Batch(1, "outer", None, 13, True, (3, 1, 0, 2)),
            Batch(2, "inner", 1, 14, True, (0, 0, 0, 0)),
        ],
        failures=[
            Failure(2, 1, "2/1", "WorkerLost"),
            Failure(7, 1, "7/1", "RuntimeError"),
            Failure(10, 1, "10/1", "WorkerLost"),
            Failure(11, 1, "11/1", "WorkerLost"),
        ],
        effects={"e": "done"},
        entries=Counter({4: 1}),
        handovers=[
            *(claim(1, 1), end(1, 1, "succeeded")),
            *(claim(2, 1), end(2, 1, "failed", **lost)),
            *(claim(2, 2, "failed"), end(2, 2, "succeeded")),
            *(claim(3, 1), end(3, 1, "succeeded")),
            *(claim(4, 1), end(4, 1, "succeeded")),
            *(claim(6, 1), end(6, 1, "succeeded")),
            *(claim(7, 1), end(7, 1, "dead", error_type="RuntimeError")),
            *(claim(8, 1), end(8, 1, "succeeded")),
            *(claim(9, 1), end(9, 1, "succeeded")),
            *(claim(10, 1), end(10, 1, "failed", **lost)),
            *(claim(10, 2, "failed"), end(10, 2, "succeeded")),
            *(claim(11, 1), end(11, 1, "failed", **lost)),
            *(claim(11, 2, "failed"), end(11, 2, "succeeded")),
            *(claim(12, 1), end(12, 1, "succeeded")),
        ],
        said=[
            *said(1, 1, ("begun", 1), ("ended", 2)),
            # Frozen past its lease, then awake again beside the attempt that replaced it.
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
            # Frozen between its claim and its begin, past its lease.
            *said(11, 2, ("begun", 5), ("ended", 7)),
            *said(11, 1, ("begun", 6)),
            # A handler that keeps SQLite's write lock for more than a lease, so the tick 11 fails.
            *said(12, 1, ("begun", 114), ("locked", 114), ("ended", 114 + 1.5 * LEASE)),
        ],
        watched=[Watched(1, minutes(0), minutes(3))],
        enqueued={1, 2, 3, 4, 7, 8, 9, 10, 11, 12},
        ticks=[
            *(Tick(0, 0, 3, 1), Tick(1, 0, 3, 2), Tick(-9, 0, 1, 3)),
            # One that an output held up that nobody read, one that a restart did, one resident.
            *(Tick(0, 0, 30, 4), Tick(0, 20, 50, 5), Tick(0, 0, 90, 6, True, asked=88)),
            *(Tick(0, 101, 103, 7), Tick(-9, 101, 103, 8), Tick(-15, 101, 102, 9, True, 101)),
            *(Tick(-9, 0, 99, 10, True), Tick(1, 114, 118, 11)),
            # One that waited for that handler's lock beside its own work.
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


def run(history: History, run_id: int) -> Run:
    return next(run for run in history.runs if run.id == run_id)


def lose_a_run(history: History) -> None:
    history.runs.remove(run(history, 1))


def leave_a_run_behind(history: History) -> None:
    run(history, 1).status = "failed"


def lose_a_slot(history: History) -> None:
    history.runs.remove(run(history, 6))


def double_a_slot(history: History) -> None:
    history.runs.append(replace(run(history, 6), id=60, status="skipped", attempts=0))


def skip_a_slot_that_ran(history: History) -> None:
    run(history, 5).result["to"] = minutes(2).isoformat()


def leave_a_definition_behind(history: History) -> None:
    history.behind.append(1)


def double_an_effect(history: History) -> None:
    history.said += said(3, 1, ("effect", 2.5), key="e")


def lose_an_effect(history: History) -> None:
    history.said = [line for line in history.said if line.what != "effect"]


def repeat_an_effect_whose_mark_is_there(history: History) -> None:
    double_an_effect(history)
    history.pruned_effects["e"] = 1
    history.said += said(3, 1, ("effect", 2.7), key="e")
    history.unpruned_effects.add("e")


def prune(history: History, run_id: int, after: timedelta) -> None:
    ended = run(history, run_id)
    ended.finished_at, ended.pruned_at = SLOT, SLOT + after


def prune_a_run_early(history: History) -> None:
    prune(history, 1, RETENTION - timedelta(seconds=1))


def prune_a_run_that_waits(history: History) -> None:
    prune(history, 1, RETENTION)
    run(history, 1).status = "failed"


def prune_a_batch_early(history: History) -> None:
    run(history, 13).finished_at = SLOT
    history.batches[0].pruned_at = SLOT - timedelta(seconds=1)


def keep_what_was_rolled_back(history: History) -> None:
    history.entries[ROLLED_BACK] = 1


def double_atomic_work(history: History) -> None:
    history.entries[4] = 2


def keep_atomic_work_of_a_failure(history: History) -> None:
    history.entries[7] = 1


def overlap_without_a_lost_lease(history: History) -> None:
    history.handovers[3] = replace(history.handovers[3], error_type="RuntimeError")


def go_on_while_another_works(history: History) -> None:
    history.faults.remove(frozen(2, 1, 2, 8.9))


def go_on_for_long_after_a_freeze(history: History) -> None:
    history.said += said(2, 1, ("step", 10.5))


def begin_after_the_lease_without_a_freeze(history: History) -> None:
    history.said += said(11, 1, ("step", 6.8))
    history.faults.remove(frozen(11, 1, 1, 5.5))


def accept_a_stale_result(history: History) -> None:
    run(history, 2).result = {"token": "2/1"}


def succeed_without_an_execution(history: History) -> None:
    history.said = [line for line in history.said if (line.run, line.what) != (1, "ended")]


def reclaim_a_living_lease(history: History) -> None:
    history.handovers[3] = replace(history.handovers[3], expired=False)


def claim_what_is_held(history: History) -> None:
    history.handovers.insert(1, Handover(1, "running", "running", "1/1", "1/0", 1, 2))


def use_a_token_twice(history: History) -> None:
    history.handovers[4] = replace(history.handovers[4], new_token="2/1")


def begin_twice(history: History) -> None:
    """Two workers of an engine begin a run by the same token."""
    handed = "handed:celery:host:1:a"
    history.handovers[:0] = [
        Handover(90, "queued", "running", None, handed, 0, 1),
        Handover(90, "running", "running", handed, "90/1", 1, 1),
        Handover(90, "running", "running", handed, "90/1", 1, 1),
    ]


def bring_back_what_had_ended(history: History) -> None:
    history.handovers.append(Handover(1, "succeeded", "queued", None, None, 1, 1))


def forget_a_failure(history: History) -> None:
    history.failures.pop()


def exceed_the_attempts(history: History) -> None:
    run(history, 2).max_attempts = 1


def break_a_limit(history: History) -> None:
    history.said += said(8, 1, ("step", 3.5))


def break_the_order(history: History) -> None:
    history.said += [
        Said("begun", at, run, 1, f"{run}/1", "order:1", 1) for run, at in ((2, 6.0), (1, 7.0))
    ]


def crash_a_tick(history: History) -> None:
    history.ticks.append(Tick(70, 0, 1))


def crash_a_tick_without_a_watchdog(history: History) -> None:
    history.ticks.append(Tick(-11, 0, 1))


def wait_for_a_locked_row(history: History) -> None:
    history.ticks.append(Tick(0, 50, 80))


def wait_longer_than_a_handlers_lock(history: History) -> None:
    history.ticks.append(Tick(0, 113, 113 + SLOW + 1.6 * LEASE, 12))


def hold_the_lock_itself(history: History) -> None:
    history.said = [replace(said, pid=12) for said in history.said]


def stay_after_being_told_to_stop(history: History) -> None:
    history.ticks.append(Tick(0, 0, 91, 9, True, asked=91 - MARGIN - 1))


def fail_when_all_is_calm(history: History) -> None:
    history.ticks.append(Tick(1, 110, 111))


def fail_beside_a_short_lock(history: History) -> None:
    history.ticks.append(Tick(1, 114 + LEASE, 120))


def leave_an_orphan_at_work(history: History) -> None:
    history.orphans[8] = 11.0


def leave_a_process(history: History) -> None:
    history.left.append("the process 9 of the tick 8")


def pass_over_an_odd_row(history: History) -> None:
    history.odd[0].handled = False


def leave_a_batch_open(history: History) -> None:
    history.batches[0].finished = False


def follow_a_batch_twice(history: History) -> None:
    history.runs.append(Run(16, "joining", "cancelled", 0, 9))


def forget_to_follow_a_batch(history: History) -> None:
    history.batches[1].then_run_id = None


def miscount_a_batch(history: History) -> None:
    history.batches[0].counts = (3, 2, 0, 1)


CORRUPTIONS: list[tuple[Callable[[History], None], str]] = [
    (repeat_an_effect_whose_mark_is_there, "effects_happen_once"),
    (prune_a_run_early, "nothing_is_pruned_early"),
    (prune_a_run_that_waits, "nothing_is_pruned_early"),
    (prune_a_batch_early, "nothing_is_pruned_early"),
    (keep_what_was_rolled_back, "rows_of_rolled_back_transactions_are_gone"),
    (lose_a_run, "no_run_is_lost"),
    (leave_a_run_behind, "no_run_is_lost"),
    (leave_a_batch_open, "batches_end_once"),
    (follow_a_batch_twice, "batches_end_once"),
    (forget_to_follow_a_batch, "batches_end_once"),
    (miscount_a_batch, "batches_end_once"),
    (lose_a_slot, "every_slot_matches_one_row"),
    (double_a_slot, "every_slot_matches_one_row"),
    (skip_a_slot_that_ran, "every_slot_matches_one_row"),
    (leave_a_definition_behind, "slots_are_recorded_when_all_is_calm"),
    (double_an_effect, "effects_happen_once"),
    (lose_an_effect, "effects_happen_once"),
    (double_atomic_work, "atomic_work_is_there_exactly_once"),
    (keep_atomic_work_of_a_failure, "atomic_work_is_there_exactly_once"),
    (overlap_without_a_lost_lease, "no_executions_overlap"),
    (go_on_while_another_works, "no_executions_overlap"),
    (go_on_for_long_after_a_freeze, "no_executions_overlap"),
    (begin_after_the_lease_without_a_freeze, "no_executions_overlap"),
    (accept_a_stale_result, "no_stale_write_is_accepted"),
    (succeed_without_an_execution, "no_stale_write_is_accepted"),
    (reclaim_a_living_lease, "changes_of_hands_are_lawful"),
    (claim_what_is_held, "changes_of_hands_are_lawful"),
    (use_a_token_twice, "changes_of_hands_are_lawful"),
    (begin_twice, "changes_of_hands_are_lawful"),
    (bring_back_what_had_ended, "changes_of_hands_are_lawful"),
    (forget_a_failure, "failures_match_attempts"),
    (exceed_the_attempts, "failures_match_attempts"),
    (break_a_limit, "limits_hold"),
    (break_the_order, "order_is_kept"),
    (crash_a_tick, "ticks_end_as_commands_do"),
    (crash_a_tick_without_a_watchdog, "ticks_end_as_commands_do"),
    (wait_for_a_locked_row, "ticks_end_in_their_time"),
    (wait_longer_than_a_handlers_lock, "ticks_end_in_their_time"),
    (hold_the_lock_itself, "ticks_end_in_their_time"),
    (stay_after_being_told_to_stop, "ticks_end_in_their_time"),
    (fail_when_all_is_calm, "ticks_succeed_when_all_is_calm"),
    (fail_beside_a_short_lock, "ticks_succeed_when_all_is_calm"),
    (leave_an_orphan_at_work, "orphans_end_soon"),
    (leave_a_process, "nothing_is_left_behind"),
    (pass_over_an_odd_row, "odd_rows_are_reported"),
]


def test_a_handed_run_may_begin_once() -> None:
    history = lawful()
    begin_twice(history)
    del history.handovers[2]
    assert violations(history)["changes_of_hands_are_lawful"] == []


def test_a_lawful_history_violates_nothing() -> None:
    assert violations(lawful()) == {check.__name__: [] for check in CHECKS}


@pytest.mark.parametrize(
    ("corrupt", "check"), CORRUPTIONS, ids=[corrupt.__name__ for corrupt, _ in CORRUPTIONS]
)
def test_a_corrupted_history_violates(corrupt: Callable[[History], None], check: str) -> None:
    history = lawful()
    corrupt(history)
    assert violations(history)[check] != []


def test_pruning_in_time_is_lawful() -> None:
    history = lawful()
    prune(history, 1, RETENTION)
    prune(history, 13, RETENTION)
    history.batches[0].pruned_at = SLOT + RETENTION
    double_an_effect(history)
    history.pruned_effects["e"] = 1
    history.unpruned_effects.add("e")
    assert not any(violations(history).values())


def test_an_explanation_tells_all_of_the_run() -> None:
    history = lawful()
    double_an_effect(history)
    overlap_without_a_lost_lease(history)
    told = explain(history, violations(history))
    assert "no_executions_overlap: run 2" in told
    assert "Said(what='begun', at=5, run=2" in told
    assert "8.900: freezes, pid 201" in told


def test_errors_in_logs_are_told_apart_from_what_runs_printed() -> None:
    logs = (
        "failed  failing  run 7: RuntimeError: as asked\n  File 'x'\nKeyError: 'run 8'\nError: no"
    )
    assert errors(logs) == ["KeyError: 'run N'", "Error: no"]


def test_time_that_two_faults_share_counts_once() -> None:
    assert length_within([(0, 4), (2, 5), (8, 20)], 1, 10) == 6
    assert length_within([], 1, 10) == 0


def test_every_check_is_seen_to_fail() -> None:
    assert {check for _, check in CORRUPTIONS} == {check.__name__ for check in CHECKS}
