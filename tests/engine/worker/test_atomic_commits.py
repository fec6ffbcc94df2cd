"""FAULTS: a handler with `atomic=True` that ends the transaction behind the session's back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session
from sqlalchemy import Engine, UpdateBase, column, event, insert, table, text

from flask_cronjobs import CronJobs, Retry, Snooze, run_started
from flask_cronjobs.db.transactions import TransactionWatch
from flask_cronjobs.errors import TimedOut
from flask_cronjobs.models import JobRun
from tests.marks import on_sqlite

from .conftest import labels, write

pytestmark = pytest.mark.usefixtures("table")

Do = Callable[[SQLAlchemy], None]


@pytest.fixture
def binds(database_url: str, tmp_path: Path) -> dict[str, str]:
    """Another database, and the same one."""
    return {"other": f"sqlite:///{tmp_path / 'other.sqlite'}", "same": database_url}


def driver(db: SQLAlchemy) -> Any:
    return db.session.connection().connection.dbapi_connection


def by_text(db: SQLAlchemy) -> None:
    write(db, "early")
    db.session.execute(text("COMMIT"))


def by_text_and_more(db: SQLAlchemy) -> None:
    by_text(db)
    write(db, "late")


def by_driver(db: SQLAlchemy) -> None:
    write(db, "early")
    driver(db).commit()


def by_driver_and_more(db: SQLAlchemy) -> None:
    by_driver(db)
    write(db, "late")
    write(db, "later")


def by_driver_and_a_new_transaction(db: SQLAlchemy) -> None:
    """Which the session's rollback takes back, and cannot tell from its own."""
    by_driver(db)
    driver(db).execute("INSERT INTO work VALUES ('late')")


def by_driver_alone(db: SQLAlchemy) -> None:
    driver(db).execute("INSERT INTO work VALUES ('early')")
    driver(db).commit()


def after_a_rollback(db: SQLAlchemy) -> None:
    write(db, "gone")
    db.session.rollback()
    by_driver_and_more(db)


def after_reading(db: SQLAlchemy) -> None:
    db.session.scalar(text("SELECT count(*) FROM work"))
    by_text_and_more(db)


COMMITS = [
    by_text, by_text_and_more, by_driver, by_driver_and_more, by_driver_and_a_new_transaction,
    by_driver_alone, after_a_rollback, after_reading,
]  # fmt: skip


def performed(
    jobs: CronJobs, db: SQLAlchemy, handler: Callable[[], None], **options: Any
) -> JobRun:
    again = Retry(max_attempts=3, base=0)
    task = jobs.task(name="it", atomic=True, retry=again, **options)(handler)
    run_id = task.using(commit=True).enqueue().id
    jobs.tick()
    db.session.remove()
    return db.session.get_one(JobRun, run_id)


@pytest.mark.parametrize("commit", COMMITS)
def test_commit_behind_the_session_is_noticed_and_not_repeated(
    jobs: CronJobs, db: SQLAlchemy, commit: Callable[[SQLAlchemy], None]
) -> None:
    closed: list[Any] = []
    event.listen(db.engine, "invalidate", lambda driver, record, error: closed.append(driver))
    run = performed(jobs, db, lambda: commit(db))
    assert (run.status, run.attempts, run.error_type) == ("dead", 1, "AtomicCommit")
    assert "ended the transaction of db.session" in (run.last_error or "")
    assert (labels(db), closed) == (["early"], [])


def by_driver_and_rollback(db: SQLAlchemy) -> None:
    by_driver(db)
    db.session.rollback()


class Broken(Exception):
    """What a handler raises after its commit."""


def by_value_error(db: SQLAlchemy) -> None:
    raise Broken


def by_statement(db: SQLAlchemy) -> None:
    db.session.execute(text("SELECT * FROM nowhere"))


def by_timeout(db: SQLAlchemy) -> None:
    while True:
        ...


def by_session_commit(db: SQLAlchemy) -> None:
    db.session.commit()


def by_snooze(db: SQLAlchemy) -> None:
    raise Snooze(1)


FAILS = [by_statement, by_timeout, by_session_commit, by_snooze]
#: Each commit before one failure, and two before each failure.
COMMITS_AND_FAILS = [
    *((commit, by_value_error) for commit in [*COMMITS, by_driver_and_rollback]),
    *((commit, fail) for commit in (by_text, by_driver_and_more) for fail in FAILS),
]


@pytest.mark.parametrize(("commit", "fail"), COMMITS_AND_FAILS)
def test_commit_before_a_failure_is_noticed_and_not_repeated(
    jobs: CronJobs, db: SQLAlchemy, commit: Do, fail: Do
) -> None:
    def handler() -> None:
        commit(db)
        fail(db)

    run = performed(jobs, db, handler, timeout=1 if fail is by_timeout else 60)
    assert (run.status, run.attempts, run.error_type) == ("dead", 1, "AtomicCommit")
    assert "ended the transaction of db.session" in (run.last_error or "")
    assert labels(db) == ["early"]


