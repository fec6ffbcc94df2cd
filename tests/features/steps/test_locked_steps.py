"""FAULTS: no wait in a step's commit blocks an interruption or a lost lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text

from flask_cronjobs import CronJobs, Retry, TickReport
from flask_cronjobs.db import connection as connection_module
from flask_cronjobs.log import logger
from flask_cronjobs.models import JobRun, JobStep
from tests.handlers import Enqueue, ends, labels, write
from tests.marks import on_postgresql
from tests.rows import the_run

Tick = Callable[[], TickReport]
pytestmark = pytest.mark.usefixtures("table")

#: After how many seconds an open transaction ends by itself, so that no fault hangs the tests.
LONG = 15.0
ROW = "SELECT id FROM job_runs WHERE id = 1 FOR UPDATE"
SIGNAL = (
    "INSERT INTO job_steps (run_id, name, kind, result, finished_at)"
    " VALUES (1, 'approved', 'wait', '1', now())"
)


class Locker:
    """Another client's transaction."""

    def __init__(self, db: SQLAlchemy) -> None:
        self.engine = db.engine
        self.ended = threading.Event()
        self._locked = threading.Event()
        self.late = False

    def lock(self, statement: str) -> None:
        """Hold a lock until `ended` is set."""
        self._thread = threading.Thread(target=self._hold, args=(statement,))
        self._thread.start()
        assert self._locked.wait(LONG)

    def _hold(self, statement: str) -> None:
        with self.engine.connect() as connection:
            connection.execute(text(statement))
            self._locked.set()
            self.late = not self.ended.wait(LONG)

    def end(self) -> None:
        """End the transaction."""
        self.ended.set()
        self._thread.join()


@pytest.fixture
def locker(context: None, db: SQLAlchemy) -> Iterator[Locker]:
    locker = Locker(db)
    yield locker
    locker.end()


@on_postgresql
@pytest.mark.parametrize("what", ["step", "chunk", "wait"])
def test_async_handlers_go_on_while_a_step_beside_them_finds_its_row_locked(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, locker: Locker,
    caplog: pytest.LogCaptureFixture, what: str,
) -> None:  # fmt: skip
    async def work() -> None:
        write(db, "done")
        locker.lock(ROW)

    async def find(after: Any) -> list[int]:
        return [] if after else [1]

    async def stepper() -> None:
        if what == "step":
            await jobs.step("a", work)
        elif what == "chunk":
            async for _ in jobs.each("a", find):
                await work()
        else:
            locker.lock(SIGNAL)
            jobs.wait("approved", 60)

    async def beside() -> None:
        while " waits. " not in caplog.text:
            await asyncio.sleep(0.01)
        locker.ended.set()

    enqueue(stepper)
    enqueue(beside)
    report = tick()
    assert (locker.late, report.failed) == (False, 0)
    assert "End that" in caplog.text
    if what == "wait":
        db.session.rollback()
        assert db.session.get_one(JobRun, 1).status == "queued"
    else:
        assert ends(db) == [("succeeded", None)] * 2
        assert labels(db) == ["done"]
        assert "Its row is locked by the database's process" in caplog.text


@on_postgresql
def test_a_wait_that_is_put_off_ends_the_attempt_though_the_handler_swallows_that(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, locker: Locker
) -> None:
    async def order() -> str:
        locker.lock(SIGNAL)
        with suppress(BaseException):
            jobs.wait("approved", 60)
        return "too early"

    enqueue(order)
    report = tick()
    assert (report.snoozed, report.succeeded, locker.late) == (1, 0, False)
    assert the_run(db).status == "queued"


@on_postgresql
@pytest.mark.parametrize("what", ["step", "wait", "atomic"])
def test_a_step_whose_row_is_locked_can_be_interrupted(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, locker: Locker, what: str
) -> None:
    def stepper() -> None:
        if what == "step":
            jobs.step("a", locker.lock, ROW)
        if what == "atomic":
            write(db, "undone")
            locker.lock(ROW)
            event.listen(db.session(), "after_transaction_end", end)  # Its teardown closes it.
            return
        locker.lock(SIGNAL)
        jobs.wait("approved", 60)

    def end(*_: object) -> None:  # From now on, its outcome can be written.
        locker.ended.set()

    event.listen(db.session.session_factory.class_, "after_soft_rollback", end)
    try:
        enqueue(stepper, timeout=1, retry=False, atomic=what == "atomic")
        tick()
    finally:
        event.remove(db.session.session_factory.class_, "after_soft_rollback", end)
    assert not locker.late
    assert ends(db) == [("dead", "TimedOut")]
    assert labels(db) == []


