"""Whether what happened may have happened, in the manner of Jepsen's checker for Chronos.

Each check is a function from the `History` to the violations that it found. `python -m
tests.soak` calls them after a soak; `test_checker` feeds them histories with each kind of fault.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from tests.soak.history import Handover, History, Run, Said

TERMINAL = {"succeeded", "dead", "cancelled", "skipped"}
MINUTE = timedelta(minutes=1)

Check = Callable[[History], Iterator[str]]


def no_run_is_lost(history: History) -> Iterator[str]:
    """Every enqueued run is there and ended, and so has every run of a slot."""
    rows = {run.id for run in history.runs}
    for run_id in sorted(history.enqueued - rows):
        yield f"run {run_id} was enqueued and committed, and is not there"
    for run in history.runs:
        if run.status not in TERMINAL:
            yield f"run {run.id} ({run.job_type}) is {run.status} still"


def every_slot_matches_one_row(history: History) -> Iterator[str]:
    """Each minute that a definition owed is in exactly one row: its own, or one skip's range."""
    for watched in history.watched:
        owed = Counter[datetime]()
        slot = watched.first
        while slot < watched.following:
            owed[slot] = 0
            slot += MINUTE
        for run in history.runs:
            if run.definition_id == watched.id:
                owed.update(_slots_of(run))
        for slot, times in sorted(owed.items()):
            if times != 1:
                yield f"definition {watched.id}: slot {slot} is in {times} rows"


def _slots_of(run: Run) -> list[datetime]:
    assert run.scheduled_for is not None
    note = run.result if run.status == "skipped" and isinstance(run.result, dict) else {}
    if "from" not in note:
        return [run.scheduled_for]
    first, last = (datetime.fromisoformat(note[end]) for end in ("from", "to"))
    return [first + MINUTE * n for n in range(round((last - first) / MINUTE) + 1)]


def effects_happen_once(history: History) -> Iterator[str]:
    """An effect happened once if its mark says so, and never twice, in doubt or not."""
    happened = Counter(said.key for said in history.said if said.what == "effect")
    for key, times in happened.items():
        if times > 1:
            yield f"the effect {key} happened {times} times"
        if key not in history.effects:
            yield f"the effect {key} happened, and has no mark"
    for key, state in history.effects.items():
        if state == "done" and happened[key] != 1:
            yield f"the effect {key} is done, and happened {happened[key]} times"


def atomic_work_is_there_exactly_once(history: History) -> Iterator[str]:
    """A row for each atomic run that succeeded, and for no other."""
    for run in history.runs:
        wanted = int(run.job_type == "atomic" and run.status == "succeeded")
        if history.entries[run.id] != wanted:
            yield f"run {run.id} ({run.status}) left {history.entries[run.id]} rows, not {wanted}"


def no_executions_overlap(history: History) -> Iterator[str]:
    """A run is executed again only after the earlier execution ended or its lease ran out."""
    lost = {(change.run_id, change.old_token) for change in history.handovers if change.reclaimed}
    for run_id, lines in _by_run(history).items():
        spans = _spans(lines)
        for (token, earlier), (_, later) in pairwise(spans):
            if later[0] < earlier[1] and (run_id, token) not in lost:
                yield f"run {run_id}: the execution under {token} overlapped the next"


def _by_run(history: History) -> dict[int, list[Said]]:
    lines: dict[int, list[Said]] = defaultdict(list)
    for said in history.said:
        lines[said.run].append(said)
    return lines


def _spans(lines: list[Said]) -> list[tuple[str, tuple[float, float]]]:
    """From when to when each token's execution showed itself, by when it began."""
    times: dict[str, list[float]] = defaultdict(list)
    for said in lines:
        times[said.token].append(said.at)
    spans = [(token, (min(at), max(at))) for token, at in times.items()]
    return sorted(spans, key=lambda span: span[1][0])


def no_stale_write_is_accepted(history: History) -> Iterator[str]:
    """The success in each row came from the execution that held the run at that moment."""
    holders = {
        change.run_id: change.old_token
        for change in history.handovers
        if change.new_status == "succeeded"
    }
    ended = {(said.run, said.token) for said in history.said if said.what == "ended"}
    for run in history.runs:
        if run.status != "succeeded":
            continue
        token = run.result["token"] if isinstance(run.result, dict) else None
        if token != holders.get(run.id):
            yield f"run {run.id} has the result of {token}; it was held by {holders.get(run.id)}"
        if (run.id, token) not in ended:
            yield f"run {run.id} succeeded under {token}, whose execution never ended"


