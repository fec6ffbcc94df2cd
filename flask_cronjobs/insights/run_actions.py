"""Retry, cancel and discard runs: the rules of each action, and how it changes one or many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from .. import signals
from ..core import gate
from ..core.app_state import State
from ..core.columns import assigned, ended, parameter, rate_gate
from ..core.tasks.options import is_id
from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..db.errors import LockWait, still_locked
from ..errors import CronJobsError, DatabaseTrouble, NotFound, StateConflict
from ..features.batches.batch_rows import hold_batches
from ..features.batches.ending import end_batches
from ..log import DEFAULT_ACTOR, log_action, log_run
from ..models.conditions import HANDED, HOLDS_KEY, sql_list
from ..text import one_line
from ..text.humanize import plural
from ..types import STATUSES, TERMINAL, Outcome, Status
from .operations import Operation, begin, count, end, note
from .run_filters import RunFilter, matching, words

#: Called with the number of runs done since the last call, for a progress bar.
Progress = Callable[[int], object]
#: The maximum number of runs that one statement changes.
CHANGED_AT_ONCE = 500
#: A filter finds at most this many runs.
MOST_MATCHING = 1_000_000
#: Seconds that PostgreSQL may take to find the runs of a filter.
_SEARCH_SECONDS = 600.0


class Change(NamedTuple):
    """A changed run with its new status, number of attempts, batch and label."""

    run_id: int
    task: str
    status: Status
    attempts: int = 0
    batch_id: int | None = None
    label: str | None = None


class BulkResult(NamedTuple):
    """The result of a bulk action, in numbers of runs.

    :ivar changed: the runs that it changed.
    :ivar left: the runs that it left unchanged: their status had changed, they or their batches
        were locked, or another run holds or needs their idempotency key.
    :ivar asked: the changed runs that are running and were asked to stop.
    :ivar beyond: the runs that it did not try, since it reached its limit.
    :ivar result: the words for the changed runs that were not running; see `Action.result`.
    """

    changed: int
    left: int
    asked: int
    beyond: int
    result: str

    def sentence(self, of: str = "") -> str:
        """Return the result in words: ``2 runs are cancelled. 1 running run is asked to stop.``

        :param of: the task or the batch that the runs belong to.
        """
        at_once = self.changed - self.asked
        whose = f" of {of}" if of else ""
        parts: list[str] = []
        if at_once or not self.asked:
            parts.append(f"{plural(at_once, 'run')}{whose} {_are(at_once)} {self.result}.")
        if self.asked:
            running = plural(self.asked, "running run")
            parts.append(f"{running}{whose} {_are(self.asked)} asked to stop.")
        if self.left:
            left = f"{self.left:,} {_are(self.left)} unchanged"
            parts.append(f"{left}; to see why, try one of them alone.")
        if self.beyond:
            more = f"{self.beyond:,} more {_are(self.beyond)} left"
            parts.append(f"{more}; repeat the action to change them.")
        return " ".join(parts)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """An operator's action on one run by its id, or on many by ids or a filter.

    :ivar doing: the verb that is logged before a bulk action.
    :ivar done: the verb that is logged for each run.
    :ivar result: the words for changed runs that are not running.
    :ivar allowed: the statuses of runs that can be changed.
    :ivar default: the statuses that a filter without a status finds.
    :ivar refusals: for every other status, why such a run cannot be changed, and what to do.
    :ivar values: returns the new values, as SQL by column. It gets the names of other columns to
        change, and its SQL may use the parameter ``reason``.
    :ivar revives: whether ended runs become live again. If so, their batches are locked meanwhile,
        and runs whose batch another transaction has locked are left unchanged. So is a run that has
        released its idempotency key, if another run holds the key or a later run of the same action
        needs it.
    """

    name: str
    doing: str
    done: str
    result: str
    allowed: Sequence[Status]
    default: Sequence[Status]
    refusals: Mapping[Status, str]
    values: Callable[[Dialect, Collection[str]], Mapping[str, str]]
    revives: bool = False

    def one(
        self,
        state: State,
        run_id: int,
        actor: str = DEFAULT_ACTOR,
        payload: Mapping[str, Any] | None = None,
    ) -> Change:
        """Change the run *run_id*.

        :param payload: the columns of a new payload.
        :raises NotFound: there is no such run.
        :raises StateConflict: its status does not allow it; the message says what to do.
        """
        if not is_id(run_id):
            raise no_run(run_id)
        done = self.done if payload is None else f"{self.done} with another payload"
        operation = Operation(done, f"run {run_id}", actor, run_id)
        with state.bookkeeping() as books:
            changes = change_runs(books, self, [run_id], operation, payload or {})
            if not changes:
                raise self.refusal(books, run_id)
            _announce(state, books, operation, changes)
        return changes[0]

    def many(
        self,
        state: State,
        which: RunFilter | Sequence[int],
        actor: str = DEFAULT_ACTOR,
        progress: Progress | None = None,
        most: int | None = None,
        found_by: RunFilter | None = None,
    ) -> BulkResult:
        """Change all runs of *which* in chunks; log the number, even if an error stops the action.

        :param progress: called after each chunk with the number of its runs.
        :param most: the maximum number of runs to change.
        :param found_by: the filter that has found *which*, if *which* is ids.
        :raises StateConflict: the filter's status does not allow it.
        """
        ids = self.ids(state, which) if isinstance(which, RunFilter) else which
        chosen_ids, by, action = ids[:most], found_by or which, self
        target = plural(len(chosen_ids), "run")
        if isinstance(by, RunFilter):
            target += words(by)
            # A run may have left the filter meanwhile: it began, or another user discarded it.
            action = _limited(self, tuple(self.statuses(by)))
        log_action(self.doing, target, actor)
        changed = asked = 0
        try:
            with state.bookkeeping() as books:
                operation = begin(books, Operation(self.done, target, actor), len(chosen_ids))
                wait = LockWait()
                for start in range(0, len(chosen_ids), CHANGED_AT_ONCE):
                    chunk = chosen_ids[start : start + CHANGED_AT_ONCE]
                    for changes in change_in_rounds(books, action, chunk, operation, wait):
                        _announce(state, books, operation, changes)
                        changed += len(changes)
                        asked += sum(change.status == "running" for change in changes)
                    if progress is not None:
                        progress(len(chunk))
                changed = end(books, operation)
        finally:
            log_action(self.done, plural(changed, "run"), actor)
        left, beyond = len(chosen_ids) - changed, len(ids) - len(chosen_ids)
        return BulkResult(changed, left, asked, beyond, self.result)

    def ids(
        self,
        state: State,
        which: RunFilter,
        limit: int = MOST_MATCHING,
        opened: Connection | None = None,
    ) -> list[int]:
        """Return the ids of the runs of *which* that can be changed, up to *limit*, newest first.

        :param opened: the connection to read with; default: a bookkeeping connection.
        :raises StateConflict: the filter's status does not allow it.
        """
        allowed = self.statuses(which)
        if not allowed:
            raise StateConflict(f"Each of these runs {self.refusals[_meant(self, which)[0]]}")
        allowed_filter = replace(which, statuses=allowed)
        if opened is not None:
            return matching(state, allowed_filter, limit, opened)
        with state.bookkeeping() as books:
            books.limit = _SEARCH_SECONDS
            return books.call(partial(matching, state, allowed_filter, limit))

    def statuses(self, which: RunFilter) -> list[Status]:
        """Return the statuses in which runs of *which* can be changed; none if none can."""
        return [status for status in _meant(self, which) if status in self.allowed]

    def refusal(self, books: Bookkeeping, run_id: int) -> CronJobsError:
        """Return the error that says why the run *run_id* cannot be changed."""
        rows = books.rows(text("SELECT status FROM job_runs WHERE id = :id"), {"id": run_id})
        if not rows:
            return no_run(run_id)
        if self.revives and (holder := _key_holder(books, run_id)) is not None:
            return StateConflict(
                f"Run {run_id} has released its idempotency key, and run {holder} holds it now. "
                "Wait until that run has ended, or cancel it. Then try again."
            )
        if rows[0].status in self.allowed:
            return still_locked(f"Run {run_id}")
        refused = self.refusals[rows[0].status].replace(" ID", f" {run_id}")
        return StateConflict(f"Run {run_id} {refused}")


@lru_cache
def _limited(action: Action, statuses: Sequence[Status]) -> Action:
    """Return *action* for *statuses* only: the same object each time, as a key of a cache."""
    return replace(action, allowed=statuses)


def _meant(action: Action, which: RunFilter) -> Sequence[Status]:
    if which.status is not None:
        return (which.status,)
    if which.stale:
        return ("running",)
    if which.waits is not None:
        return [status for status in action.default if status != "running"]
    return ("queued", "failed") if which.overdue else action.default


def no_run(run_id: object) -> NotFound:
    """Return the error for a run that does not exist."""
    return NotFound(
        f"There is no run {run_id!r}; it may have been pruned. To list runs: flask jobs admin list"
    )


def change_runs(
    books: Bookkeeping,
    action: Action,
    ids: Sequence[int],
    operation: Operation,
    other_values: Mapping[str, Any] | None = None,
) -> list[Change]:
    """Change runs as `change_in_rounds` does; return all changes."""
    rounds = change_in_rounds(books, action, ids, operation, LockWait(), other_values)
    return [change for changes in rounds for change in changes]


def change_in_rounds(
    books: Bookkeeping,
    action: Action,
    ids: Sequence[int],
    operation: Operation,
    wait: LockWait,
    other_values: Mapping[str, Any] | None = None,
) -> Iterator[list[Change]]:
    """Apply *action* to the runs of *ids* that allow it, and record *operation* with them.

    On PostgreSQL, it waits for rows that another transaction has locked, but not for long. It
    yields the changes of each transaction, so that their effects are not lost if a later one fails.

    :param operation: if its row exists, the number of changed runs is added to it. If not, *ids*
        must be one run, and the row is inserted with its change.
    :param other_values: values of other columns to change, named like the fields of a `NewRun`.
    """
    d = books.dialect
    update, find, batches = _statements(d, action, tuple(other_values or ()))
    values = {"reason": f"{operation.what} by {operation.actor}", **(other_values or {})}
    remaining: Sequence[int] = ids
    while True:
        work = partial(_change, d, update, batches, values, remaining, operation)
        try:
            changes = books.transaction(work, repeat=False)
        except DatabaseTrouble as trouble:
            if not trouble.unknown or operation.id is None:
                raise
            # If nothing was committed, the next round makes the changes.
            changes = _last_changes(books, operation, remaining)
        yield changes
        if cancelled := [change.run_id for change in changes if change.status == "cancelled"]:
            gate.open_behind(books, cancelled)
        changed_ids = {change.run_id for change in changes}
        unchanged = [run_id for run_id in remaining if run_id not in changed_ids]
        remaining = (
            [row.id for row in books.rows(find, {"ids": d.many(unchanged)})] if unchanged else ()
        )
        if not remaining or not wait.pause():
            return


def _change(
    d: Dialect,
    update: TextClause,
    batches: TextClause | None,
    values: Mapping[str, Any],
    ids: Sequence[int],
    operation: Operation,
    connection: Connection,
) -> list[Change]:
    """Change *ids* in *connection*'s transaction, and record their number in it.

    :param batches: selects the batches to hold meanwhile; None to hold none.
    """
    parameters: dict[str, Any] = {"ids": d.many(ids)}
    to_hold = () if batches is None else connection.scalars(batches, parameters).all()
    blocked = hold_batches(connection, d, to_hold) if to_hold else ()
    rows = connection.execute(update, {**values, **parameters, "blocked": d.many(blocked)}).all()
    if operation.id is not None:
        count(operation, connection, d, len(rows))
    elif rows:
        note(connection, d, operation, asked=1, done=1)
    return [Change(*tuple(row)) for row in rows]


#: The columns of a `Change`.
_OF_CHANGE = "id, job_type, status, attempts, batch_id, label"


def _last_changes(books: Bookkeeping, operation: Operation, ids: Sequence[int]) -> list[Change]:
    """Return the changes among the runs *ids* by the last committed transaction of *operation*.

    This is for PostgreSQL, where ``xmin`` is the transaction that wrote a row. SQLite loses no
    answer.
    """
    d = books.dialect
    last = "SELECT xmin FROM job_operations WHERE id = :operation"
    runs = f"SELECT {_OF_CHANGE} FROM job_runs WHERE {d.among('id')} AND xmin = ({last})"
    rows = books.rows(text(runs), {"ids": d.many(ids), "operation": operation.id})
    return [Change(*tuple(row)) for row in rows]


@lru_cache
def _statements(
    d: Dialect, action: Action, other_columns: Collection[str]
) -> tuple[TextClause, TextClause, TextClause | None]:
    """Return the statements of *action* for ``ids``.

    They are the UPDATE, the SELECT of the runs that it can change, and that of the batches to hold.
    """
    condition = f"status IN {sql_list(action.allowed)}"
    if action.revives:
        later = f"{d.among('other.id')} AND other.id > job_runs.id AND other.{condition}"
        later = f"{later} AND {_wants_key('other')}"
        taken = f"EXISTS ({_others_with_key(f'(({HOLDS_KEY}) OR ({later}))')})"
        condition = f"{condition} AND NOT ({_wants_key('job_runs')} AND {taken})"
    find = f"SELECT id FROM job_runs WHERE {d.among('id')} AND {condition}"
    # The ids are listed twice, so that PostgreSQL finds the rows by id first.
    update = f"""
        UPDATE job_runs SET {assigned(action.values(d, other_columns))}
        WHERE {d.among("id")} AND ({d.among("batch_id", "blocked")}) IS NOT TRUE
            AND {d.any_of("id", f"{find} {d.skip_locked}")}
        RETURNING {_OF_CHANGE}
    """
    runs = f"FROM job_runs WHERE {d.among('id')}"
    batches = text(f"SELECT DISTINCT batch_id {runs} AND batch_id IS NOT NULL")
    return text(update), text(find), batches if action.revives else None


def _announce(
    state: State, books: Bookkeeping, operation: Operation, changes: Sequence[Change]
) -> None:
    """Log the changes, send the signal, and end the batches whose last runs have ended."""
    what, actor = operation.what, operation.actor
    for change in changes:
        log_run(
            logging.INFO,
            # The worker logs the end of the run.
            f"{what} (its worker was asked to stop it)" if change.status == "running" else what,
            task=one_line(change.task),
            run_id=change.run_id,
            attempt=change.attempts,
            actor=actor,
        )
        if change.status == "cancelled":
            outcome = Outcome(
                change.run_id, "", "cancelled", change.attempts, change.task,
                error=f"{what} by {actor}", error_type="Cancelled", label=change.label,
            )  # fmt: skip
            signals.send(signals.run_cancelled, state.app, outcome=outcome)
    # Batches come last: if the database fails now, a later tick ends them. Nothing would send the
    # signals later.
    ended_in = {change.batch_id for change in changes if change.status in TERMINAL}
    if batches := {batch for batch in ended_in if batch is not None}:
        end_batches(books, batches)


def _retried(d: Dialect, other_columns: Collection[str]) -> dict[str, str]:
    """Return the values of a retried run: queued, due now, with at least one attempt left."""
    rate_key = parameter(d, "rate_key") if "rate_key" in other_columns else "rate_key"
    return {
        "status": "'queued'",
        "run_at": d.now,
        "finished_at": "NULL",
        "cancel_requested_at": "NULL",
        "max_attempts": "CASE WHEN max_attempts > attempts THEN max_attempts ELSE attempts + 1 END",
        "gate": rate_gate(rate_key),
        "updated_at": d.now,
        **{name: parameter(d, name) for name in other_columns},
    }


def _cancelled(d: Dialect, _: Collection[str]) -> dict[str, str]:
    """Return the values of a waiting run that is cancelled, or a running one that is asked to stop.

    A running run ends when its worker has interrupted it. A run in an executor's broker ends at
    once, since its token is invalid when its message arrives.
    """
    runs = f"status = 'running' AND ({HANDED}) IS NOT TRUE"
    requested = f"CASE WHEN {runs} THEN COALESCE(cancel_requested_at, {d.now})"
    return {
        **{
            name: f"CASE WHEN {runs} THEN {name} ELSE {value} END"
            for name, value in ended("'cancelled'", d.now, ":reason", "'Cancelled'").items()
        },
        "cancel_requested_at": f"{requested} ELSE cancel_requested_at END",
        "updated_at": d.now,
    }


def _discarded(d: Dialect, _: Collection[str]) -> dict[str, str]:
    """Return the values of a discarded run: cancelled, with its failed attempts kept.

    Its end is set to now, so that it can be retried for as long as other cancelled runs.
    """
    return ended("'cancelled'", d.now, ":reason", "'Discarded'")


RETRY = Action(
    name="retry",
    doing="retrying",
    done="retried",
    result="queued again",
    allowed=("dead", "cancelled", "failed"),
    default=("dead",),
    refusals={
        "queued": "is queued already: the next tick runs it once it is due.",
        "running": "is running. Cancel it first, or wait until it ends.",
        "succeeded": "succeeded. To do its work again: flask jobs admin again ID",
        "skipped": "is a slot that was skipped. "
        "To run its definition now: flask jobs admin run NAME",
    },
    values=_retried,
    revives=True,
)
_CANCELLABLE: tuple[Status, ...] = ("queued", "failed", "running")
CANCEL = Action(
    name="cancel",
    doing="cancelling",
    done="cancelled",
    result="cancelled",
    allowed=_CANCELLABLE,
    default=_CANCELLABLE,
    refusals={status: f"ended as {status}; there is nothing to cancel." for status in TERMINAL},
    values=_cancelled,
)
DISCARD = Action(
    name="discard",
    doing="discarding",
    done="discarded",
    result="discarded",
    allowed=("dead",),
    default=("dead",),
    refusals={
        status: "is not dead. To stop it: flask jobs admin cancel ID"
        if status in _CANCELLABLE
        else f"ended as {status}; only dead runs can be discarded."
        for status in STATUSES
        if status != "dead"
    },
    values=_discarded,
)


def _key_holder(books: Bookkeeping, run_id: int) -> int | None:
    """Return the run that prevents a retry of *run_id* by holding its key; None if none does."""
    holder = _others_with_key(f"({HOLDS_KEY})")
    query = f"SELECT ({holder}) AS id FROM job_runs WHERE id = :id AND {_wants_key('job_runs')}"
    rows = books.rows(text(query), {"id": run_id})
    return rows[0].id if rows else None


def _others_with_key(condition: str) -> str:
    """Return the SELECT of other runs with the key of a row of ``job_runs``."""
    return f"""
        SELECT other.id FROM job_runs other
        WHERE other.idempotency_key = job_runs.idempotency_key AND other.id <> job_runs.id
            AND {condition}
    """


def _wants_key(run: str) -> str:
    """Return the condition that *run* has released its key, and a retry would take it back."""
    is_unbegun = f"({run}.unique_while = 'waiting' AND {run}.started_at IS NULL)"
    has_released = f"{run}.unique_while = 'pending' OR {is_unbegun}"
    is_retryable = f"{run}.status IN {sql_list(RETRY.allowed)}"
    return f"({run}.finished_at IS NOT NULL AND {is_retryable} AND ({has_released}))"