@on_postgresql
def test_an_atomic_handler_whose_row_is_locked_commits_once_it_is_free(
    db: SQLAlchemy, tick: Tick, enqueue: Enqueue, locker: Locker, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> None:
        write(db, "done")
        locker.lock(ROW)

    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "its commit waits. Its row is locked" in record.getMessage():
                locker.ended.set()

    ending = Ending()
    logger.addHandler(ending)
    try:
        enqueue(handler, atomic=True, retry=False)
        tick()
    finally:
        logger.removeHandler(ending)
    assert not locker.late
    assert (ends(db), labels(db)) == ([("succeeded", None)], ["done"])


@on_postgresql
def test_the_commit_of_a_step_waits_for_locks_as_the_app_has_set_it(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    """The wait may come from a hook of the app's, or from a deferred constraint."""
    with db.engine.begin() as connection:
        for statement in (
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "UPDATE work SET label = current_setting('lock_timeout'); RETURN NULL; END $$",
            "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION note()",
        ):
            connection.execute(text(statement))

    def step() -> None:
        write(db, "")
        db.session.execute(text("SET LOCAL lock_timeout = '7s'"))

    enqueue(lambda: jobs.step("a", step))
    tick()
    assert labels(db) == ["7s"]


@on_postgresql
@pytest.mark.parametrize("what", ["step", "atomic"])
def test_a_statement_of_a_step_that_hangs_is_cancelled(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:  # fmt: skip
    on = {
        "step": "INSERT ON job_steps FOR EACH ROW",
        "atomic": "UPDATE ON job_runs FOR EACH ROW WHEN (NEW.status = 'succeeded')",
    }[what]
    with db.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(15); RETURN NEW; END $$"
            )
        )
        connection.execute(text(f"CREATE TRIGGER hang BEFORE {on} EXECUTE FUNCTION hang()"))
    init = connection_module.Bookkeeping.__init__

    def brief(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.limit = 0.5

    monkeypatch.setattr(connection_module.Bookkeeping, "__init__", brief)

    def handler() -> None:
        write(db, "gone") if what == "atomic" else jobs.step("a", write, db, "gone")

    enqueue(handler, retry=False, atomic=what == "atomic")
    tick()
    assert the_run(db).status == "dead"
    assert "canceling statement" in str(the_run(db).last_error)
    assert labels(db) == []


@contextmanager
def losing_the_answer(db: SQLAlchemy) -> Iterator[Callable[[], None]]:
    """Break the connection after the commit of the next step."""
    dialect: Any = db.engine.dialect
    commit = dialect.do_commit
    interrupted: list[str] = []

    def lose(connection: Any) -> None:
        commit(connection)
        if armed and not interrupted and threading.get_ident() == armed[0]:
            interrupted.append("lost")
            error: type[Exception] = dialect.loaded_dbapi.OperationalError
            raise error("server closed the connection unexpectedly")

    armed: list[int] = []
    dialect.do_commit = lose
    try:
        yield lambda: event.listen(
            db.session(), "before_commit", lambda _: armed.append(threading.get_ident()), once=True
        )
    finally:
        dialect.do_commit = commit
    assert interrupted


def raise_in_hook(db: SQLAlchemy) -> None:
    def fail_once(session: object) -> None:
        event.remove(db.session(), "after_commit", fail_once)
        raise RuntimeError("in a hook")

    event.listen(db.session(), "after_commit", fail_once)


@pytest.mark.parametrize("kind", ["step", "each", "sleep"])
@pytest.mark.parametrize("how", ["answer", "hook"])
@pytest.mark.parametrize("fails", [False, True], ids=["", "and then it fails"])
def test_an_attempt_whose_step_is_committed_goes_on_though_the_answer_is_lost(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue, how: str, kind: str, fails: bool
) -> None:
    """The attempt has advanced, so it does not count, whatever follows."""
    calls: list[str] = []

    def close() -> list[str]:
        calls.append("begins")
        trouble() if len(calls) == 1 else None
        if kind == "step":
            jobs.step("a", write, db, "a")
        elif kind == "each":
            for _ in jobs.each("a", lambda after: [] if after else [1]):
                write(db, "a")
        else:
            jobs.sleep("a", 0)
        jobs.step("b", write, db, "b")
        if fails and len(calls) == 1:
            raise RuntimeError("behind the steps")
        return calls

    def trouble() -> None:
        if how == "hook":
            raise_in_hook(db)
        else:
            arm()

    retry = Retry(max_attempts=1, base=0, jitter=False)
    with losing_the_answer(db) if how == "answer" else nullcontext(lambda: None) as arm:
        enqueue(close, retry=retry if fails else False)
        tick()
    run = the_run(db)
    assert run.status == "succeeded", run.last_error
    assert labels(db) == (["b"] if kind == "sleep" else ["a", "b"])
    assert db.session.query(JobStep).count() == 2
    assert db.session.query(JobRun).count() == 1
