"""Handlers with `atomic=True` may use their transaction in any way except committing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session
from sqlalchemy import Engine, UpdateBase, column, insert, table, text

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.models import JobRun
from tests.handlers import labels, write
from tests.marks import on_sqlite

pytestmark = pytest.mark.usefixtures("table")

Do = Callable[[SQLAlchemy], None]


@pytest.fixture
def binds(database_url: str, tmp_path: Path) -> dict[str, str]:
    """Another database, and the same one again."""
    return {"other": f"sqlite:///{tmp_path / 'other.sqlite'}", "same": database_url}


def driver(db: SQLAlchemy) -> Any:
    return db.session.connection().connection.dbapi_connection


def performed(
    jobs: CronJobs, db: SQLAlchemy, handler: Callable[[], None], **options: Any
) -> JobRun:
    again = Retry(max_attempts=3, base=0)
    task = jobs.task(name="it", atomic=True, retry=again, **options)(handler)
    run_id = task.using(commit=True).enqueue().id
    jobs.tick()
    db.session.remove()
    return db.session.get_one(JobRun, run_id)


class Broken(Exception):
    """The error that a handler raises."""


def by_value_error(db: SQLAlchemy) -> None:
    raise Broken


def by_statement(db: SQLAlchemy) -> None:
    db.session.execute(text("SELECT * FROM nowhere"))


def by_timeout(db: SQLAlchemy) -> None:
    while True:
        ...


@pytest.mark.parametrize("left_open", [0, 2], ids=["", "in savepoints"])
@pytest.mark.parametrize(
    ("fail", "error_type"),
    [(by_value_error, "Broken"), (by_statement, "Error"), (by_timeout, "TimedOut")],
)
def test_failure_without_a_commit_keeps_its_own_error(
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
    """`atomic=True` covers the default database only; other databases are the handler's affair."""

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


@on_sqlite
def test_handler_that_reads_before_it_writes_does_not_mind_other_writers(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    """SQLite refuses a write if the transaction's snapshot is outdated."""

    def handler() -> None:
        db.session.scalars(text("SELECT label FROM work")).all()
        with db.engine.begin() as writer:
            writer.execute(text("INSERT INTO work VALUES ('theirs')"))
        write(db, "kept")

    run = performed(jobs, db, handler)
    assert (run.status, run.last_error) == ("succeeded", None)
    assert labels(db) == ["kept", "theirs"]
