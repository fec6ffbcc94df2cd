"""FAULTS: a handler with `atomic=True` that ends the transaction behind the session's back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.models import JobRun

Do = Callable[[str], None]


@pytest.fixture
def app(database_url: str, db: SQLAlchemy, options: dict[str, Any]) -> Iterator[Flask]:
    """An app with a table."""
    app = Flask("tests")
    app.config.update(SQLALCHEMY_DATABASE_URI=database_url, SQLALCHEMY_ENGINE_OPTIONS=options)
    db.init_app(app)
    with app.app_context():
        with db.engine.begin() as connection:
            connection.execute(text("CREATE TABLE work (label text)"))
        yield app
        db.session.remove()
        db.engine.dispose()


def work(db: SQLAlchemy, label: str) -> None:
    db.session.execute(text("INSERT INTO work VALUES (:label)"), {"label": label})


def driver(db: SQLAlchemy) -> Any:
    return db.session.connection().connection.dbapi_connection


def by_text(db: SQLAlchemy) -> None:
    work(db, "early")
    db.session.execute(text("COMMIT"))


def by_text_and_more(db: SQLAlchemy) -> None:
    by_text(db)
    work(db, "late")


def by_driver(db: SQLAlchemy) -> None:
    work(db, "early")
    driver(db).commit()


def by_driver_and_more(db: SQLAlchemy) -> None:
    by_driver(db)
    work(db, "late")
    work(db, "later")


def by_driver_alone(db: SQLAlchemy) -> None:
    driver(db).execute("INSERT INTO work VALUES ('early')")
    driver(db).commit()


def after_a_rollback(db: SQLAlchemy) -> None:
    work(db, "gone")
    db.session.rollback()
    by_driver_and_more(db)


def after_reading(db: SQLAlchemy) -> None:
    db.session.scalar(text("SELECT count(*) FROM work"))
    by_text_and_more(db)


COMMITS = [
    by_text, by_text_and_more, by_driver, by_driver_and_more, by_driver_alone, after_a_rollback,
    after_reading,
]  # fmt: skip


def performed(jobs: CronJobs, db: SQLAlchemy, handler: Callable[[], None]) -> JobRun:
    task = jobs.task(name="it", atomic=True, retry=Retry(max_attempts=3, base=0))(handler)
    run_id = task.using(commit=True).enqueue().id
    jobs.tick()
    db.session.remove()
    return db.session.get_one(JobRun, run_id)


def labels(db: SQLAlchemy) -> list[str]:
    return list(db.session.scalars(text("SELECT label FROM work ORDER BY label")))


@pytest.mark.parametrize("commit", COMMITS)
def test_commit_behind_the_session_is_noticed_and_not_repeated(
    jobs: CronJobs, db: SQLAlchemy, commit: Callable[[SQLAlchemy], None]
) -> None:
    run = performed(jobs, db, lambda: commit(db))
    assert (run.status, run.attempts, run.error_type) == ("dead", 1, "AtomicCommit")
    assert "ended the transaction of db.session" in (run.last_error or "")
    assert labels(db) == ["early"]


@pytest.mark.parametrize("options", [{"isolation_level": "AUTOCOMMIT"}], indirect=True)
def test_it_is_noticed_also_if_the_engine_commits_by_itself(jobs: CronJobs, db: SQLAlchemy) -> None:
    run = performed(jobs, db, lambda: by_driver_and_more(db))
    assert (run.status, run.error_type) == ("dead", "AtomicCommit")
    assert labels(db) == ["early"]


def read(db: SQLAlchemy) -> None:
    db.session.scalar(text("SELECT count(*) FROM work"))


def begin_again(db: SQLAlchemy) -> None:
    work(db, "gone")
    db.session.rollback()
    work(db, "kept")


def nest(db: SQLAlchemy) -> None:
    work(db, "kept")
    for _ in range(2):
        with db.session.begin_nested():
            work(db, "kept")
    with db.session.begin_nested() as inner:
        work(db, "gone")
        inner.rollback()


def alone(db: SQLAlchemy) -> None:
    driver(db).execute("INSERT INTO work VALUES ('kept')")


def only_begin(db: SQLAlchemy) -> None:
    db.session.connection()


@pytest.mark.parametrize("do", [read, begin_again, nest, alone, only_begin, lambda db: None])
def test_what_does_not_commit_is_no_error(
    jobs: CronJobs, db: SQLAlchemy, do: Callable[[SQLAlchemy], None]
) -> None:
    run = performed(jobs, db, lambda: do(db))
    assert (run.status, run.last_error) == ("succeeded", None)
    assert set(labels(db)) <= {"kept"}


def test_it_costs_two_small_statements_at_most(jobs: CronJobs, db: SQLAlchemy) -> None:
    sent: list[str] = []

    def note(_: Any, __: Any, sql: str, *___: Any) -> None:
        sent.append(sql)

    def handler() -> None:
        event.listen(db.engine, "before_cursor_execute", note)
        work(db, "kept")

    try:
        assert performed(jobs, db, handler).status == "succeeded"
    finally:
        event.remove(db.engine, "before_cursor_execute", note)
    own = [sql for sql in sent if "transaction_timestamp" in sql]
    assert len(own) == (2 if db.engine.dialect.name == "postgresql" else 0)
