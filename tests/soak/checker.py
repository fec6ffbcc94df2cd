"""Checks whether a history is allowed, in the manner of Jepsen's checker for Chronos.

Each check is a function from the `History` to the violations in it. `python -m tests.soak` calls
them after a soak; `test_checker` feeds them histories with each kind of violation.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flask_cronjobs.core.outcome import FAILURES_KEPT
from flask_cronjobs.types import handed_to
from tests.features import parts
from tests.soak import timeline
from tests.soak.app import BUDGET, LEASE, ROLLED_BACK, STEPS
from tests.soak.history import RETENTION, Batch, Handover, History, Run, Said
from tests.soak.processes import ORPHAN_LIMIT
from tests.soak.timeline import Fault

TERMINAL = {"succeeded", "dead", "cancelled", "skipped"}
MINUTE = timedelta(minutes=1)
#: How long a process that lost its lease may take, while awake, to interrupt its handler, in
#: seconds.
UNWIND = 1.0
#: How long a handler that ignores its interruption may continue after its outcome is recorded,
#: until its process ends, in seconds.
INSTANT = 0.1
#: How much longer than its budget a tick may take, in seconds: for the last handler, for one lease
#: of waiting for a database in trouble, and for a busy machine, on which starting takes seconds.
MARGIN = 3 * LEASE + 12
#: How long after the last fault its consequences may show, in seconds.
CALM = 1.0

Check = Callable[[History], Iterator[str]]


def no_run_is_lost(history: History) -> Iterator[str]:
    """Every enqueued run exists and has ended, and so has every run of a slot."""
    rows = {run.id for run in history.runs}
    for run_id in sorted(history.enqueued - rows):
        yield f"run {run_id} was enqueued and committed, and is not there"
    for run in history.runs:
        if run.status not in TERMINAL:
            yield f"run {run.id} ({run.job_type}) is {run.status} still"


def batches_end_once(history: History) -> Iterator[str]:
    """Each batch has ended, has the counts of its runs, and was followed by one run."""
    followers = Counter(batch.then_run_id for batch in history.batches)
    for run in history.runs:
        if run.job_type == "joining" and followers[run.id] != 1:
            yield f"run {run.id} follows {followers[run.id]} batches"
    for batch in history.batches:
        if batch.finished_at is None:
            yield f"the batch {batch.key} has not ended"
        elif batch.then_run_id not in {run.id for run in history.runs}:
            yield f"the batch {batch.key} is not followed by a run"
        else:
            yield from _miscounted(history, batch, batch.finished_at)


def _miscounted(history: History, batch: Batch, ended: datetime) -> Iterator[str]:
    runs = [run for run in history.runs if run.batch_id == batch.id]
    ends = [run.status for run in runs]
    counts = len(ends), *(ends.count(end) for end in ("succeeded", "dead", "cancelled"))
    # The counts are those at the batch's end; a retry may have changed a run since.
    compared = 1 if any(run.finished_at and run.finished_at > ended for run in runs) else 4
    if batch.counts[:compared] != counts[:compared]:
        yield f"the batch {batch.key} says {batch.counts}, its runs {counts}"


def every_slot_matches_one_row(history: History) -> Iterator[str]:
    """Each minute that a definition owed is in exactly one row: its own, or that of a skip."""
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


def slots_are_recorded_when_all_is_calm(history: History) -> Iterator[str]:
    """What became due is recorded soon after the last fault, whatever else is in the table."""
    for definition_id in history.behind:
        yield f"the definition {definition_id} has slots that are due, and no tick records them"


def _slots_of(run: Run) -> list[datetime]:
    assert run.scheduled_for is not None
    note = run.result if run.status == "skipped" and isinstance(run.result, dict) else {}
    if "from" not in note:
        return [run.scheduled_for]
    first, last = (datetime.fromisoformat(note[end]) for end in ("from", "to"))
    return [first + MINUTE * n for n in range(round((last - first) / MINUTE) + 1)]


def effects_happen_once(history: History) -> Iterator[str]:
    """An effect happened once if its mark says so, and never twice, even if it is in doubt."""
    happened = Counter(line.key for line in history.said if line.what == "effect")
    for key, times in happened.items():
        if times > _most(history, key):
            yield f"the effect {key} happened {times} times"
        if key not in history.effects:
            yield f"the effect {key} happened, and has no mark"
    for key, state in history.effects.items():
        if state == "done" and not 1 <= happened[key] <= _most(history, key):
            yield f"the effect {key} is done, and happened {happened[key]} times"


def _most(history: History, key: str | None) -> int:
    """Return how often an effect may have happened: once for each mark that it has had."""
    pruned = history.pruned_effects[key or ""]
    return max(1, pruned + (key in history.unpruned_effects))


def nothing_is_pruned_early(history: History) -> Iterator[str]:
    """A run was pruned only after its retention, and a batch only after its ``then`` had ended."""
    ended = {run.id: run.finished_at for run in history.runs}
    for run in history.runs:
        if run.pruned_at is None:
            continue
        if run.status not in TERMINAL or run.finished_at is None:
            yield f"run {run.id} was pruned, and had not ended"
        elif run.pruned_at < run.finished_at + RETENTION:
            yield f"run {run.id} was pruned {run.pruned_at - run.finished_at} after its end"
    for batch in history.batches:
        if batch.pruned_at is None or batch.then_run_id not in ended:
            continue
        then_ended = ended[batch.then_run_id]
        if then_ended is None or then_ended > batch.pruned_at:
            yield f"the batch {batch.key} was pruned before run {batch.then_run_id} had ended"


def rows_of_rolled_back_transactions_are_gone(history: History) -> Iterator[str]:
    """What the app writes after a refused enqueue is gone after the app's rollback."""
    if rows := history.entries[ROLLED_BACK]:
        yield f"{len(rows)} rows that were rolled back are there"


