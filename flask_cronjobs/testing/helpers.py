"""The helpers: `drain`, `enqueued`, `run`, `fire` and `travel`."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, select, text

from ..core.app_state import State, state_of
from ..core.current import in_run
from ..core.definitions import DefinitionRow
from ..core.enqueue import enqueue_one
from ..core.scheduler import announce_slot, find_or_record
from ..core.slots import insert_slots
from ..core.tasks.options import MOMENT, EnqueueOptions
from ..core.tasks.payload import check_keys
from ..core.tasks.registry import name_of
from ..core.uncommitted import uncommitted
from ..db.dialect import clock_shift, dialect_of, moved_by
from ..db.transactions import refuse_own_lock
from ..errors import NotFound, SetupError, StateConflict, TablesMissing
from ..extension import CronJobs
from ..insights.run_payloads import set_queue
from ..log import worker_name
from ..models import JobRun
from ..models.conditions import UNCLAIMED
from ..schedule import Schedule
from ..schedule.catchup import Slot
from ..task import Task
from ..text import did_you_mean
from ..types import RecordedSlot, TickReport, stored_time
from .inline import inline_worker

#: Seconds by which the clock is set later than requested, since SQLite's clock has milliseconds.
_MARGIN_SECONDS = 0.002


def drain(
    jobs: CronJobs | None = None, raise_errors: bool = True, with_delayed: bool = False
) -> TickReport:
    """Run all due runs in this thread until no more are due.

    :param jobs: the current app's `~flask_cronjobs.CronJobs`; may be left out.
    :param raise_errors: whether to raise a handler's error as soon as its run is recorded, so that
        later runs stay queued. If False, failures are only counted.
    :param with_delayed: whether to also run what is due later, such as retries. The clock moves to
        each run in turn, as `travel` moves it, until no run waits.
    :returns: a report with the number of attempts by outcome.
    :raises SetupError: there is no app; ``db.session`` has uncommitted work; or a due run belongs
        to a task that the app does not declare, or was enqueued while `fire` or `travel` had moved
        the clock ahead.

    It makes no runs from the slots of schedules; use `fire` for that.

    >>> run = send_report.using(commit=True, delay=3600).enqueue(1, "2026-W03")
    >>> drain(jobs).succeeded
    0
    >>> drain(jobs, with_delayed=True).succeeded
    1
    >>> run.result
    'sent 2026-W03 to 1'
    """
    state = _ready(jobs)
    counts, started = Counter[str](), time.monotonic()
    with ExitStack() as travels, _fresh_session(state):
        while True:
            with inline_worker(state, raise_errors=raise_errors) as worker:
                worker.counts = counts
                worker.drain()
            wait = min([worker.wait, *_waits(state, with_delayed)])
            if not with_delayed or wait == float("inf"):
                break
            travels.enter_context(moved_by(clock_shift() + wait + _MARGIN_SECONDS))
    return TickReport(worker_name(), **counts, seconds=round(time.monotonic() - started, 3))


def enqueued(task: Task[..., Any] | str | None = None, *, after: int = 0) -> list[JobRun]:
    """Return the enqueued runs of any status, oldest first.

    :param task: the task, or its name; None for all tasks.
    :param after: leave out runs with ids up to this one, such as those that other tests committed.
    :returns: the runs, with their ``payload``, ``run_at``, ``idempotency_key`` and ``status``. They
        include runs that ``db.session`` has not committed yet, but no slots of schedules.
    :raises UnknownTask: no task has that name.

    >>> run = send_report.enqueue(1, "2026-W03")
    >>> [run.payload["week"] for run in enqueued(send_report)]
    ['2026-W03']
    """
    state = state_of()
    query = select(JobRun).where(JobRun.definition_id.is_(None), JobRun.id > after)
    if task is not None:
        query = query.where(JobRun.job_type == state.registry.get(name_of(task)).name)
    query = query.order_by(JobRun.id).execution_options(populate_existing=True)
    return list(state.db.session().scalars(query))


def last_run() -> int:
    """Return the id of the newest committed run; 0 if there is no run or no table."""
    with suppress(TablesMissing), state_of().bookkeeping() as books:
        (row,) = books.rows(text("SELECT COALESCE(max(id), 0) FROM job_runs"))
        return int(row[0])
    return 0


def run(
    task: Task[..., Any] | str,
    payload: Mapping[str, object] | None = None,
    /,
    *,
    raise_errors: bool = True,
    **arguments: object,
) -> JobRun:
    """Call a handler as a run, so that ``current_run``, ``once``, timeouts and retries work.

    :param task: the task, or its name.
    :param payload: arguments of the handler; more may be given by name.
    :param raise_errors: whether to raise the handler's error.
    :returns: the run after its first attempt, with its ``status`` and ``result``.
    :raises UnknownTask: no task has that name.
    :raises TypeError: the handler does not take these arguments.
    :raises PayloadError: an argument is not plain JSON.
    :raises StateConflict: the run cannot be claimed.
    :raises SetupError: the same as for `drain`.

    >>> run(send_report, user_id=1, week="2026-W03").status
    'succeeded'
    """
    state = _ready()
    declared_task = state.registry.get(name_of(task))
    if payload is not None:
        check_keys(payload)
    checked_payload = declared_task.payload_from({**(payload or {}), **arguments})
    # The run gets its own key; otherwise, a run that holds the `unique` key would be returned.
    key = None if declared_task.options.unique is None else _some_name()
    options = EnqueueOptions(commit=True, idempotency_key=key)
    with _fresh_session(state):
        with state.app.app_context():
            run_id = enqueue_one(state, declared_task, checked_payload, options).id
        _perform_alone(state, run_id, raise_errors)
    return _loaded(state, run_id)


def fire(
    definition: Task[..., Any] | str, at: datetime | None = None, raise_errors: bool = True
) -> JobRun:
    """Make a run from a slot of a definition, and perform it at the slot's time.

    :param definition: the definition's name, or the task if the definition has its name.
    :param at: the time of a slot (aware); default: the next slot. Meanwhile the clock is moved
        there, as `travel` moves it.
    :param raise_errors: whether to raise the handler's error.
    :returns: the run after its first attempt; ``skipped`` if an earlier run has not finished.
    :raises NotFound: there is no such definition.
    :raises ValueError: *at* is not a slot of its schedule.
    :raises StateConflict: the slot has a run already, or its run cannot be claimed.
    :raises SetupError: the same as for `drain`.

    >>> @jobs.task(schedule="0 7 * * *")
    ... def daily_report():
    ...     print("the report of", current_run.scheduled_local.date())
    >>> fire(daily_report, at=datetime(2030, 3, 1, 7, tzinfo=timezone.utc)).status
    the report of 2030-03-01
    'succeeded'
    """
    state = _ready()
    with _fresh_session(state):
        row = _find_definition(state, name_of(definition))
        moment = _slot_of(row, at)
        with travel(moment):
            slot = _insert_slot(state, row, moment)
            if not slot.skipped:
                _perform_alone(state, slot.run_id, raise_errors)
    return _loaded(state, slot.run_id)


@contextmanager
def travel(to: datetime | timedelta) -> Generator[None]:
    """Move the database's clock, which jobs use. It continues from the new time.

    :param to: a time (aware), or a `timedelta` by which to move.
    :returns: a context manager.
    :raises ValueError: *to* is neither, or is a naive time.
    :raises SetupError: there is no current app.

    The end of the block sets the clock back. All apps of this process enqueue, claim and record
    runs at the moved time. Python's clock and other processes are not affected.

    >>> run = send_report.using(commit=True, delay=timedelta(days=7)).enqueue(1, "2026-W03")
    >>> with travel(timedelta(days=7)):
    ...     drain(jobs).succeeded
    1
    """
    if isinstance(to, timedelta):
        distance = to.total_seconds()
    else:
        state = state_of()
        now = state.db.session().scalar(text(f"SELECT {dialect_of(state.engine).now}"))
        distance = (_aware(to) - stored_time(now)).total_seconds() + _MARGIN_SECONDS
    with moved_by(clock_shift() + distance):
        yield


def _ready(jobs: CronJobs | None = None) -> State:
    """Return the state of the current app.

    :raises SetupError: a worker would not see the test's work so far.
    """
    state = state_of()
    if not isinstance(jobs, CronJobs | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"{jobs!r} is not a CronJobs. Give the CronJobs of the current app, or leave the "
            "argument out."
        )
    if jobs is not None and jobs.tasks is not state.registry.tasks:
        raise SetupError(
            f"This CronJobs is not initialized on the current app {state.app.name!r}. Give the one "
            "that is, or enter the context of its app."
        )
    if in_run():
        raise SetupError(
            "The helpers of flask_cronjobs.testing cannot be used inside a handler. Call them in "
            "the test."
        )
    if work := uncommitted(state.db):
        raise SetupError(
            f"db.session has uncommitted work that no worker would see: {work}. Call "
            "db.session.commit() first."
        )
    refuse_own_lock(state.db.session(), state.bookkeeping())
    return state


@contextmanager
def _fresh_session(state: State) -> Generator[None]:
    """Make the test's session reload all objects after this block."""
    try:
        yield
    finally:
        _end_snapshot(state)
        state.db.session().expire_all()


