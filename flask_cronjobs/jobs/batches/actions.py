"""What an operator does to a batch: close it; retry or cancel its runs, also those inside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...errors import NotFound, StateConflict
from ...log import DEFAULT_ACTOR
from ...types import Status
from ..operations import Act, perform
from ..runs.actions import CANCEL, RETRY, Action, BulkResult
from ..runs.changes import Operator
from ..runs.filters import RunFilter
from ..state import State
from . import rows
from .ending import end_batches, family, telling
from .views import BatchView, find_batch


def close_batch(state: State, key: str, actor: str = DEFAULT_ACTOR) -> bool:
    """Close a batch that nobody will fill any more, so that it can end.

    :returns: False if it was closed before.
    :raises NotFound: there is no such batch.
    :raises StateConflict: a transaction is filling it.
    """
    found = _batch(state, key)
    if found.closed_at is not None:
        return False
    with state.bookkeeping() as books:
        act = Act("closed", f"batch {key}", actor)
        if not perform(books, act, lambda inner: rows.close(inner, found.id)):
            raise StateConflict(
                f"The batch {key!r} is being filled by a transaction that has not ended. Wait "
                "until it has, then try again."
            )
        end_batches(books, telling(state), [found.id])
    return True


def cancel_batch(
    state: State, key: str, actor: str = DEFAULT_ACTOR, most: int | None = None
) -> BulkResult:
    """Cancel the members of a batch that have not ended, also those of batches inside it.

    An open batch is closed first.

    :raises NotFound: there is no such batch.
    :raises StateConflict: a transaction is filling it.
    """
    close_batch(state, key, actor)
    return _with_inside(CANCEL, state, _batch(state, key), None, actor, most)


def retry_batch(
    state: State,
    key: str,
    actor: str = DEFAULT_ACTOR,
    again: bool = False,
    most: int | None = None,
) -> BulkResult:
    """Queue the dead runs of a batch again, also those of batches inside it.

    Each of these is open again until they have ended.

    :param again: enqueue its ``then`` once more at its end. Otherwise there is no second one.
    :raises NotFound: there is no such batch.
    """
    found = _batch(state, key)
    change = partial(Operator.retry, again=found.id if again else None)
    return _with_inside(replace(RETRY, change=change), state, found, "dead", actor, most)


def _with_inside(
    action: Action,
    state: State,
    batch: BatchView,
    status: Status | None,
    actor: str,
    most: int | None,
) -> BulkResult:
    """Change the runs of *batch* with that *status*, and those of batches inside it."""
    which = RunFilter(batch=batch.key, status=status)
    with state.bookkeeping() as books:
        keys = family(books, batch.id, dead=status == "dead").values()
    ids = [run for each in keys for run in action.ids(state, replace(which, batch=each))]
    return action.many(state, ids, actor, most=most, found_by=which)


def _batch(state: State, key: str) -> BatchView:
    found = find_batch(state, key)
    if found is None:
        raise NotFound(
            f"There is no batch {key!r}; it may have been pruned. To list them: "
            "flask jobs admin batches"
        )
    return found