def atomic_work_is_there_exactly_once(history: History) -> Iterator[str]:
    """Each atomic run that succeeded left one row, and others none; steps left theirs in order."""
    for run in history.runs:
        entries, succeeded = history.entries[run.id], run.status == "succeeded"
        expected = [""] if succeeded and run.job_type == "atomic" else []
        if run.job_type == "in_steps":
            expected = list(STEPS if succeeded else STEPS[: len(entries)])
        if entries != expected:
            yield f"run {run.id} ({run.status}) left {entries}, not {expected}"


@dataclass(frozen=True)
class Execution:
    """One claim of a run, its token, and what its handler did."""

    run: int
    token: str
    reclaimed: bool
    said: list[Said]


def no_executions_overlap(history: History) -> Iterator[str]:
    """An execution that was taken over does nothing more, once it can be interrupted.

    A run is claimed again only after the earlier claim ended or its lease expired. So of two
    executions, the one that was claimed first must be over when the other begins. A worker stops
    its handler, and begins no other, when its lease has expired by its own clock; but a process
    that was frozen learns this only when it wakes. So an execution whose lease expired may act
    beside its successor for `UNWIND` seconds, in which only the time counts that its process was
    awake.
    """
    for run_id, executions in _by_run(history).items():
        for line in _too_late(history, executions):
            yield (
                f"run {run_id}: the execution under {line.token} {line.what} at {line.at:.3f}, "
                "after the next had begun"
            )


def _too_late(history: History, executions: Sequence[Execution]) -> Iterator[Said]:
    """Yield the last act of each execution that acted after a later one had begun.

    :param executions: in the order of their claims.
    """
    next_began = float("inf")
    for execution in reversed(executions):
        if not execution.said:
            continue
        last = execution.said[-1]
        if execution.reclaimed:
            excused = _awake(history, last.pid, next_began, last.at) <= UNWIND
        else:
            excused = last.at - next_began <= INSTANT
        if not excused:
            yield last
        next_began = min(next_began, execution.said[0].at)


def _awake(history: History, pid: int, start: float, end: float) -> float:
    """Return for how many seconds the process was able to run between *start* and *end*."""
    frozen = [(fault.at, fault.until) for fault in history.faults if _freezes(fault, pid)]
    return max(0.0, end - start) - timeline.length_within(frozen, start, end)


def _freezes(fault: Fault, pid: int) -> bool:
    return fault.what == "freezes" and fault.pid == pid


def _executions(history: History) -> list[Execution]:
    """Return all executions, in the order of their claims."""
    expired = {
        (change.run_id, change.old_token) for change in history.handovers if change.reclaimed
    }
    lines: dict[tuple[int, str], list[Said]] = defaultdict(list)
    for line in sorted(history.said, key=lambda line: line.at):
        lines[line.run, line.token].append(line)
    claims = [
        (change.run_id, change.new_token)
        for change in history.handovers
        if change.new_token is not None
    ]
    return [Execution(*claim, claim in expired, lines[claim]) for claim in claims]


