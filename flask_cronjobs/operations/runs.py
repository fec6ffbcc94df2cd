"""Retry and cancel, one by one and many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from .. import report
from ..errors import CronJobsError, NotFound, StateConflict
from ..report import Count, RunFilter
from ..report.humanize import plural
from ..state import State
from ..store import Bookkeeping
from ..store.operations import Change, Operator
from ..types import Status
from .audit import SOMEBODY, announce_changes, log_action

#: Told how many more runs are done, for a progress bar.
Progress = Callable[[int], object]
#: How many runs one statement changes.
BATCH = 500

_NO_RETRY: Mapping[Status, str] = {
    "queued": "is queued already: the next tick takes it up once it is due.",
    "running": "is running. Cancel it first, or wait for its outcome.",
    "succeeded": "succeeded. To do its work once more, enqueue a new run of its task.",
    "skipped": "is a slot that was skipped. To run its definition now: flask jobs admin run NAME",
}
_NO_CANCEL: Mapping[Status, str] = {
    status: f"ended as {status}; there is nothing to cancel."
    for status in ("succeeded", "dead", "cancelled", "skipped")
}


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What a bulk action came to.

    :ivar changed: how many runs it changed.
    :ivar left: how many it left as they were, since their status had moved on.
    :ivar asked: how many of the changed ones run, and were asked to stop.
    :ivar beyond: how many it did not come to, since it was to change no more.
    """

    changed: int
    left: int
    asked: int = 0
    beyond: int = 0


def retry(state: State, run_id: int, actor: str = SOMEBODY) -> Change:
    """Queue a dead, cancelled or failed run again, due now, for one attempt more at least.

    :raises NotFound: there is no such run.
    :raises StateConflict: its status does not allow it; the message says what to do.
    """
    with Bookkeeping(state.engine) as books:
        operator = Operator(books)
        changes = operator.retry([run_id])
        if not changes:
            raise _refusal(run_id, operator.status_of(run_id), _NO_RETRY)
    announce_changes(state, "retried", changes, actor)
    return changes[0]


def cancel(state: State, run_id: int, actor: str = SOMEBODY) -> Change:
    """Cancel a run: at once if it waits; if it runs, its worker interrupts it within seconds.

    :returns: the change; its status is ``running`` while the worker is still to follow.
    :raises NotFound: there is no such run.
    :raises StateConflict: it has ended already.
    """
    with Bookkeeping(state.engine) as books:
        operator = Operator(books)
        why = _cancelled_by(actor)
        changes = operator.cancel([run_id], why)
        if not changes:
            raise _refusal(run_id, operator.status_of(run_id), _NO_CANCEL)
    announce_changes(state, "cancelled", changes, actor, why)
    return changes[0]


def retry_many(
    state: State,
    which: RunFilter | Sequence[int],
    actor: str = SOMEBODY,
    progress: Progress | None = None,
    most: int | None = None,
) -> BulkResult:
    """Retry all runs of *which*, in batches; a filter without a status means dead ones.

    :param most: retry no more than so many.
    """
    ids = retriable_ids(state, which) if isinstance(which, RunFilter) else which
    some = ids[:most]
    log_action("retrying", _described(which, some), actor)
    result = _in_batches(
        state,
        some,
        lambda operator, batch: announce_changes(state, "retried", operator.retry(batch), actor),
        progress,
        lambda changed: log_action("retried", plural(changed, "run"), actor),
    )
    return replace(result, beyond=len(ids) - len(some))


def cancel_many(
    state: State,
    which: RunFilter | Sequence[int],
    actor: str = SOMEBODY,
    progress: Progress | None = None,
    most: int | None = None,
) -> BulkResult:
    """Cancel all runs of *which*, in batches; a filter without a status means those not ended.

    :param most: cancel no more than so many.
    """
    ids = cancellable_ids(state, which) if isinstance(which, RunFilter) else which
    some, why = ids[:most], _cancelled_by(actor)

    def change(operator: Operator, batch: Sequence[int]) -> Sequence[Change]:
        return announce_changes(state, "cancelled", operator.cancel(batch, why), actor, why)

    log_action("cancelling", _described(which, some), actor)
    result = _in_batches(
        state,
        some,
        change,
        progress,
        lambda changed: log_action("cancelled", plural(changed, "run"), actor),
    )
    return replace(result, beyond=len(ids) - len(some))


def retriable_ids(state: State, which: RunFilter) -> list[int]:
    """The ids that `retry_many` would take; without a status, those of dead runs.

    :raises StateConflict: the filter's status is one that cannot be retried.
    """
    return _ids(state, which, ("dead",), _NO_RETRY)


def cancellable_ids(state: State, which: RunFilter) -> list[int]:
    """The ids that `cancel_many` would take; without a status, those of runs not ended.

    :raises StateConflict: the filter's status is one that cannot be cancelled.
    """
    return _ids(state, which, ("queued", "failed", "running"), _NO_CANCEL)


def count(state: State, which: RunFilter) -> Count:
    """How many runs *which* describes, up to a cap."""
    return report.count(state, which)


def no_run(run_id: int) -> NotFound:
    """The error that there is no such run."""
    return NotFound(
        f"There is no run {run_id}; it may have been pruned. To see which there are: "
        "flask jobs admin list"
    )


def _refusal(run_id: int, status: Status | None, why: Mapping[Status, str]) -> CronJobsError:
    if status is None:
        return no_run(run_id)
    changed = f"is {status}: that changed in the same moment. Try again."
    return StateConflict(f"Run {run_id} {why.get(status, changed)}")


def _cancelled_by(actor: str) -> str:
    return f"cancelled by {actor}"


def _ids(
    state: State, which: RunFilter, default: Sequence[Status], refused: Mapping[Status, str]
) -> list[int]:
    statuses = _statuses(which, default)
    allowed = [status for status in statuses if status not in refused]
    if not allowed:
        raise StateConflict(f"Each run like that {refused[statuses[0]]}")
    with report.reading(state) as reader:
        found = (report.matching_ids(reader, replace(which, status=status)) for status in allowed)
        return [run_id for ids in found for run_id in ids]


def _statuses(which: RunFilter, default: Sequence[Status]) -> Sequence[Status]:
    if which.status is not None:
        return (which.status,)
    if which.stale:
        return ("running",)
    return ("queued", "failed") if which.overdue else default


def _described(which: RunFilter | Sequence[int], ids: Sequence[int]) -> str:
    """*ids* in a few words: how many, and by which filter they were found."""
    if not isinstance(which, RunFilter):
        return plural(len(ids), "run")
    given = ((field.name, getattr(which, field.name)) for field in fields(which))
    by = ", ".join(f"{name}={value!r}" for name, value in given if value not in (None, False))
    return f"{plural(len(ids), 'run')} of {by or 'all'}"


def _in_batches(
    state: State,
    ids: Sequence[int],
    change: Callable[[Operator, Sequence[int]], Sequence[Change]],
    progress: Progress | None,
    ended: Callable[[int], None],
) -> BulkResult:
    """Change *ids*; *ended* is told how many were, also if something stops it midway."""
    changed = asked = 0
    try:
        with Bookkeeping(state.engine) as books:
            operator = Operator(books)
            for start in range(0, len(ids), BATCH):
                some = ids[start : start + BATCH]
                changes = change(operator, some)
                changed += len(changes)
                asked += sum(each.status == "running" for each in changes)
                if progress is not None:
                    progress(len(some))
    finally:
        ended(changed)
    return BulkResult(changed, len(ids) - changed, asked)
