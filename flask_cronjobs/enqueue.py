"""Enqueue runs in the user's own transaction."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError

from .commits import note_enqueued
from .config import Settings
from .errors import KeyConflict, TaskError
from .log import logger
from .models import JobRun
from .registry.handler import Handler
from .registry.options import EnqueueOptions
from .registry.run_columns import payload_columns, policy_columns
from .state import State
from .store.clock import database_now
from .store.enqueue import insert_run, insert_runs
from .store.errors import explain, remedy_for
from .store.notify import wake_listeners

#: How often one process wakes resident workers at most, in seconds: as often as they look.
WAKE_EVERY = 0.25
#: How often it asks whether there are any, in seconds.
ASK_EVERY = 5.0


def enqueue_one(
    state: State, task: Handler, payload: Mapping[str, object], options: EnqueueOptions
) -> JobRun:
    """Insert one run in ``db.session``; see `Task.enqueue`."""
    when = options.run_at if options.run_at is not None else database_now(options.delay)
    values = {
        **policy_columns(task, state.settings, options),
        **payload_columns(task, state.settings, payload),
        "idempotency_key": options.idempotency_key,
        "scheduled_for": when,
        "run_at": when,
        "created_at": database_now(),
        "updated_at": database_now(),
    }
    with _explaining_missing_tables(state):
        run, new = insert_run(state.db.session, values)
        run.is_new = new
        if new:
            _wake(state, options)
    if new:
        note_enqueued(f"{task.name} (run {run.id})")
    else:
        _tell_conflict(state.settings, run, values)
    if options.commit:
        state.db.session.commit()
    return run


def enqueue_rows(
    state: State,
    task: Handler,
    payloads: Sequence[Mapping[str, object]],
    options: EnqueueOptions,
) -> list[int]:
    """Insert a run for each of *payloads* in ``db.session``; see `Task.enqueue_many`."""
    if options.idempotency_key is not None:
        raise TaskError(
            "enqueue_many with an idempotency_key: one key cannot belong to many runs. Call "
            "using(idempotency_key=…).enqueue(…) for each."
        )
    shared = {
        **policy_columns(task, state.settings, options),
        "run_at": options.run_at,
        "delay": options.delay or 0.0,
    }
    rows = [payload_columns(task, state.settings, payload) for payload in payloads]
    with _explaining_missing_tables(state):
        ids = insert_runs(state.db.session, shared, rows)
        _wake(state, options)
    if ids:
        note_enqueued(f"{task.name} ({len(ids)} runs)")
    if options.commit:
        state.db.session.commit()
    return ids


def _tell_conflict(settings: Settings, run: JobRun, wanted: Mapping[str, Any]) -> None:
    """Tell that the key's *run* is not the one that was *wanted*, or will never be executed.

    The payloads themselves are never logged.

    :raises KeyConflict: it is a run of another task.
    """
    holder = f"The idempotency key {run.idempotency_key!r} is held by run {run.id}"
    held = f"which {_status(settings, run)}. Nothing was enqueued."
    if run.job_type != wanted["job_type"]:
        raise KeyConflict(
            f"{holder} of the task {run.job_type}, {held} Give {wanted['job_type']} a key of its "
            "own: begin it with the task's name."
        )
    if run.payload != json.loads(json.dumps(wanted["payload"])):
        logger.warning(
            "%s of the task %s, with another payload, %s If this is other work, give it another "
            "key: put into the key what differs.",
            *(holder, run.job_type, held),
        )
    elif run.status in ("dead", "cancelled"):
        logger.warning(
            "%s of the task %s, %s To do its work, run: flask jobs admin retry %d",
            *(holder, run.job_type, held, run.id),
        )


def _status(settings: Settings, run: JobRun) -> str:
    if run.finished_at is None:
        return f"is {run.status} and holds the key until its row is pruned, after it has ended"
    kept = settings.retention_dead if run.status == "dead" else settings.retention
    try:
        until = f"about {run.finished_at + timedelta(seconds=kept):%Y-%m-%d %H:%M} UTC"
    except OverflowError:
        until = "its row is deleted"
    return (
        f"is {run.status} since {run.finished_at:%Y-%m-%d %H:%M} UTC and holds the key until "
        f"{until}, when its row is pruned"
    )


def _wake(state: State, options: EnqueueOptions) -> None:
    """Wake resident workers, if the runs are due and the workers were not woken just now."""
    if options.run_at is None and not options.delay and state.waking.open():
        listened = wake_listeners(state.db.session)
        state.waking.close(WAKE_EVERY if listened else ASK_EVERY)


@contextmanager
def _explaining_missing_tables(state: State) -> Generator[None, None, None]:
    try:
        yield
    except DBAPIError as error:
        # Every other error in the user's own transaction reaches the user as it is.
        if remedy_for(error) == "create tables":
            raise explain(error, state.engine) from error
        raise