def changes_of_hands_are_lawful(history: History) -> Iterator[str]:
    """Tokens are fresh; attempts count claims; leases are broken only after they ran out."""
    used: set[tuple[int, str]] = set()
    for change in history.handovers:
        step = f"run {change.run_id}: {change.old_status} to {change.new_status}"
        wrong = _unlawful(change, used)
        if change.old_status in TERMINAL and change.run_id not in history.retried:
            wrong = "what had ended began again"
        if wrong:
            yield f"{step}: {wrong}"
        if change.new_token is not None:
            used.add((change.run_id, change.new_token))


def _unlawful(change: Handover, used: set[tuple[int, str]]) -> str | None:
    claimed = change.new_status == "running"
    released = change.old_status == "running" and change.new_attempts < change.old_attempts
    wanted = change.old_attempts + (1 if claimed else -1 if released else 0)
    if change.old_status == "running" and claimed:
        return "claimed while it was held"
    if claimed and change.new_token is None:
        return "claimed without a token"
    if claimed and (change.run_id, change.new_token) in used:
        return f"the token {change.new_token} was used before"
    if not claimed and change.new_token is not None:
        return "held, and not running"
    if change.new_attempts != wanted:
        return f"attempts went from {change.old_attempts} to {change.new_attempts}"
    if change.reclaimed and not change.expired:
        return "reclaimed before the lease ran out"
    return None


def failures_match_attempts(history: History) -> Iterator[str]:
    """One failure row for each attempt that failed, and none for others."""
    failed: dict[int, list[int]] = defaultdict(list)
    for failure in history.failures:
        failed[failure.run_id].append(failure.attempt)
    for run in history.runs:
        attempts = sorted(failed.get(run.id, []))
        wanted = _failed_attempts(run)
        if attempts not in [list(range(1, most + 1)) for most in wanted]:
            yield f"run {run.id} ({run.status}, {run.attempts} attempts) has failures {attempts}"
        if run.attempts > run.max_attempts:
            yield f"run {run.id} has {run.attempts} attempts of {run.max_attempts}"


def _failed_attempts(run: Run) -> tuple[int, ...]:
    if run.status == "succeeded":
        return (run.attempts - 1,)
    if run.status == "cancelled":
        # While it waited, or in the midst of an attempt.
        return (run.attempts, max(run.attempts - 1, 0))
    return (run.attempts,)


def limits_hold(history: History) -> Iterator[str]:
    """No two of a ``concurrency=1`` key are executed at once within their leases."""
    lost = {(change.run_id, change.old_token) for change in history.handovers if change.reclaimed}
    spans: dict[str, list[tuple[float, float, int, str]]] = defaultdict(list)
    for run_id, lines in _by_run(history).items():
        key = next((said.key for said in lines if said.key and said.what == "begun"), None)
        if key is not None:
            spans[key] += [(*span, run_id, token) for token, span in _spans(lines)]
    for key, found in spans.items():
        for earlier, later in pairwise(sorted(found)):
            if later[0] < earlier[1] and earlier[2:] not in lost:
                yield f"the key {key}: run {later[2]} began while run {earlier[2]} was at work"


def ticks_end_as_commands_do(history: History) -> Iterator[str]:
    """A tick did its work, could not and said so, or was ended by a signal; none crashed.

    But by the watchdog's own hand: it prints the stacks of threads that may run again, as in a
    process that was frozen, and CPython can trip over that.
    """
    for code in sorted(history.codes.keys() - {0, 1, -signal.SIGKILL, -signal.SIGTERM}):
        if code != -signal.SIGSEGV or history.codes[code] > history.watchdogs:
            yield f"{history.codes[code]} ticks ended with {code}"


CHECKS: tuple[Check, ...] = (
    no_run_is_lost,
    every_slot_matches_one_row,
    effects_happen_once,
    atomic_work_is_there_exactly_once,
    no_executions_overlap,
    no_stale_write_is_accepted,
    changes_of_hands_are_lawful,
    failures_match_attempts,
    limits_hold,
    ticks_end_as_commands_do,
)


def violations(history: History) -> dict[str, list[str]]:
    """What each check found; an empty list is well."""
    return {check.__name__: list(check(history)) for check in CHECKS}
