"""Retry, cancel and discard runs, one or many; and what is shown before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select

from .. import signals
from ..core.app_state import State
from ..core.tasks.options import is_id
from ..db.connection import Bookkeeping
from ..db.errors import still_locked
from ..errors import CronJobsError, NotFound, StateConflict
from ..features.batches.ending import end_batches
from ..log import DEFAULT_ACTOR, log_action, log_run
from ..text import one_line
from ..text.humanize import plural
from ..types import STATUSES, TERMINAL, Outcome, Status
from .operations import Act, Operation
from .reader import CAP, RUNS, Source, is_one_of, reading
from .run_changes import (
    CANCELLABLE,
    DISCARDABLE,
    RETRIABLE,
    Change,
    Operator,
    key_holder,
    stored_run,
)
from .run_filters import RunFilter, words
from .run_list import MOST_MATCHING, matching
from .run_rows import RunRow, rows_of

#: Called with how many more runs are done, for a progress bar.
Progress = Callable[[int], object]
#: How many runs one statement changes.
CHANGED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk action, in numbers of runs.

    :ivar changed: those it changed.
    :ivar left: those it did not change: their status had changed meanwhile, they are locked, or
        another run has their idempotency key.
    :ivar asked: those of the changed that are running, and were asked to stop.
    :ivar beyond: those it did not try, since it reached its limit.
    :ivar result: what became of the changed that were not running, as `Action.result`.
    """

    changed: int
    left: int
    asked: int
    beyond: int
    result: str

    def sentence(self, of: str = "") -> str:
        """Return it for people: ``2 runs are cancelled. 1 running run is asked to stop.``

        :param of: the task or the batch whose runs they are.
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
            left = f"{self.left:,} {_are(self.left)} left as before"
            parts.append(f"{left}; to see why, try one alone.")
        if self.beyond:
            more = f"{self.beyond:,} more {_are(self.beyond)} left"
            parts.append(f"{more}; do the same again for the next ones.")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Action:
    """A change that an operator makes to runs: one by its id, or many by ids or a filter.

    :ivar doing: what the log says before a bulk action.
    :ivar done: what the log says of each run.
    :ivar result: what people are told of each run that is not running.
    :ivar allowed: the statuses of runs that can be changed.
    :ivar default: the statuses that a filter without a status means.
    :ivar refusals: for every other status, why such a run cannot be changed, and what to do.
    :ivar change: the statement, with the ids and the reason to keep in the rows.
    """

    name: str
    doing: str
    done: str
    result: str
    allowed: Sequence[Status]
    default: Sequence[Status]
    refusals: Mapping[Status, str]
    change: Callable[[Operator, Sequence[int], str], list[Change]]

    def one(self, state: State, run_id: int, actor: str = DEFAULT_ACTOR) -> Change:
        """Change the run *run_id*.

        :raises NotFound: there is no such run.
        :raises StateConflict: its status does not allow it; the message says what to do.
        """
        if not is_id(run_id):
            raise no_run(run_id)
        with state.bookkeeping() as books:
            noted = Operation(Act(self.done, f"run {run_id}", actor, run_id))
            changes = self._change(state, Operator(books, noted), [run_id], actor)
            if not changes:
                raise self._refusal(books, run_id)
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
        """Change all runs of *which*, in chunks; log how many, even if an error stops it.

        :param progress: called after each chunk with the number of its runs.
        :param most: change at most this many.
        :param found_by: the filter that has found *which*, if that are ids.
        :raises StateConflict: the filter's status does not allow it.
        """
        ids = self.ids(state, which) if isinstance(which, RunFilter) else which
        some = ids[:most]
        target = _described(state, found_by or which, some)
        log_action(self.doing, target, actor)
        changed = asked = 0
        try:
            with state.bookkeeping() as books:
                noted = Operation.begin(books, Act(self.done, target, actor), len(some))
                operator = Operator(books, noted)
                for start in range(0, len(some), CHANGED_AT_ONCE):
                    chunk = some[start : start + CHANGED_AT_ONCE]
                    changes = self._change(state, operator, chunk, actor)
                    changed += len(changes)
                    asked += sum(change.status == "running" for change in changes)
                    if progress is not None:
                        progress(len(chunk))
                changed = noted.end(books)
        finally:
            log_action(self.done, plural(changed, "run"), actor)
        left, beyond = len(some) - changed, len(ids) - len(some)
        return BulkResult(changed, left, asked, beyond, self.result)

    def ids(self, state: State, which: RunFilter, limit: int = MOST_MATCHING) -> list[int]:
        """Return the ids of the runs of *which* that can be changed, up to *limit*.

        :raises StateConflict: the filter's status does not allow it.
        """
        allowed = self.statuses(which)
        if not allowed:
            raise StateConflict(f"Each of these runs {self.refusals[self._meant(which)[0]]}")
        return matching(state, replace(which, statuses=allowed), limit)

    def statuses(self, which: RunFilter) -> list[Status]:
        """Return the statuses of those runs of *which* that can be changed; none if none can."""
        return [status for status in self._meant(which) if status in self.allowed]

    def _meant(self, which: RunFilter) -> Sequence[Status]:
        if which.status is not None:
            return (which.status,)
        if which.stale:
            return ("running",)
        return ("queued", "failed") if which.overdue else self.default

    def _change(
        self, state: State, operator: Operator, ids: Sequence[int], actor: str
    ) -> list[Change]:
        """Change those of *ids* that can be changed, and end the batches whose last runs end.

        Log each, and send the signal for those that are cancelled now.
        """
        reason = f"{self.done} by {actor}"
        changes = self.change(operator, ids, reason)
        ended = {each.batch_id for each in changes if each.status in TERMINAL}
        if batches := {batch for batch in ended if batch is not None}:
            end_batches(operator.books, batches)
        for change in changes:
            log_run(
                logging.INFO,
                # The worker logs when the run has ended.
                f"{self.done} (asked of its worker)" if change.status == "running" else self.done,
                task=one_line(change.task),
                run_id=change.run_id,
                attempt=change.attempts,
                actor=actor,
            )
            if change.status == "cancelled":
                outcome = Outcome(
                    change.run_id, "", "cancelled", change.attempts, change.task,
                    error=reason, error_type="Cancelled", label=change.label,
                )  # fmt: skip
                signals.send(signals.run_cancelled, state.app, outcome=outcome)
        return changes

    def _refusal(self, books: Bookkeeping, run_id: int) -> CronJobsError:
        """Return why the run *run_id* cannot be changed."""
        run = stored_run(books, run_id)
        if run is None:
            return no_run(run_id)
        if self.name == "retry" and (holder := key_holder(books, run_id)) is not None:
            return StateConflict(
                f"Run {run_id} has given up its idempotency key, and run {holder} has it now. "
                "Wait until that run has ended, or cancel it. Then try again."
            )
        if run.status in self.allowed:
            return still_locked(f"Run {run_id}")
        refused = self.refusals[run.status].replace(" ID", f" {run_id}")
        return StateConflict(f"Run {run_id} {refused}")


RETRY = Action(
    name="retry",
    doing="retrying",
    done="retried",
    result="queued again",
    allowed=RETRIABLE,
    default=("dead",),
    refusals={
        "queued": "is queued already: the next tick runs it once it is due.",
        "running": "is running. Cancel it first, or wait until it ends.",
        "succeeded": "succeeded. To do its work again: flask jobs admin again ID",
        "skipped": "is a slot that was skipped. "
        "To run its definition now: flask jobs admin run NAME",
    },
    change=Operator.retry,
)


CANCEL = Action(
    name="cancel",
    doing="cancelling",
    done="cancelled",
    result="cancelled",
    allowed=CANCELLABLE,
    default=CANCELLABLE,
    refusals={status: f"ended as {status}; there is nothing to cancel." for status in TERMINAL},
    change=Operator.cancel,
)
DISCARD = Action(
    name="discard",
    doing="discarding",
    done="discarded",
    result="discarded",
    allowed=DISCARDABLE,
    default=DISCARDABLE,
    refusals={
        status: "is not dead. To stop it: flask jobs admin cancel"
        if status in CANCELLABLE
        else f"ended as {status}; only dead runs can be discarded."
        for status in STATUSES
        if status not in DISCARDABLE
    },
    change=Operator.discard,
)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def no_run(run_id: object) -> NotFound:
    """Return the error that there is no run *run_id*."""
    return NotFound(
        f"There is no run {run_id!r}; it may have been pruned. To list runs: flask jobs admin list"
    )


def _described(state: State, which: RunFilter | Sequence[int], ids: Sequence[int]) -> str:
    """Describe *ids*: how many they are, and which filter found them."""
    if not isinstance(which, RunFilter):
        return plural(len(ids), "run")
    return f"{plural(len(ids), 'run')}{words(which)}"


#: How many runs, and how many errors, are shown.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Preview:
    """Some runs that are to be changed.

    :ivar first: the first ten, in the order in which they were given.
    :ivar errors: of the first 1,000: the most frequent tasks and types of error, with numbers.
    :ivar looked_at: of how many runs those are.
    """

    first: tuple[RunRow, ...]
    errors: tuple[tuple[str, str | None, int], ...]
    looked_at: int

    def split(self) -> list[str]:
        """Return lines such as ``31 of send_mail, TimeoutError``."""
        return [
            f"{number:,} of {', '.join(filter(None, (task, error)))}"
            for task, error, number in self.errors
        ]

    def heading(self, total: int) -> str:
        """Say of how many runs `errors` are, if not of all *total*."""
        if self.looked_at >= total:
            return "By task and error"
        return f"By task and error, of the first {plural(self.looked_at, 'run')}"


def preview(source: Source, ids: Sequence[int]) -> Preview:
    """Return what the runs *ids* are."""
    some = ids[:CAP]
    with reading(source) as reader:
        kinds = RUNS.c.job_type, RUNS.c.error_type
        number = func.count().label("number")
        found = select(*kinds, number).where(is_one_of(reader, RUNS.c.id, some)).group_by(*kinds)
        rows = reader.rows(found.order_by(number.desc(), *kinds).limit(SHOWN))
        errors = tuple((row.job_type, row.error_type, row.number) for row in rows)
        return Preview(tuple(rows_of(reader, ids[:SHOWN])), errors, len(some))


def of_status(source: Source, ids: Sequence[int], statuses: Sequence[Status]) -> list[int]:
    """Return those of *ids* whose run has one of *statuses*, the newest first."""
    with reading(source) as reader:
        found = select(RUNS.c.id).where(is_one_of(reader, RUNS.c.id, ids))
        wanted = found.where(RUNS.c.status.in_(statuses)).order_by(RUNS.c.id.desc())
        return [row.id for row in reader.rows(wanted)]
