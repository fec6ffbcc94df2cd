"""``using(commit=True)`` commits the session; if it raises, the enqueue leaves nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from flask_cronjobs import CronJobs, KeyConflict, StateConflict, Task
from flask_cronjobs.models import JobEffect, JobRun
from tests.marks import on_both

pytestmark = pytest.mark.usefixtures("context")

Work = Task[[int], None]
Fail = Callable[[SQLAlchemy, CronJobs], object]


@pytest.fixture
def work(jobs: CronJobs) -> Work:
    """A task whose runs are committed at once."""

    @jobs.task
    def work(number: int) -> None: ...

    return work.using(commit=True)


def rows(db: SQLAlchemy, table: str) -> int:
    """Return how many rows of a table another connection sees."""
    with db.engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


def runs(db: SQLAlchemy) -> int:
    """Return how many runs another connection sees."""
    return rows(db, "job_runs")


@on_both
def test_run_is_there_and_the_session_is_free(db: SQLAlchemy, work: Work) -> None:
    run = work.enqueue(1)
    assert not db.session().in_transaction()
    assert runs(db) == 1
    assert (run.is_new, run.status, run.payload) == (True, "queued", {"number": 1})


def test_other_work_in_the_session_is_committed_with_it(db: SQLAlchemy, work: Work) -> None:
    db.session.execute(text("CREATE TABLE mine (id int)"))
    db.session.add(JobEffect(key="mine", state="in_doubt"))
    work.enqueue(1)
    db.session.rollback()
    assert db.session.query(JobEffect).count() == 1
    assert "mine" in inspect(db.engine).get_table_names()
    assert runs(db) == 1


@pytest.mark.flask_sqlalchemy
@on_both
def test_it_commits_what_the_session_is_bound_to(
    db: SQLAlchemy, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that roll back everything at their end bind the session like this."""
    with db.engine.connect() as connection, connection.begin() as outer:
        bound = sessionmaker(connection, join_transaction_mode="create_savepoint")
        monkeypatch.setattr(db, "session", scoped_session(bound))
        work.enqueue(1)
        db.session.remove()
        outer.rollback()
    assert runs(db) == 0


@pytest.fixture
def listens(db: SQLAlchemy, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Return whether the app opens a connection as soon as a session begins a transaction."""

    def connect(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            session.connection()

    if request.param:
        event.listen(db.session, "after_transaction_create", connect)
    yield request.param
    if request.param:
        event.remove(db.session, "after_transaction_create", connect)


def on_a_key_of_another_task(db: SQLAlchemy, jobs: CronJobs) -> None:
    with pytest.raises(KeyConflict):
        jobs.get("work").using(idempotency_key="other's", commit=True).enqueue(1)


def on_a_key_among_many(db: SQLAlchemy, jobs: CronJobs) -> None:
    keyed = jobs.task(name="keyed", unique="other{end}")(lambda end: None)
    with pytest.raises(KeyConflict):
        keyed.using(commit=True).enqueue_many([{"end": "wise"}, {"end": "'s"}])


def on_a_run_that_keeps_its_order(db: SQLAlchemy, jobs: CronJobs) -> None:
    with pytest.raises(StateConflict):
        jobs.get("ordered").using(idempotency_key="place", replace=True, commit=True).enqueue(2)


def on_a_commit_that_is_refused(db: SQLAlchemy, jobs: CronJobs) -> None:
    def refuse(session: Session) -> None:
        raise PermissionError

    event.listen(db.session, "before_commit", refuse)
    try:
        with pytest.raises(PermissionError):
            jobs.get("work").using(commit=True).enqueue(1)
    finally:
        event.remove(db.session, "before_commit", refuse)


FAILS = [
    on_a_key_of_another_task, on_a_key_among_many, on_a_run_that_keeps_its_order,
    on_a_commit_that_is_refused,
]  # fmt: skip


@pytest.fixture
def held_keys(db: SQLAlchemy, jobs: CronJobs, work: Work) -> int:
    """Enqueue runs with keys that `FAILS` also use; return how many there are."""
    jobs.task(name="other")(lambda: None).using(idempotency_key="other's", commit=True).enqueue()

    @jobs.task(concurrency_key="{number}", order="strict")
    def ordered(number: int) -> None: ...

    ordered.using(idempotency_key="place", delay=100, commit=True).enqueue(1)
    return runs(db)


@on_both
@pytest.mark.parametrize("fail", FAILS)
@pytest.mark.parametrize("listens", [False, True], indirect=True, ids=["", "listened"])
class TestItRaises:
    """Whatever the error, the enqueue leaves nothing in the session."""

    def test_nothing_has_begun_and_a_rollback_rolls_back(
        self, db: SQLAlchemy, jobs: CronJobs, held_keys: int, fail: Fail, listens: bool
    ) -> None:
        fail(db, jobs)
        assert not db.session().in_transaction()
        db.session.add(JobEffect(key="mine", state="in_doubt"))
        db.session.flush()
        db.session.rollback()
        assert (rows(db, "job_effects"), runs(db)) == (0, held_keys)

    def test_earlier_work_is_left_for_the_app_to_commit(
        self, db: SQLAlchemy, jobs: CronJobs, held_keys: int, fail: Fail, listens: bool
    ) -> None:
        db.session.add(JobEffect(key="mine", state="in_doubt"))
        fail(db, jobs)
        assert (rows(db, "job_effects"), runs(db)) == (0, held_keys)
        db.session.commit()
        assert rows(db, "job_effects") == 1


@on_both
def test_lock_timeout_leaves_nothing_begun(db: SQLAlchemy, jobs: CronJobs, work: Work) -> None:
    """Another transaction has inserted the key, or holds SQLite's lock."""
    with db.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            db.session.execute(text("PRAGMA busy_timeout = 1"))
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            db.session.execute(text("SET lock_timeout = '50ms'"))
            connection.execute(
                text("INSERT INTO job_runs (job_type, idempotency_key) VALUES ('a', 'k')")
            )
        db.session.commit()
        with pytest.raises(DBAPIError):
            work.using(idempotency_key="k").enqueue(1)
        assert not db.session().in_transaction()
        connection.rollback()
    assert work.using(idempotency_key="k").enqueue(1).is_new
    assert runs(db) == 1


def test_handlers_runs_are_counted_once(db: SQLAlchemy, jobs: CronJobs, work: Work) -> None:
    """A handler may also commit at once; such a run is not reported as uncommitted."""

    @jobs.task
    def parent() -> None:
        work.enqueue(1)
        work.enqueue(2)

    run = parent.using(commit=True).enqueue()
    assert jobs.tick().succeeded == 3
    db.session.refresh(run)
    assert run.last_error is None
    assert db.session.query(JobRun).count() == 3
