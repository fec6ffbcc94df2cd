"""``using(commit=True)`` commits the session, by one statement where nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from flask_cronjobs import CronJobs, KeyConflict, Task
from flask_cronjobs.models import JobEffect, JobRun
from flask_cronjobs.store.autocommit import can_autocommit
from tests.marks import on_postgresql
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("context")

SentStatements = list[tuple[str, TransactionStatus]]


@pytest.fixture
def work(jobs: CronJobs) -> Task[[int], None]:
    """A task whose runs are committed at once."""

    @jobs.task
    def work(number: int) -> None: ...

    return work.using(commit=True)


@pytest.fixture
def sent(context: None, db: SQLAlchemy, jobs: CronJobs) -> SentStatements:
    """The verbs of the statements sent, each with the state of its transaction afterwards."""
    statements: SentStatements = []

    def note(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        driver: Any = connection.connection.dbapi_connection
        statements.append((statement.split()[0], driver.info.transaction_status))

    event.listen(db.engine, "after_cursor_execute", note)
    return statements


def runs(db: SQLAlchemy) -> int:
    """Return how many runs another connection sees."""
    with db.engine.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM job_runs")) or 0)


def test_run_is_there_and_the_session_is_free(db: SQLAlchemy, work: Task[[int], None]) -> None:
    run = work.enqueue(1)
    assert not db.session().in_transaction()
    assert runs(db) == 1
    assert (run.is_new, run.status, run.payload) == (True, "queued", {"number": 1})


def test_what_waits_in_the_session_is_committed_with_it(
    db: SQLAlchemy, work: Task[[int], None]
) -> None:
    db.session.add(JobEffect(key="mine", state="in_doubt"))
    work.enqueue(1)
    db.session.rollback()
    assert db.session.query(JobEffect).count() == 1
    assert runs(db) == 1


def test_key_that_exists_gives_its_run(
    db: SQLAlchemy, jobs: CronJobs, work: Task[[int], None]
) -> None:
    first = work.using(idempotency_key="k").enqueue(1)
    again = work.using(idempotency_key="k").enqueue(1)
    assert (again.id, again.is_new, runs(db)) == (first.id, False, 1)
    other = jobs.task(name="other")(lambda: None)
    with pytest.raises(KeyConflict):
        other.using(idempotency_key="k", commit=True).enqueue()
    db.session.rollback()
    replaced = work.using(idempotency_key="r", replace=True)
    waiting = replaced.enqueue(1)
    replaced.enqueue(2)
    assert (waiting.payload, runs(db)) == ({"number": 2}, 2)


@on_postgresql
def test_insert_is_the_whole_transaction(
    db: SQLAlchemy, work: Task[[int], None], sent: SentStatements
) -> None:
    work.enqueue(1)
    assert sent == [("INSERT", TransactionStatus.IDLE)]
    db.session.execute(text("SELECT 1"))
    assert sent[1:] == [("SELECT", TransactionStatus.INTRANS)]  # As the connection was before.


@on_postgresql
def test_statement_that_fails_leaves_the_session_as_it_was(
    db: SQLAlchemy, work: Task[[int], None], rows: Rows
) -> None:
    db.session.execute(text("ALTER TABLE job_runs ADD CHECK (priority < 5)"))
    db.session.commit()
    with pytest.raises(DBAPIError):
        work.using(priority=7).enqueue(1)
    db.session.rollback()
    work.enqueue(2)
    assert runs(db) == 1


@on_postgresql
def test_a_transaction_in_two_phases_is_left_to_the_session(db: SQLAlchemy, jobs: CronJobs) -> None:
    with Session(db.engine) as session:
        assert can_autocommit(session, {})
    with Session(db.engine, twophase=True) as session:
        assert not can_autocommit(session, {})


@on_postgresql
class TestItIsATransactionOfTheSession:
    """Somebody could tell the difference."""

    @pytest.fixture(autouse=True)
    def in_transaction(self, sent: SentStatements) -> Any:
        """Each INSERT is followed by a COMMIT."""
        yield
        inserts = [status for verb, status in sent if verb == "INSERT"]
        assert inserts
        assert set(inserts) == {TransactionStatus.INTRANS}

    def test_it_has_begun_one(self, db: SQLAlchemy, work: Task[[int], None]) -> None:
        db.session.execute(text("CREATE TABLE mine (id int)"))
        work.enqueue(1)
        assert "mine" in inspect(db.engine).get_table_names()

    @pytest.mark.parametrize("name", ["after_begin", "before_commit"])
    def test_the_app_hears_of_its_sessions(
        self, db: SQLAlchemy, work: Task[[int], None], name: str, heard: Callable[..., None]
    ) -> None:
        event.listen(db.session, name, heard)
        work.enqueue(1)

    @pytest.mark.parametrize("name", ["begin", "commit"])
    def test_the_app_hears_of_its_engine(
        self, db: SQLAlchemy, work: Task[[int], None], name: str, heard: Callable[..., None]
    ) -> None:
        event.listen(db.engine, name, heard)
        work.enqueue(1)

    def test_a_listener_refuses_the_commit(self, db: SQLAlchemy, work: Task[[int], None]) -> None:
        def refuse(session: Session) -> None:
            raise PermissionError

        event.listen(db.session, "before_commit", refuse)
        with pytest.raises(PermissionError):
            work.enqueue(1)
        db.session.rollback()
        assert runs(db) == 0

    def test_it_is_bound_to_a_connection(
        self, db: SQLAlchemy, work: Task[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of tests that roll everything back at their end."""
        with db.engine.connect() as connection, connection.begin() as outer:
            bound = sessionmaker(connection, join_transaction_mode="create_savepoint")
            monkeypatch.setattr(db, "session", scoped_session(bound))
            work.enqueue(1)
            db.session.remove()
            outer.rollback()
        assert runs(db) == 0

    @pytest.fixture
    def heard(self) -> Any:
        """A listener that is called."""
        calls: list[object] = []
        yield lambda *arguments: calls.append(arguments)
        assert calls


def test_handlers_runs_are_counted_once(
    db: SQLAlchemy, jobs: CronJobs, work: Task[[int], None]
) -> None:
    """A handler may enqueue so, too; nothing of it is said to be uncommitted."""

    @jobs.task
    def parent() -> None:
        work.enqueue(1)
        work.enqueue(2)

    run = parent.using(commit=True).enqueue()
    assert jobs.tick().succeeded == 3
    db.session.refresh(run)
    assert run.last_error is None
    assert db.session.query(JobRun).count() == 3
