"""The helpers: `drain`, `enqueued`, `run`, `fire` and `travel`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, text

from ..db.dialect import clock_shift, dialect_of, moved_by
from ..db.transactions import refuse_own_lock
from ..errors import SetupError, TablesMissing
from ..extension import CronJobs
from ..jobs.runs.current import in_run
from ..jobs.runs.uncommitted import uncommitted
from ..jobs.state import State, state_of
from ..log import worker_name
from ..models import JobRun
from ..models.conditions import RUNNABLE
from ..registry import name_of
from ..registry.payload import check_keys
from ..task import Task
from ..types import TickReport, stored_time
from .inline import (
    aware,
    enqueue_alone,
    find_definition,
    inline_worker,
    loaded,
    perform_alone,
    record_slot,
    refuse_taken,
    slot_of,
)

#: How much later than asked for the clock is set, in seconds: SQLite's counts milliseconds.
_SURELY = 0.002


def drain(
    jobs: CronJobs | None = None, raise_errors: bool = True, with_delayed: bool = False
) -> TickReport:
    """Run what is due, here and now, until nothing is.

    :param jobs: the current app's `~flask_cronjobs.CronJobs`; may be left out.
    :param raise_errors: raise what a handler raised, as soon as its run is recorded. What is due
        after that stays queued. If False, failures are only counted.
    :param with_delayed: also run what is due later, such as retries: move the clock to each in
        turn, as `travel` does, until nothing waits.
    :returns: how many attempts came to which outcome.
    :raises SetupError: nothing can run, or not all: there is no app, ``db.session`` has uncommitted
        work, a run is of a task that the app does not declare, or was enqueued while the clock was
        moved ahead, as by `fire`.

    It makes no slots of schedules into runs: see `fire`.
    """
    state = _ready(jobs)
    counts, started = Counter[str](), time.monotonic()
    with ExitStack() as travels, _fresh_session(state):
        while True:
            with inline_worker(state, raise_errors=raise_errors) as worker:
                worker.counts = counts
                worker.drain()
            waits = _waits(state, with_delayed)
            if not (with_delayed and waits):
                break
            wait = min(waits)
            travels.enter_context(moved_by(clock_shift() + wait + _SURELY))
    return TickReport(worker_name(), **counts, seconds=round(time.monotonic() - started, 3))


def enqueued(task: Task[..., Any] | str | None = None, *, after: int = 0) -> list[JobRun]:
    """Return the runs that were enqueued, oldest first, whatever has become of them.

    :param task: the task, or its name; None for all tasks.
    :param after: leave out runs up to this id, as those that other tests have committed.
    :returns: the runs, with their ``payload``, ``run_at``, ``idempotency_key`` and ``status``. Runs
        that ``db.session`` has not committed yet are among them; slots of schedules are not.
    :raises UnknownTask: no task has that name.
    """
    state = state_of()
    query = select(JobRun).where(JobRun.definition_id.is_(None), JobRun.id > after)
    if task is not None:
        query = query.where(JobRun.job_type == _name_of(state, task))
    query = query.order_by(JobRun.id).execution_options(populate_existing=True)
    return list(state.db.session().scalars(query))


def last_run() -> int:
    """Return the id of the newest run that is committed; 0 if there is none, or no table."""
    with suppress(TablesMissing), state_of().bookkeeping() as books:
        (row,) = books.rows(text("SELECT COALESCE(max(id), 0) FROM job_runs"))
        return int(row[0])
    return 0


def run(
    task: Task[..., Any] | str,
    payload: Mapping[str, object] | None = None,
    /,
    *more: object,
    attempt: int = 1,
    scheduled_for: datetime | None = None,
    definition: Task[..., Any] | str | None = None,
    raise_errors: bool = True,
    **arguments: object,
) -> JobRun:
    """Call a handler as a run, so that ``current_run``, ``once``, timeouts and retries work.

    :param task: the task, or its name.
    :param payload: arguments of the handler; more may be given by name.
    :param attempt: which attempt it is, from 1.
    :param scheduled_for: for when it was scheduled (aware); by default now.
    :param definition: the definition whose run it is, as for `fire`; then *payload* is its payload,
        unless another is given.
    :param raise_errors: raise what the handler raised.
    :returns: the run as it ended, with its ``status`` and ``result``.
    :raises UnknownTask: no task has that name.
    :raises NotFound: there is no such definition.
    :raises TypeError: the handler does not take these arguments.
    :raises PayloadError: an argument is not plain JSON.
    :raises ValueError: a run of this task has no such attempt.
    :raises StateConflict: the definition has a run for that time already, or it cannot be claimed.
    :raises SetupError: as of `drain`.
    """
    state = _ready()
    if more:
        raise TypeError(
            "run() takes the arguments of a handler by name, or as one dict: "
            "run(task, {'user_id': 7})"
        )
    values: dict[str, object] = {"attempts": attempt - 1}
    if scheduled_for is not None:
        values["scheduled_for"] = aware(scheduled_for)
    if payload is not None:
        check_keys(payload)
    given: Mapping[str, object] = {**(payload or {}), **arguments}
    with _fresh_session(state):
        if definition is not None:
            found = find_definition(state, name_of(definition))
            refuse_taken(state, found, values.get("scheduled_for"))
            values["definition_id"] = found.id
            given = given or found.spec.payload
        run_id = enqueue_alone(state, _name_of(state, task), given, attempt)
        perform_alone(state, run_id, values, raise_errors)
    return loaded(state, run_id)


def fire(
    definition: Task[..., Any] | str, at: datetime | None = None, raise_errors: bool = True
) -> JobRun:
    """Make the slot of a definition into a run and perform it, at its time.

    :param definition: the definition's name, or the task if the definition has its name.
    :param at: a moment that its schedule names (aware); by default the next one. The clock is moved
        there meanwhile, as `travel` does.
    :param raise_errors: raise what the handler raised.
    :returns: the run as it ended; ``skipped`` if an earlier one has not finished.
    :raises NotFound: there is no such definition.
    :raises ValueError: its schedule does not name *at*.
    :raises StateConflict: the slot has a run already, or the definition is paused.
    :raises SetupError: as of `drain`.
    """
    state = _ready()
    with _fresh_session(state):
        found = find_definition(state, name_of(definition))
        moment = slot_of(found, at)
        with travel(moment):
            slot = record_slot(state, found, moment)
            if not slot.skipped:
                perform_alone(state, slot.run_id, {}, raise_errors)
    return loaded(state, slot.run_id)


@contextmanager
def travel(to: datetime | timedelta) -> Generator[None]:
    """Move the clock that jobs see, which is the database's; it goes on from there.

    :param to: a time (aware), or by how much to move.
    :raises ValueError: it is neither, or a naive time.
    :raises SetupError: there is no current app.

    At the end of the block the clock is set back. It holds for all apps of this process, and for
    what is enqueued, claimed and recorded; not for Python's clock, nor for other processes.
    """
    if isinstance(to, timedelta):
        distance = to.total_seconds()
    else:
        state = state_of()
        now = state.db.session().scalar(text(f"SELECT {dialect_of(state.engine).now}"))
        distance = (aware(to) - stored_time(now)).total_seconds() + _SURELY
    with moved_by(clock_shift() + distance):
        yield


def _ready(jobs: CronJobs | None = None) -> State:
    """Return the state of the current app.

    :raises SetupError: a worker would not see what the test has done so far.
    """
    state = state_of()
    if not isinstance(jobs, CronJobs | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"{jobs!r} is no CronJobs. Give that of the current app, or leave it out: the app "
            "itself is known by its context."
        )
    if jobs is not None and jobs.tasks is not state.registry.tasks:
        raise SetupError(f"This CronJobs is not initialized on the current app {state.app.name!r}.")
    if in_run():
        raise SetupError("The helpers of flask_cronjobs.testing cannot be used inside a handler.")
    if found := uncommitted(state.db):
        raise SetupError(
            f"db.session has uncommitted work that no worker would see: {found}. Call "
            "db.session.commit() first."
        )
    refuse_own_lock(state.db.session(), state.bookkeeping())
    return state


@contextmanager
def _fresh_session(state: State) -> Generator[None]:
    """Let the test's session load again, after this block, what was changed in it."""
    try:
        yield
    finally:
        state.db.session().expire_all()