def _end_snapshot(state: State) -> None:
    """Let the test's session see what others have committed since its transaction began.

    `_ready` has checked that there is nothing to commit.
    """
    session = state.db.session()
    if isinstance(state.database, Connection) or not (
        session.is_active and session.in_transaction()
    ):
        return
    if session.connection().get_isolation_level() != "READ COMMITTED":
        session.commit()


def _waits(state: State, with_delayed: bool) -> list[float]:
    """Return the seconds until the next waiting run of each task is due.

    :param with_delayed: whether delayed runs are performed, too.
    :raises SetupError: a run that is due, or was due when enqueued, would never be performed.
    """
    with state.bookkeeping() as books:
        now = books.dialect.now
        query = f"""
            SELECT job_type, min(run_at) <= {now} AS due, max(created_at) > {now} AS ahead,
                min(CASE WHEN run_at > {now} AND attempts < max_attempts THEN run_at END) AS next,
                {now} AS now
            FROM job_runs WHERE {UNCLAIMED} GROUP BY job_type ORDER BY job_type
        """
        rows = books.rows(text(query))
    declared_rows = [row for row in rows if row.job_type in state.registry.tasks]
    _refuse(
        [row.job_type for row in rows if row.due and row not in declared_rows],
        "are due, but the current app declares no such task. Import the module that declares it.",
    )
    _refuse(
        [row.job_type for row in rows if row.ahead and not with_delayed],
        "were enqueued while the clock was moved ahead, by fire or travel, so none is due now. "
        "Call drain(with_delayed=True), or call drain() inside of travel() to a later time.",
    )
    times = [
        (stored_time(row.next), stored_time(row.now))
        for row in declared_rows
        if row.next is not None
    ]
    return [(next_at - now).total_seconds() for next_at, now in times]


