"""Close a batch, cancel the rest of it, and retry its dead runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..engine.batches import end_batches, telling
from ..errors import NotFound, StateConflict
from ..report.batches import BatchView, find_batch
from ..report.run_list import RunFilter
from ..state import State
from ..store import batches
from ..store.operations import Change, Operator
from .audit import DEFAULT_ACTOR, log_action
from .runs import CANCEL, RETRY, BulkResult, Progress


def close_batch(state: State, key: str, actor: str = DEFAULT_ACTOR) -> bool:
    """Close a batch that nobody will fill any more, so that it can end.

    :returns: False if it was closed before.
    :raises NotFound: there is no such batch.
    :raises StateConflict: a transaction is filling it.
    """
    found = _found(state, key)
    if found.closed_at is not None:
        return False
    with state.bookkeeping() as books:
        if not batches.close(books, found.id):
            raise StateConflict(
                f"The batch {key!r} is being filled by a transaction that has not ended. Wait "
                "until it has, then try again."
            )
        log_action("closed", f"batch {key}", actor)
        end_batches(books, telling(state), [found.id])
    return True


def cancel_batch(
    state: State,
    key: str,
    actor: str = DEFAULT_ACTOR,
    progress: Progress | None = None,
    most: int | None = None,
) -> BulkResult:
    """Cancel the members of a batch that have not ended, also those of batches inside it.

    An open batch is closed first.

    :raises NotFound: there is no such batch.
    :raises StateConflict: a transaction is filling it.
    """
    close_batch(state, key, actor)
    with state.bookkeeping() as books:
        keys = batches.keys_of_family(books, _found(state, key).id)
    ids = [run for each in keys for run in CANCEL.ids(state, RunFilter(batch=each))]
    return CANCEL.many(state, ids, actor, progress, most)


def retry_batch(
    state: State,
    key: str,
    actor: str = DEFAULT_ACTOR,
    again: bool = False,
    progress: Progress | None = None,
    most: int | None = None,
) -> BulkResult:
    """Queue the dead runs of a batch again: it is open again until they have ended.

    :param again: enqueue its ``then`` once more at its end. Otherwise there is no second one.
    :raises NotFound: there is no such batch.
    """
    found = _found(state, key)

    def change(operator: Operator, ids: Sequence[int], reason: str) -> list[Change]:
        return operator.retry(ids, again=found.id if again else None)

    retry = replace(RETRY, change=change)
    return retry.many(state, RunFilter(batch=key, status="dead"), actor, progress, most)


def _found(state: State, key: str) -> BatchView:
    found = find_batch(state, key)
    if found is None:
        raise NotFound(
            f"There is no batch {key!r}; it may have been pruned. To list them: "
            "flask jobs admin batches"
        )
    return found