def _by_run(history: History) -> dict[int, list[Execution]]:
    by_run: dict[int, list[Execution]] = defaultdict(list)
    for execution in _executions(history):
        by_run[execution.run].append(execution)
    return by_run


def no_stale_write_is_accepted(history: History) -> Iterator[str]:
    """The success in each row came from the execution that held the run at that moment."""
    holders = {
        change.run_id: change.old_token
        for change in history.handovers
        if change.new_status == "succeeded"
    }
    ended = {(line.run, line.token) for line in history.said if line.what == "ended"}
    for run in history.runs:
        if run.status != "succeeded":
            continue
        token = run.result["token"] if isinstance(run.result, dict) else None
        if token != holders.get(run.id):
            yield f"run {run.id} has the result of {token}; it was held by {holders.get(run.id)}"
        if (run.id, token) not in ended:
            yield f"run {run.id} succeeded under {token}, whose execution never ended"


def changes_of_hands_are_lawful(history: History) -> Iterator[str]:
    """Tokens are fresh, attempts count claims, and runs are reclaimed after their lease expired."""
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
    if _begins(change):
        used_before = (change.run_id, change.new_token) in used
        return "it began under a used token" if used_before else None
    claimed = change.new_status == "running"
    released = change.old_status == "running" and change.new_attempts < change.old_attempts
    expected = change.old_attempts + (1 if claimed else -1 if released else 0)
    if change.old_status == "running" and claimed:
        return "claimed while it was held"
    if claimed and change.new_token is None:
        return "claimed without a token"
    if claimed and (change.run_id, change.new_token) in used:
        return f"the token {change.new_token} was used before"
    if not claimed and change.new_token is not None:
        return "held, and not running"
    if change.new_attempts != expected:
        return f"attempts went from {change.old_attempts} to {change.new_attempts}"
    if change.reclaimed and not change.expired:
        return "reclaimed before the lease ended"
    return None


def _begins(change: Handover) -> bool:
    """Return whether a run that was handed on began: its token became its own, or its worker's."""
    return (
        change.old_status == change.new_status == "running"
        and handed_to(change.old_token) is not None
        and change.new_token is not None
        and change.new_attempts == change.old_attempts
    )


def failures_match_attempts(history: History) -> Iterator[str]:
    """Each of the latest failed attempts has one failure row, and other attempts have none."""
    failed: dict[int, list[int]] = defaultdict(list)
    for failure in history.failures:
        failed[failure.run_id].append(failure.attempt)
    for run in history.runs:
        attempts = sorted(failed.get(run.id, []))
        expected = _failed_attempts(run)
        if attempts not in [list(range(1, most + 1))[-FAILURES_KEPT:] for most in expected]:
            yield f"run {run.id} ({run.status}, {run.attempts} attempts) has failures {attempts}"
        if run.attempts > run.max_attempts:
            yield f"run {run.id} has {run.attempts} attempts of {run.max_attempts}"


def _failed_attempts(run: Run) -> tuple[int, ...]:
    if run.status == "succeeded":
        return (run.attempts - 1,)
    if run.status == "cancelled":
        # It was cancelled while it waited, or during an attempt.
        return (run.attempts, max(run.attempts - 1, 0))
    return (run.attempts,)


def limits_hold(history: History) -> Iterator[str]:
    """No two runs of a ``concurrency=1`` key overlap, by the rule of `no_executions_overlap`."""
    by_key: dict[str, list[Execution]] = defaultdict(list)
    for execution in _executions(history):
        for line in execution.said:
            # Runs of a rate key only begin one after the other; they may overlap.
            if line.key and line.what == "begun" and not line.key.startswith("rate:"):
                by_key[line.key].append(execution)
    for key, executions in by_key.items():
        for line in _too_late(history, executions):
            yield f"the key {key}: run {line.run} {line.what} while the next run was at work"


def order_is_kept(history: History) -> Iterator[str]:
    """In a key with ``order="strict"``, a run begins only after those with lower ids have ended.

    Runs that an operator has retried are exempt: they come late.
    """
    latest: dict[str, int] = {}
    for line in history.said:
        if line.what != "begun" or not (line.key or "").startswith("order:"):
            continue
        if line.run in history.retried:
            continue
        key, before = line.key or "", latest.get(line.key or "", 0)
        if line.run < before:
            yield f"the key {key}: run {line.run} began after run {before}"
        latest[key] = max(line.run, before)