def _refuse(tasks: list[str], why: str) -> None:
    if tasks:
        raise SetupError(f"Runs of {', '.join(map(repr, tasks))} {why}")


def _some_name() -> str:
    return f"testing-{secrets.token_hex(8)}"


def _perform_alone(state: State, run_id: int, raise_errors: bool) -> None:
    """Perform only the run *run_id*, which gets its own queue until it is claimed.

    :raises StateConflict: the run cannot be claimed.
    """
    own_queue, queue = _some_name(), _loaded(state, run_id).queue
    with state.bookkeeping() as books:
        set_queue(books, run_id, own_queue)
        with inline_worker(state, (own_queue,), raise_errors) as worker:
            claim = worker.claim()
            set_queue(books, run_id, queue)
            if claim is None:
                raise StateConflict(
                    f"Run {run_id} cannot be claimed: all shares of its concurrency key are taken, "
                    "an earlier run comes first in strict order, RetryLater holds its rate key "
                    "back, or its task is paused. First end those runs, travel past the delay, or "
                    "resume the task."
                )
            worker.perform(claim)


def _loaded(state: State, run_id: int) -> JobRun:
    """Return the current state of a run, loaded in ``db.session``."""
    _end_snapshot(state)
    return state.db.session().get_one(JobRun, run_id, populate_existing=True)


def _find_definition(state: State, name: str) -> DefinitionRow:
    """Return a definition.

    :raises NotFound: no definition has that name.
    """
    with state.bookkeeping() as books:
        row = find_or_record(state, books, name)
    if row is None:
        hint = did_you_mean(name, state.registry.declarations)
        raise NotFound(f"There is no definition {name!r}.{hint}")
    return row


def _slot_of(row: DefinitionRow, at: datetime | None) -> datetime:
    """Return *at*, or the next slot of a definition.

    :raises ValueError: *at* is not a slot of the definition's schedule.
    """
    schedule = Schedule(row.spec.schedule, row.spec.timezone)
    moment = schedule.next_after(row.now) if at is None else _aware(at)
    if moment is None or not schedule.is_slot(moment):
        next_slot = schedule.next_after(moment or row.now)
        raise ValueError(
            f"The schedule {row.spec.schedule!r} ({row.spec.timezone}) of {row.spec.name!r} "
            f"has no slot at {moment}. The next one is at {next_slot}."
        )
    return moment


def _insert_slot(state: State, row: DefinitionRow, moment: datetime) -> RecordedSlot:
    """Insert the row of a definition's slot, but leave the slots before it due.

    :raises StateConflict: the slot has a row already.
    """
    slots = {row.id: (Slot(moment),)}
    with state.bookkeeping() as books:
        recorded_slots = books.transaction(partial(insert_slots, d=books.dialect, slots=slots))
    if not recorded_slots:
        raise StateConflict(
            f"The slot of {row.spec.name!r} at {moment} already has a run. Fire another slot: at=…"
        )
    announce_slot(state, recorded_slots[0])
    return recorded_slots[0]


def _aware(moment: datetime) -> datetime:
    """Return *moment* if it is an aware time.

    :raises ValueError: *moment* is naive, or not a time.
    """
    MOMENT.check("The time", moment, ValueError)
    return moment
