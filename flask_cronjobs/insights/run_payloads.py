"""Retry a run with another payload, or run it again as a new run.

A payload is checked as by ``enqueue``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import Row

from ..core.app_state import State
from ..core.new_run import NewRun, new_run
from ..core.tasks.handler import Handler
from ..core.tasks.options import AS_THE_TASK_SAYS, is_id
from ..core.tasks.payload import check_keys
from ..db.connection import Bookkeeping
from ..errors import PayloadError, StateConflict, UnknownTask
from ..log import DEFAULT_ACTOR, log_run
from ..text import did_you_mean
from ..text.redaction import HIDDEN, redacted
from ..types import JSON, json_object, stored_json
from .operations import Act
from .run_actions import RETRY, no_run
from .run_changes import Change, Operator, queue_new, stored_run


def retry_with(
    state: State, run_id: int, payload: Mapping[str, object], actor: str = DEFAULT_ACTOR
) -> Change:
    """Queue a dead, cancelled or failed run again, with another *payload*.

    :raises NotFound: there is no such run.
    :raises StateConflict: its status does not allow it; or it is in strict order, and *payload*
        makes another concurrency key.
    :raises UnknownTask: this app's code does not declare its task.
    :raises TypeError: the handler does not take *payload*.
    :raises PayloadError: *payload* is not plain JSON, or was copied with hidden values.
    """

    def change(operator: Operator, ids: Sequence[int], _: str) -> list[Change]:
        run = _stored(operator.books, run_id)
        if run.status not in RETRY.allowed:
            return []
        new = _like(state, run, payload)
        _keep_order(run, new.concurrency_key)
        return operator.retry(ids, columns=new.of_payload)

    retry = replace(RETRY, done="retried with another payload", change=change)
    return retry.one(state, run_id, actor)


def run_again(
    state: State,
    run_id: int,
    payload: Mapping[str, object] | None = None,
    actor: str = DEFAULT_ACTOR,
) -> int:
    """Queue a new run like *run_id*, whatever became of that one, due now.

    It has the same task, definition, queue and priority, but no idempotency key.

    :param payload: its payload; default: the same.
    :returns: the id of the new run.
    :raises NotFound: there is no such run.
    :raises UnknownTask: this app's code does not declare its task.
    :raises TypeError: the handler does not take the payload (any more).
    :raises PayloadError: *payload* is not plain JSON, or was copied with hidden values.
    """
    with state.bookkeeping() as books:
        run = _stored(books, run_id)
        handler, given = _handler(state, run), payload
        if given is None:
            given = handler.current(_as_mapping(run), state.settings.redact)
        new = _like(state, run, given)
        new.queue, new.priority = run.queue, run.priority
        new_id, _ = queue_new(books, new, Act("ran again", f"run {run_id}", actor))
    log_run(
        logging.INFO, "ran again", task=run.job_type, run_id=new_id, attempt=0,
        why=f"as run {run_id}", actor=actor,
    )  # fmt: skip
    return new_id


def refuse_hidden(state: State, given: Mapping[str, object], stored: JSON) -> None:
    """Refuse a payload that was copied with the mark of values that are hidden in *stored*.

    :raises PayloadError: it was.
    """
    check_keys(given)
    is_hidden = redacted(stored, state.settings.redact) != stored
    if is_hidden and HIDDEN in json.dumps(given, default=str):
        raise PayloadError(f"{HIDDEN} stands for a value that is hidden. Write the value.")


def _like(state: State, run: Row[Any], payload: Mapping[str, object]) -> NewRun:
    """Return a new run like *run*, with *payload*; a definition's own key and limit stay."""
    handler = _handler(state, run)
    refuse_hidden(state, payload, _parsed(run))
    given = handler.payload_from(payload)
    new = new_run(handler, given, AS_THE_TASK_SAYS, state.settings, keyed=False)
    new.definition_id = run.definition_id
    if new.concurrency_key is None or run.definition_id is not None:
        new.concurrency_key = new.concurrency_key or run.concurrency_key
        limit = run.concurrency_limit or new.concurrency_limit
        new.concurrency_limit = limit if new.concurrency_key else None
    return new


def _keep_order(run: Row[Any], key: str | None) -> None:
    """Refuse another key for a run with a place in the strict order of its own.

    :raises StateConflict: *key* is another.
    """
    if run.strict and key != run.concurrency_key:
        raise StateConflict(
            f"Run {run.id} has its place in the strict order of its concurrency key, and the new "
            "payload belongs to another key. Run it again with that payload, as a new run, and "
            "discard this one."
        )


def _stored(books: Bookkeeping, run_id: int) -> Row[Any]:
    run = stored_run(books, run_id) if is_id(run_id) else None
    if run is None:
        raise no_run(run_id)
    return run


def _handler(state: State, run: Row[Any]) -> Handler:
    handler = state.registry.tasks.get(run.job_type)
    if handler is None:
        raise UnknownTask(
            f"Run {run.id} is of the task {run.job_type!r}, which this app's code does not declare."
            f"{did_you_mean(run.job_type, state.registry.tasks)}"
        )
    return handler


def _parsed(run: Row[Any]) -> JSON:
    try:
        return cast("JSON", stored_json(run.payload))
    except ValueError:
        return None


def _as_mapping(run: Row[Any]) -> Mapping[str, JSON]:
    try:
        return json_object(_parsed(run))
    except ValueError:
        raise PayloadError(f"The payload of run {run.id} cannot be read. Give another.") from None
