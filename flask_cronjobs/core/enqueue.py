"""Enqueue runs in the user's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from itertools import islice

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from ..db.errors import explain, remedy_for
from ..db.notify import WAKE_SECONDS, wake_listeners
from ..errors import CronJobsError, KeyConflict, TaskError
from ..models import JobRun
from ..text.humanize import plural
from ..types import RunIds
from .app_state import State
from .insert import insert_or_find, writing_connection
from .insert_many import INSERTED_AT_ONCE, Holder, delete_runs, insert_runs
from .new_run import NewRun, new_run
from .tasks.declared_task import DeclaredTask
from .tasks.options import AS_THE_TASK_SAYS, EnqueueOptions
from .uncommitted import note_enqueued

#: Seconds after which an enqueue checks again for listening workers if none were found.
ASK_SECONDS = 5.0


#: Inside the ``with`` block of a batch: a function that returns the id of the batch that a new run
#: joins, or None if the run belongs to another app.
joined: ContextVar[Callable[[State, Session], int | None] | None] = ContextVar(
    "flask_cronjobs.joined", default=None
)


def batch_of(state: State, session: Session) -> int | None:
    """Return the id of the batch that a run joins if it is enqueued now, or None.

    :raises BatchClosed: no run can join it any more.
    """
    join = joined.get()
    return None if join is None else join(state, session)


def enqueue_one(
    state: State, task: DeclaredTask, payload: Mapping[str, object], options: EnqueueOptions
) -> JobRun:
    """Insert one run in ``db.session``; see `Task.enqueue`."""
    row = new_run(task, payload, options, state.settings)
    if options != AS_THE_TASK_SAYS and row.idempotency_key is None:
        _refuse_key_options(options)
    session = state.db.session()
    with _committing(session) if options.commit else nullcontext():
        row.batch_id = batch_of(state, session)
        with explaining_missing_tables(state):
            wakes = _is_due(options) and state.waking.ready()
            run, became, woke = insert_or_find(session, row, options.replace, wakes)
            if woke is not None:
                _note_woken(state, woke)
            elif wakes and became != "found":
                wake(state, session)
        run.is_new = became == "new"
        if became != "found":
            note_enqueued(session, f"{task.name} (run {run.id})")
        else:
            _check_holder(run, task)
    return run


def enqueue_rows(
    state: State,
    task: DeclaredTask,
    payloads: Iterable[Mapping[str, object]],
    options: EnqueueOptions,
) -> RunIds:
    """Insert a run for each of *payloads* in ``db.session``; see `Task.enqueue_many`."""
    if options.idempotency_key is not None:
        raise TaskError(
            "enqueue_many was given an idempotency_key, but a key belongs to one run. Declare "
            f"the task with unique=…, such as unique='{task.name}:{{user_id}}'."
        )
    if options.replace:
        raise TaskError("enqueue_many does not replace runs. Call enqueue for each payload.")
    options = task.with_unique_while(options)
    if task.options.unique is None:
        _refuse_key_options(options)
    session, ids = state.db.session(), RunIds()
    with _committing(session) if options.commit else nullcontext():
        try:
            _insert_all(state, task, _rows(state, task, payloads, options), ids)
        except Exception:
            # Insert all or none. In a broken transaction nothing can be deleted, and the rollback
            # will undo the inserts.
            with suppress(SQLAlchemyError):
                delete_runs(session, ids.new)
            raise
        if any(ids.is_new) and _is_due(options):
            with explaining_missing_tables(state):
                wake(state, session)
        if any(ids.is_new):
            note_enqueued(session, f"{task.name} ({plural(ids.is_new.count(True), 'run')})")
    return ids


@contextmanager
def _committing(session: Session) -> Generator[None, None, None]:
    """Commit *session* after this block.

    After an error, leave the session as it was: without a transaction, or in the one that the app
    had begun, which the app will commit or roll back.
    """
    in_transaction = session.in_transaction()
    try:
        yield
        session.commit()
    except BaseException:
        if not in_transaction:
            session.rollback()
        raise


def _rows(
    state: State,
    task: DeclaredTask,
    payloads: Iterable[Mapping[str, object]],
    options: EnqueueOptions,
) -> Iterator[NewRun]:
    """Yield a new run for each of *payloads*.

    :raises CronJobsError, TypeError: a payload is not valid; the message begins with its index.
    """
    for index, payload in enumerate(payloads):
        try:
            yield new_run(task, task.payload_from(payload), options, state.settings)
        except (CronJobsError, TypeError) as error:
            raise type(error)(f"payloads[{index}]: {error}") from None


def _refuse_key_options(options: EnqueueOptions) -> None:
    """Refuse options that need an idempotency key; call this for runs without one."""
    if options.replace:
        raise TaskError("replace was given without an idempotency_key. Give the key too.")
    if options.unique_while is not None:
        raise TaskError(
            f"unique_while={options.unique_while!r} was given without an idempotency_key, so "
            "nothing would be unique. Give the run a key, or the task a unique=…."
        )


def _insert_all(state: State, task: DeclaredTask, rows: Iterator[NewRun], ids: RunIds) -> None:
    """Insert *rows*, and add their ids to *ids*."""
    session = state.db.session()
    # Runs with keys must be inserted in the order of their keys, so all of them are in one chunk.
    while chunk := list(islice(rows, None if task.options.unique else INSERTED_AT_ONCE)):
        batch_id = batch_of(state, session)
        for row in chunk:
            row.batch_id = batch_id
        with explaining_missing_tables(state):
            results = insert_runs(session, chunk)
        ids += [result.id for result in results]
        ids.is_new += [result.holder is None for result in results]
        for index, result in enumerate(results, len(ids) - len(chunk)):
            if result.holder is not None:
                _check_holder(result.holder, task, f"payloads[{index}]: ")


def _check_holder(run: Holder | JobRun, task: DeclaredTask, prefix: str = "") -> None:
    """Refuse a key that a run of another task holds.

    The message does not contain the key, since the key may contain values that must be hidden.

    :param prefix: begins the message.
    :raises KeyConflict: *run* belongs to another task.
    """
    if run.job_type != task.name:
        raise KeyConflict(
            f"{prefix}The idempotency key of this run is held by run {run.id} of the task "
            f"{run.job_type}. Nothing was enqueued. Give {task.name} a key of its own: begin it "
            "with the task's name."
        )


def _is_due(options: EnqueueOptions) -> bool:
    """Return whether a run with these options is due immediately."""
    return options.run_at is None and not options.delay


def wake(state: State, session: Session) -> None:
    """Wake resident workers, unless that was tried a moment ago."""
    if state.waking.ready():
        _note_woken(state, wake_listeners(session, writing_connection(session)))


def _note_woken(state: State, woke: bool) -> None:
    """Suppress wake-ups for a while after workers were woken, or if none listened."""
    state.waking.block_for(WAKE_SECONDS if woke else ASK_SECONDS)


@contextmanager
def explaining_missing_tables(state: State) -> Generator[None, None, None]:
    """Explain how to create the job tables if a statement in this block fails without them.

    :raises TablesMissing: job tables do not exist.
    """
    try:
        yield
    except DBAPIError as error:
        # An error about the app's own tables, whose new rows may be flushed in this block, is
        # raised unchanged.
        is_ours = any(name in (error.statement or "") for name in JobRun.metadata.tables)
        if is_ours and remedy_for(error) == "create tables":
            raise explain(error, state.engine) from error
        raise