@pytest.mark.parametrize("left_open", [0, 2], ids=["", "in savepoints"])
@pytest.mark.parametrize(
    ("fail", "error_type"),
    [(by_value_error, "Broken"), (by_statement, "Error"), (by_timeout, "TimedOut")],
)
def test_failure_without_a_commit_is_what_it_is(
    jobs: CronJobs, db: SQLAlchemy, fail: Do, error_type: str, left_open: int
) -> None:
    def handler() -> None:
        write(db, "gone")
        for _ in range(left_open):
            db.session.begin_nested()
            write(db, "gone")
        fail(db)

    run = performed(jobs, db, handler, timeout=1 if fail is by_timeout else 60)
    assert (run.status, run.attempts) == ("dead", 3)
    assert error_type in (run.error_type or "")
    assert "savepoint" not in (run.last_error or "")
    assert labels(db) == []


@pytest.mark.parametrize("handled", [False, True], ids=["raised", "rolled back"])
def test_rollback_of_the_database_s_own_is_no_commit(
    jobs: CronJobs, db: SQLAlchemy, handled: bool
) -> None:
    """As SQLite rolls back if the disk is full, and PostgreSQL at a commit that it refuses."""
    with db.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("CREATE TABLE strict (label text UNIQUE ON CONFLICT ROLLBACK)"))
        else:
            unique = "UNIQUE DEFERRABLE INITIALLY DEFERRED"
            connection.execute(text(f"CREATE TABLE strict (label text {unique})"))

    def handler() -> None:
        write(db, "gone")
        try:
            for _ in range(2):
                db.session.execute(text("INSERT INTO strict VALUES ('same')"))
            db.session.execute(text("COMMIT"))
        except Exception as error:
            if handled:
                db.session.rollback()
            raise Broken from error

    run = performed(jobs, db, handler)
    assert (run.status, run.attempts) == ("dead", 3)
    assert (run.error_type or "").endswith("Broken")
    assert labels(db) == []


def test_ctrl_c_after_a_commit_still_stops_the_worker(jobs: CronJobs, db: SQLAlchemy) -> None:
    performed_too: list[int] = []
    jobs.task(name="second", priority=-1)(lambda: performed_too.append(1))

    def handler() -> None:
        by_text(db)
        raise KeyboardInterrupt

    jobs.task(name="it", atomic=True, retry=3)(handler)
    run_id = jobs.enqueue("it").id
    jobs.enqueue("second")
    db.session.commit()
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    db.session.remove()
    run = db.session.get_one(JobRun, run_id)
    assert (run.status, run.error_type, performed_too) == ("dead", "AtomicCommit", [])


@pytest.mark.parametrize("engine_options", [{"isolation_level": "AUTOCOMMIT"}], indirect=True)
def test_it_is_noticed_also_if_the_engine_commits_by_itself(jobs: CronJobs, db: SQLAlchemy) -> None:
    run = performed(jobs, db, lambda: by_driver_and_more(db))
    assert (run.status, run.error_type) == ("dead", "AtomicCommit")
    assert labels(db) == ["early"]


def read(db: SQLAlchemy) -> None:
    db.session.scalar(text("SELECT count(*) FROM work"))


def begin_again(db: SQLAlchemy) -> None:
    write(db, "gone")
    db.session.rollback()
    write(db, "kept")


def nest(db: SQLAlchemy) -> None:
    write(db, "kept")
    for _ in range(2):
        with db.session.begin_nested():
            write(db, "kept")
    with db.session.begin_nested() as inner:
        write(db, "gone")
        inner.rollback()


def nest_openly(db: SQLAlchemy) -> None:
    for _ in range(2):
        write(db, "kept")
        db.session.begin_nested()


def alone(db: SQLAlchemy) -> None:
    driver(db).execute("INSERT INTO work VALUES ('kept')")


def only_begin(db: SQLAlchemy) -> None:
    db.session.connection()


@pytest.mark.parametrize(
    "do", [read, begin_again, nest, nest_openly, alone, only_begin, lambda db: None]
)
def test_what_does_not_commit_is_no_error(
    jobs: CronJobs, db: SQLAlchemy, do: Callable[[SQLAlchemy], None]
) -> None:
    run = performed(jobs, db, lambda: do(db))
    assert (run.status, run.last_error) == ("succeeded", None)
    assert set(labels(db)) <= {"kept"}