def _waits(state: State, with_delayed: bool) -> list[float]:
    """Return in how many seconds the next run of each task comes due, of those that wait.

    :param with_delayed: whether they are to be run, too.
    :raises SetupError: a run is due, or was when it was enqueued, and will never be performed.
    """
    with state.bookkeeping() as books:
        now = books.dialect.now
        query = f"""
            SELECT job_type, min(run_at) <= {now} AS due, max(created_at) > {now} AS ahead,
                min(CASE WHEN run_at > {now} AND attempts < max_attempts THEN run_at END) AS next,
                {now} AS now
            FROM job_runs WHERE {RUNNABLE} GROUP BY job_type ORDER BY job_type
        """
        rows = books.rows(text(query))
    known = [row for row in rows if row.job_type in state.registry.tasks]
    _refuse(
        [row.job_type for row in rows if row.due and row not in known],
        "are due, but the current app declares no such task. Import the module that declares it.",
    )
    _refuse(
        [row.job_type for row in rows if row.ahead and not with_delayed],
        "were enqueued while the clock was moved ahead, by fire or travel, so none is due now. "
        "Call drain(with_delayed=True), or drain inside of travel to a time after that.",
    )
    times = [(stored_time(row.next), stored_time(row.now)) for row in known if row.next is not None]
    return [(due - now).total_seconds() for due, now in times]


def _refuse(tasks: list[str], why: str) -> None:
    if tasks:
        raise SetupError(f"Runs of {', '.join(map(repr, tasks))} {why}")


def _name_of(state: State, task: Task[..., Any] | str) -> str:
    return state.registry.get(name_of(task)).name