def ticks_end_as_commands_do(history: History) -> Iterator[str]:
    """A tick did its work, reported why it could not, or was ended by a signal; none crashed.

    A crash by the watchdog is excused: it prints the stacks of threads that may be running again,
    as in a process that was frozen, and this can crash CPython.
    """
    for code in sorted(history.codes.keys() - {0, 1, -signal.SIGKILL, -signal.SIGTERM}):
        if code != -signal.SIGSEGV or history.codes[code] > history.watchdogs:
            yield f"{history.codes[code]} ticks ended with {code}"


def ticks_end_in_their_time(history: History) -> Iterator[str]:
    """A tick ends soon after its budget, and a resident worker soon after it is told to stop.

    What a tick must wait for is not counted: its own freezes, a server or a connection that does
    not answer, SQLite's write lock, an output that nothing reads. A locked row is counted.
    """
    for tick in history.ticks:
        if tick.resident and tick.asked is None:
            continue
        start = tick.began if tick.asked is None else tick.asked
        allowed = MARGIN + (BUDGET if tick.asked is None else 0)
        delays = [
            (fault.at, fault.until)
            for fault in history.faults
            if fault.delays and fault.group in (None, tick.pid)
        ]
        delays += _locks_of_handlers(history, but=tick.pid)
        took = tick.ended - start - timeline.length_within(delays, start, tick.ended)
        if took > allowed:
            yield f"the tick {tick.pid} took {took:.1f} s from {start:.3f} on"


def ticks_succeed_when_all_is_calm(history: History) -> Iterator[str]:
    """A tick that begins after the last fault exits with 0, whatever the faults have left.

    A tick gives up if it could not write to the database for a lease, and at times the handlers
    themselves hold SQLite's write lock for so long.
    """
    types = {run.id: run.job_type for run in history.runs}
    killed = [
        line.at
        for line in history.said
        if line.what == "begun" and line.attempt == 1 and types.get(line.run) == "killing"
    ]
    for tick in history.ticks:
        calm = tick.began > history.calm_since + CALM
        excused = any(tick.began <= at <= tick.ended for at in killed)
        locks = _locks_of_handlers(history)
        excused |= timeline.length_within(locks, tick.began, tick.ended) >= LEASE
        # It was told to stop before it could handle the signal.
        excused |= tick.asked is not None and tick.code == -signal.SIGTERM
        if calm and tick.code and not excused:
            yield f"the tick {tick.pid} began at {tick.began:.3f} and ended with {tick.code}"


def _locks_of_handlers(history: History, but: int | None = None) -> list[tuple[float, float]]:
    """Return when handlers held SQLite's write lock, except handlers in the process *but*."""
    ended = {line.token: line.at for line in history.said if line.what == "ended"}
    return [
        (line.at, ended.get(line.token, line.at))
        for line in history.said
        if line.what == "locked" and line.pid != but
    ]


def orphans_end_soon(history: History) -> Iterator[str]:
    """A worker whose parent was killed soon ends."""
    for pid, seconds in history.orphans.items():
        if seconds > ORPHAN_LIMIT:
            yield f"the worker {pid} went on for {seconds:.1f} s after its parent was killed"


def nothing_is_left_behind(history: History) -> Iterator[str]:
    """After all hosts have ended, they have no process left, and no connection to the server."""
    yield from history.left


def odd_rows_are_reported(history: History) -> Iterator[str]:
    """An odd row is settled or reported, unless it waits for a time that never comes."""
    for odd in history.odd:
        if not (odd.handled or odd.reported or odd.waits):
            yield f"{odd.what} ({odd.name}) was neither settled nor reported"


CHECKS: tuple[Check, ...] = (
    no_run_is_lost,
    batches_end_once,
    every_slot_matches_one_row,
    slots_are_recorded_when_all_is_calm,
    effects_happen_once,
    nothing_is_pruned_early,
    rows_of_rolled_back_transactions_are_gone,
    atomic_work_is_there_exactly_once,
    no_executions_overlap,
    no_stale_write_is_accepted,
    changes_of_hands_are_lawful,
    failures_match_attempts,
    limits_hold,
    order_is_kept,
    *(check for part in parts("soak") for check in part.CHECKS),
    ticks_end_as_commands_do,
    ticks_end_in_their_time,
    ticks_succeed_when_all_is_calm,
    orphans_end_soon,
    nothing_is_left_behind,
    odd_rows_are_reported,
)


def violations(history: History) -> dict[str, list[str]]:
    """Return the violations that each check found; all lists should be empty."""
    return {check.__name__: list(check(history)) for check in CHECKS}
