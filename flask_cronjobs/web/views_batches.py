"""The pages of batches, and their actions."""

from __future__ import annotations

from flask import abort, request
from flask.typing import ResponseReturnValue

from .. import operations
from ..report.batches import BatchView, find_batch, list_batches
from ..report.reader import reading
from ..state import state_of
from .actions import MOST, action, actor
from .format import Tone
from .params import clamped, needed, row_id
from .render import reader_page
from .views import REFRESH

#: Seconds after which the script refreshes the page of a batch that has not finished.
_REFRESH_BATCH = 5


def batches() -> ResponseReturnValue:
    """Render batches that have not finished; with ``?all=1`` also those that have."""
    everything = request.args.get("all") == "1"
    before = row_id(request.args, "before")
    limit = clamped(request.args, "limit", 25)
    found = list_batches(state_of(), unfinished=not everything, before=before, limit=limit)
    return reader_page(
        "batches",
        found=found,
        everything=everything,
        before=before,
        now=found.now,
        refresh=0 if before else REFRESH,
        data={"batches": found.rows, "before": found.next},
    )


def batch() -> ResponseReturnValue:
    """Render one batch: how far it is, its dead runs, and what an operator can do."""
    key = needed(request.args, "key")
    with reading(state_of()) as reader:
        found = find_batch(reader, key)
        now = reader.now
    if found is None:
        abort(404, "There is no batch of that key. It may have been pruned.")
    return reader_page(
        "batch",
        tone_of(found),
        batch=found,
        now=now,
        refresh=0 if found.finished_at else _REFRESH_BATCH,
        data=found,
    )


def tone_of(found: BatchView) -> Tone:
    """Return the color of a batch."""
    if found.counts.dead:
        return "bad" if found.state == "finished" else "warn"
    return "good" if found.state == "finished" else "busy"


@action("batches", "batch", "key")
def batch_retry() -> str:
    """Queue the dead runs of a batch again."""
    key, again = needed(request.form, "key"), request.form.get("again") == "1"
    result = operations.retry_batch(state_of(), key, actor(), again, most=MOST)
    return result.sentence(key)


@action("batches", "batch", "key")
def batch_cancel() -> str:
    """Cancel all of a batch that has not ended."""
    key = needed(request.form, "key")
    result = operations.cancel_batch(state_of(), key, actor(), most=MOST)
    return result.sentence(key)


@action("batches", "batch", "key")
def batch_close() -> str:
    """Close a batch that nobody will fill any more."""
    key = needed(request.form, "key")
    if operations.close_batch(state_of(), key, actor()):
        return f"{key} is closed. It ends with its last member."
    return f"{key} was closed already."
