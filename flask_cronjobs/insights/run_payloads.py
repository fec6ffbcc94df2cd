"""Retry a run with another payload, or run it again as a new run.

The payload passes the same checks as in ``enqueue``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import Row, text

from ..core.app_state import State
from ..core.columns import due_sql, insert_into_runs, parameter
from ..core.insert import parameters_of
from ..core.new_run import COLUMNS, NewRun, new_run
from ..core.tasks.declared_task import DeclaredTask
from ..core.tasks.options import AS_THE_TASK_SAYS, is_id
from ..core.tasks.payload import check_keys
from ..db.connection import Bookkeeping, together
from ..errors import PayloadError, StateConflict, UnknownTask
from ..log import DEFAULT_ACTOR, log_run
from ..models.conditions import HOLDS_KEY
from ..text import did_you_mean
from ..text.redaction import HIDDEN, redacted
from ..types import JSON, json_object, stored_json
from .operations import Operation, note
from .run_actions import RETRY, Change, no_run


def retry_with(
    state: State, run_id: int, payload: Mapping[str, object], actor: str = DEFAULT_ACTOR
) -> Change:
    """Queue a dead, cancelled or failed run again with a new *payload*.

    :raises NotFound: there is no such run.
    :raises StateConflict: its status does not allow it; or it is in strict order, and *payload*
        gives another concurrency key.
    :raises UnknownTask: this app's code does not declare its task.
    :raises TypeError: the handler does not take *payload*.
    :raises PayloadError: *payload* is not plain JSON, or was copied with hidden values.
    """
    with state.bookkeeping() as books:
        run = _stored(books, run_id)
        if run.status not in RETRY.allowed:
            raise RETRY.refusal(books, run_id)
    new = _like(state, run, payload)
    _keep_order(run, new.concurrency_key)
    return RETRY.one(state, run_id, actor, new.of_payload)


def run_again(
    state: State,
    run_id: int,
    payload: Mapping[str, object] | None = None,
    actor: str = DEFAULT_ACTOR,
) -> int:
    """Queue a new run like *run_id*, due now, whatever the status of that run.

    It has the same task, definition, queue and priority, but no idempotency key.

    :param payload: its payload; default: the same.
    :returns: the id of the new run.
    :raises NotFound: there is no such run.
    :raises UnknownTask: this app's code does not declare its task.
    :raises TypeError: the handler does not accept the payload, or no longer does.
    :raises PayloadError: *payload* is not plain JSON, or was copied with hidden values.
    """
    with state.bookkeeping() as books:
        run = _stored(books, run_id)
        task, arguments = _declared_task(state, run), payload
        if arguments is None:
            arguments = task.current(_as_mapping(run), state.settings.redact)
        new = _like(state, run, arguments)
        new.queue, new.priority = run.queue, run.priority
        new_id, _ = queue_new(books, new, Operation("ran again", f"run {run_id}", actor))
    log_run(
        logging.INFO, "ran again", task=run.job_type, run_id=new_id, attempt=0,
        why=f"like run {run_id}", actor=actor,
    )  # fmt: skip
    return new_id


def refuse_hidden(state: State, payload: Mapping[str, object], stored: JSON) -> None:
    """Refuse a payload that contains the mark of a value that is hidden in *stored*.

    :raises PayloadError: it contains one.
    """
    check_keys(payload)
    is_hidden = redacted(stored, state.settings.redact) != stored
    if is_hidden and HIDDEN in json.dumps(payload, default=str):
        raise PayloadError(f"{HIDDEN} stands for a value that is hidden. Write the value itself.")


def _like(state: State, run: Row[Any], payload: Mapping[str, object]) -> NewRun:
    """Return a new run like *run* with *payload*.

    The new run has the concurrency key and the limit of *run*, unless the task gives a key. If
    *run* has a definition, the limit of *run* is kept even then.
    """
    task = _declared_task(state, run)
    refuse_hidden(state, payload, _parsed(run))
    arguments = task.payload_from(payload)
    new = new_run(task, arguments, AS_THE_TASK_SAYS, state.settings, unique=False)
    new.definition_id = run.definition_id
    if new.concurrency_key is None or run.definition_id is not None:
        new.concurrency_key = new.concurrency_key or run.concurrency_key
        limit = run.concurrency_limit or new.concurrency_limit
        new.concurrency_limit = limit if new.concurrency_key else None
    return new


def _keep_order(run: Row[Any], key: str | None) -> None:
    """Refuse a new concurrency key for a run that has a place in the strict order of its key.

    :raises StateConflict: *key* is not the run's own.
    """
    if run.strict and key != run.concurrency_key:
        raise StateConflict(
            f"Run {run.id} has a place in the strict order of its concurrency key, and the new "
            "payload would give it another key. Run it again with that payload, which makes a new "
            "run, and discard this one."
        )


def _stored(books: Bookkeeping, run_id: int) -> Row[Any]:
    """Return the columns of a run that a new one like it needs.

    ``payload`` is a JSON text, and ``definition_id`` is None if the definition is gone.

    :raises NotFound: there is no such run.
    """
    statement = """
        SELECT id, job_type, status, CAST(payload AS text) AS payload, queue, priority,
            (SELECT d.id FROM job_definitions d WHERE d.id = job_runs.definition_id)
                AS definition_id,
            concurrency_key, concurrency_limit, strict, rate_key
        FROM job_runs WHERE id = :id
    """
    rows = books.rows(text(statement), {"id": run_id}) if is_id(run_id) else ()
    if not rows:
        raise no_run(run_id)
    return rows[0]


def _declared_task(state: State, run: Row[Any]) -> DeclaredTask:
    task = state.registry.tasks.get(run.job_type)
    if task is None:
        raise UnknownTask(
            f"Run {run.id} needs the task {run.job_type!r}, which this app's code does not declare."
            f"{did_you_mean(run.job_type, state.registry.tasks)}"
        )
    return task


def _parsed(run: Row[Any]) -> JSON:
    try:
        return cast("JSON", stored_json(run.payload))
    except ValueError:
        return None


def _as_mapping(run: Row[Any]) -> Mapping[str, JSON]:
    try:
        return json_object(_parsed(run))
    except ValueError:
        raise PayloadError(f"The payload of run {run.id} cannot be read. Give a new one.") from None


def insert_by_operator(books: Bookkeeping, new: NewRun) -> tuple[int, str | None]:
    """Insert a run, unless another holds its idempotency key.

    :returns: the new run's id and None, or the id and the task of the run that holds the key.
    """
    d = books.dialect
    columns = {name: parameter(d, name) for name in COLUMNS}
    returned = "WHERE true ON CONFLICT DO NOTHING RETURNING id"
    columns["scheduled_for"] = d.now
    statement = text(insert_into_runs(columns, due_sql(d), d.now, returned))
    holder = f"SELECT id, job_type FROM job_runs WHERE idempotency_key = :key AND {HOLDS_KEY}"
    # A definition has one run per instant. If another transaction has just used this instant, the
    # next try uses a later one.
    while not (rows := books.rows(statement, parameters_of(d, new))):
        if holders := books.rows(text(holder), {"key": new.idempotency_key}):
            return holders[0].id, holders[0].job_type
    return rows[0].id, None


def queue_new(books: Bookkeeping, new: NewRun, operation: Operation) -> tuple[int, str | None]:
    """Insert a run as `insert_by_operator` does; if it is new, record *operation* with it.

    :raises DatabaseTrouble: the insert failed, or its result is unknown. It is not tried again.
    """

    def both(inner: Bookkeeping) -> tuple[int, str | None]:
        run_id, holder = insert_by_operator(inner, new)
        if holder is None:
            noted, d = operation._replace(run_id=run_id), inner.dialect
            inner.transaction(lambda connection: note(connection, d, noted, asked=1, done=1))
        return run_id, holder

    return together(books, both, repeat=False)


def set_queue(books: Bookkeeping, run_id: int, queue: str) -> None:
    """Move a run to another queue, for the tests of an app."""
    statement = text("UPDATE job_runs SET queue = :queue WHERE id = :id")
    books.rows(statement, {"queue": queue, "id": run_id})