class TestFurtherBinds:
    """`atomic=True` covers the default database; what a handler does in others is its affair."""

    @pytest.mark.parametrize("bind", ["other", "same"])
    def test_reading_another_bind_is_no_error(
        self, jobs: CronJobs, db: SQLAlchemy, bind: str
    ) -> None:
        def handler() -> None:
            write(db, "kept")
            use(db, bind, "SELECT 1")

        run = performed(jobs, db, handler)
        assert (run.status, run.last_error) == ("succeeded", None)
        assert labels(db) == ["kept"]

    def test_writing_to_another_bind_is_committed_too(self, jobs: CronJobs, db: SQLAlchemy) -> None:
        def handler() -> None:
            write(db, "kept")
            use(db, "other", "CREATE TABLE notes (note text)")
            use(db, "other", "INSERT INTO notes VALUES ('there')")

        assert performed(jobs, db, handler).status == "succeeded"
        with db.engines["other"].connect() as other:
            assert other.scalar(text("SELECT count(*) FROM notes")) == 1

    @pytest.mark.parametrize("bind", ["other", "same"])
    @pytest.mark.parametrize("commit", [by_text, by_driver_and_more])
    def test_commit_is_noticed_beside_another_bind(
        self, jobs: CronJobs, db: SQLAlchemy, commit: Do, bind: str
    ) -> None:
        def handler() -> None:
            db.session.connection()
            use(db, bind, "SELECT 1")
            commit(db)
            use(db, bind, "SELECT 1")

        run = performed(jobs, db, handler)
        assert (run.status, run.attempts, run.error_type) == ("dead", 1, "AtomicCommit")

    def test_a_session_that_reads_elsewhere_is_atomic(
        self, jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def routed(self: Session, mapper: Any = None, clause: Any = None, **_: Any) -> Engine:
            writes = self._flushing or isinstance(clause, UpdateBase)
            return db.engine if writes else db.engines["same"]

        def handler() -> None:
            db.session.scalar(text("SELECT count(*) FROM work"))
            db.session.execute(insert(table("work", column("label"))), {"label": "kept"})

        monkeypatch.setattr(Session, "get_bind", routed)
        run = performed(jobs, db, handler)
        assert (run.status, run.last_error) == ("succeeded", None)
        assert labels(db) == ["kept"]


def use(db: SQLAlchemy, bind: str, statement: str) -> None:
    db.session.execute(text(statement), bind_arguments={"bind": db.engines[bind]})


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_commit_in_a_transaction_that_was_open_before_is_noticed(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, fails: bool
) -> None:
    def handler() -> None:
        by_driver(db)
        if fails:
            raise Broken

    with run_started.connected_to(lambda *_, **__: read(db), app):
        run = performed(jobs, db, handler)
    assert (run.status, run.attempts, run.error_type) == ("dead", 1, "AtomicCommit")


def test_it_costs_two_small_statements(
    jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def execute(self: TransactionWatch, statement: str) -> None:
        sent.append(statement.split()[0])
        plain(self, statement)

    plain = TransactionWatch._execute
    monkeypatch.setattr(TransactionWatch, "_execute", execute)
    assert performed(jobs, db, lambda: write(db, "kept")).status == "succeeded"
    begin = [] if db.engine.dialect.name == "postgresql" else ["BEGIN"]  # Else sqlite3 sends it.
    assert sent == [*begin, "SAVEPOINT", "RELEASE"]


@pytest.mark.parametrize("verb", ["SAVEPOINT", "RELEASE"])
def test_connection_whose_savepoint_is_interrupted_is_used_no_more(
    jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Nobody knows what the server has made of the statement, so it must not go to the pool."""
    interrupted: list[Any] = []
    closed: list[Any] = []
    event.listen(db.engine, "invalidate", lambda driver, record, error: closed.append(driver))

    def execute(self: TransactionWatch, statement: str) -> None:
        if statement.startswith(verb) and not interrupted:
            driver = self._driver
            interrupted.append(driver)

            def cursor() -> Any:
                self._driver = driver
                raise TimedOut("while the statement was under way")

            self._driver = SimpleNamespace(cursor=cursor)
        plain(self, statement)

    plain = TransactionWatch._execute
    monkeypatch.setattr(TransactionWatch, "_execute", execute)
    run = performed(jobs, db, lambda: write(db, "kept"))
    assert (run.status, run.attempts, labels(db)) == ("succeeded", 2, ["kept"])
    assert closed == interrupted


@on_sqlite
def test_handler_that_reads_before_it_writes_does_not_mind_other_writers(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    """SQLite refuses to write in a transaction that has read what is old by now."""

    def handler() -> None:
        db.session.scalars(text("SELECT label FROM work")).all()
        with db.engine.begin() as other:
            other.execute(text("INSERT INTO work VALUES ('theirs')"))
        write(db, "kept")

    run = performed(jobs, db, handler)
    assert (run.status, run.last_error) == ("succeeded", None)
    assert labels(db) == ["kept", "theirs"]
