"""An operator's actions on a batch: close it, and retry or cancel its runs."""

from __future__ import annotations

from ..core.app_state import State
from ..errors import NotFound, StateConflict
from ..features.batches.batch_rows import close
from ..features.batches.ending import end_batches
from ..log import DEFAULT_ACTOR
from .batch_views import BatchView, find_batch
from .operations import Operation, perform
from .run_actions import CANCEL, RETRY, BulkResult
from .run_filters import RunFilter


def close_batch(state: State, key: str, actor: str = DEFAULT_ACTOR) -> bool:
    """Close a batch that will not be filled any more, so that it can end.

    :returns: False if it was closed before.
    :raises NotFound: there is no such batch.
    :raises StateConflict: a transaction is filling it.
    """
    batch = _batch(state, key)
    if batch.closed_at is not None:
        return False
    with state.bookkeeping() as books:
        operation = Operation("closed", f"batch {key}", actor)
        closed = perform(
            books,
            operation,
            lambda inner: inner.transaction(
                lambda c: close(c, inner.dialect, batch.id, wait=False)
            ),
        )
        if not closed:
            raise StateConflict(
                f"The batch {key!r} is being filled by a transaction that has not ended. Wait "
                "until it has, then try again."
            )
        end_batches(books, [batch.id])
    return True


def cancel_batch(
    state: State, key: str, actor: str = DEFAULT_ACTOR, most: int | None = None
) -> BulkResult:
    """Cancel the runs of a batch that have not ended. An open batch is closed first.

    :raises NotFound: there is no such batch.
    :raises StateConflict: a transaction is filling it.
    """
    close_batch(state, key, actor)
    return CANCEL.many(state, RunFilter(batch=key), actor, most=most)


def retry_batch(
    state: State, key: str, actor: str = DEFAULT_ACTOR, most: int | None = None
) -> BulkResult:
    """Queue the dead runs of a batch again. A batch that has ended stays ended.

    :raises NotFound: there is no such batch.
    """
    _batch(state, key)
    return RETRY.many(state, RunFilter(batch=key, status="dead"), actor, most=most)


def _batch(state: State, key: str) -> BatchView:
    batch = find_batch(state, key)
    if batch is None:
        raise NotFound(
            f"There is no batch {key!r}; it may have been pruned. To list them: "
            "flask jobs admin batches --all"
        )
    return batch
