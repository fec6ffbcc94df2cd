"""FAULTS: a handler that ends with uncommitted work in ``db.session`` is reported."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, delete, insert, select, text, update
from sqlalchemy.orm import sessionmaker

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.current import CurrentRun, run_here
from flask_cronjobs.core.uncommitted import left_in, watch_writes
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.models import JobRun, JobTick

Do = Callable[[SQLAlchemy], Any]


def add(db: SQLAlchemy) -> None:
    db.session.add(JobTick(worker="w", host="h", pid=1))


def flush(db: SQLAlchemy) -> None:
    add(db)
    db.session.flush()


def flush_and_add(db: SQLAlchemy) -> None:
    flush(db)
    add(db)
    add(db)


def change(db: SQLAlchemy) -> None:
    db.session.scalars(select(JobTick)).first().pid = 7  # type: ignore[union-attr]


def change_and_flush(db: SQLAlchemy) -> None:
    change(db)
    db.session.flush()


def remove(db: SQLAlchemy) -> None:
    db.session.delete(db.session.scalars(select(JobTick)).first())


def core(db: SQLAlchemy) -> None:
    db.session.execute(insert(JobTick).values(worker="w", host="h", pid=1))
    db.session.execute(update(JobTick).values(pid=2))
    db.session.execute(delete(JobTick).where(JobTick.pid == 0))


def by_text(db: SQLAlchemy) -> None:
    db.session.execute(text("  delete FROM job_failures"))
    db.session.execute(text("WITH a AS (SELECT 1) UPDATE job_effects SET key = 'k'"))


def after_a_commit(db: SQLAlchemy) -> None:
    flush(db)
    db.session.commit()
    add(db)


def beside_a_savepoint(db: SQLAlchemy) -> None:
    flush(db)
    with db.session.begin_nested() as inner:
        flush(db)
        inner.rollback()


LOST: list[tuple[Do, str]] = [
    (add, "1 new object"),
    (flush, "1 INSERT statement"),
    (change, "1 changed object"),
    (change_and_flush, "1 UPDATE statement"),
    (remove, "1 deleted object"),
    (core, "1 INSERT, 1 UPDATE, 1 DELETE statements"),
    (by_text, "1 DELETE, 1 UPDATE statements"),
    (flush_and_add, "2 new objects and 1 INSERT statement"),
    (after_a_commit, "1 new object"),
    (beside_a_savepoint, "1 INSERT statement"),
]


@pytest.mark.parametrize(("do", "what"), LOST)
def test_uncommitted_work_is_logged_and_kept_with_the_run(
    perform: Callable[..., JobRun],
    db: SQLAlchemy,
    state: State,
    do: Do,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = perform(lambda: do(db) and None)
    expected = f"Ended with uncommitted work in db.session, so it is lost: {what}. Call db.session"
    assert (run.status, run.error_type) == ("succeeded", "UncommittedWork")
    assert (run.last_error or "").startswith(expected)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage() == f"task it, run {run.id}: {run.last_error}"
    view = find_run(state, run.id)
    assert view is not None
    assert (view.attempts[0].error, view.attempts[0].error_type) == (
        run.last_error,
        "UncommittedWork",
    )


def commit(db: SQLAlchemy) -> None:
    core(db)
    add(db)
    db.session.commit()


def roll_back(db: SQLAlchemy) -> None:
    core(db)
    add(db)
    db.session.rollback()
    read(db)


def read(db: SQLAlchemy) -> None:
    for tick in db.session.scalars(select(JobTick)):
        tick.pid = tick.pid
    db.session.execute(text("SELECT 'insert', 'update', 'delete'"))
    db.session.execute(text("WITH a AS (SELECT 1 AS inserted) SELECT replace('a', 'b', 'c')"))
    if db.engine.dialect.name == "postgresql":
        lock = "WITH a AS (SELECT 1) SELECT id FROM job_ticks FOR UPDATE"
        db.session.execute(text(lock))
        db.session.execute(text(lock.replace("FOR", "FOR NO KEY")))


def nest_and_roll_back(db: SQLAlchemy) -> None:
    read(db)
    with db.session.begin_nested() as inner:
        flush(db)
        inner.rollback()


@pytest.mark.parametrize("do", [commit, roll_back, read, nest_and_roll_back, lambda db: None])
def test_nothing_is_logged_if_nothing_is_lost(
    perform: Callable[..., JobRun], db: SQLAlchemy, do: Do, caplog: pytest.LogCaptureFixture
) -> None:
    for options in ({}, {"name": "atomic", "atomic": True}):
        work = core if options and do is commit else do  # An atomic handler commits without help.
        run = perform(lambda work=work: work(db), **options)
        assert (run.status, run.last_error, run.error_type) == ("succeeded", None, None)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_failed_attempt_has_its_own_error(perform: Callable[..., JobRun], db: SQLAlchemy) -> None:
    def handler() -> None:
        flush(db)
        raise ValueError("broken")

    run = perform(handler)
    assert (run.status, run.last_error) == ("dead", "broken")


def test_work_that_a_teardown_commits_is_not_lost(
    app: Flask, perform: Callable[..., JobRun], db: SQLAlchemy
) -> None:
    @app.teardown_appcontext
    def commit_all(error: BaseException | None) -> None:
        db.session.commit()

    assert perform(lambda: flush(db)).last_error is None


def test_runs_enqueued_and_not_committed_are_named(
    jobs: CronJobs, perform: Callable[..., JobRun], db: SQLAlchemy
) -> None:
    @jobs.task
    def other() -> None: ...

    def alone() -> None:
        other.enqueue()

    run = perform(alone)
    assert "Enqueued and never committed, so lost: other (run " in (run.last_error or "")
    assert "uncommitted work" not in (run.last_error or "")

    def both() -> None:
        other.enqueue()
        add(db)

    run = perform(both, name="both")
    assert "so it is lost: 1 new object. Enqueued and never" in (run.last_error or "")


def test_runs_of_a_session_that_was_removed_are_named_though_the_next_commits(
    jobs: CronJobs, perform: Callable[..., JobRun], db: SQLAlchemy
) -> None:
    @jobs.task
    def other() -> None: ...

    def handler() -> None:
        other.enqueue()
        db.session.remove()
        flush(db)
        db.session.commit()

    run = perform(handler)
    assert "Enqueued and never committed, so lost: other (run " in (run.last_error or "")


@pytest.mark.usefixtures("context")
def test_tick_says_which_runs_it_cannot_see(
    jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    if db.engine.dialect.name == "sqlite":
        pytest.skip("There, a tick is refused while the session holds the write lock.")

    @jobs.task
    def other() -> None: ...

    run = other.enqueue()
    jobs.tick()
    assert f"tick does not see them: other (run {run.id}). Call" in caplog.text
    db.session.commit()
    caplog.clear()
    assert jobs.tick().succeeded == 1
    assert caplog.text == ""


def test_each_app_is_watched_even_at_the_address_of_an_earlier_one(engine: Engine) -> None:
    """Tests, for example, make one app after the other."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE work (label text)"))
    token = run_here.set(cast(CurrentRun, object()))
    gc.disable()  # A collection could remove what SQLAlchemy still has of the earlier app.
    try:
        for _ in range(3):
            factory = sessionmaker(engine)
            with factory() as session:
                db: Any = SimpleNamespace(sessionmaker=factory, open_session=lambda it=session: it)
                watch_writes(db)
                session.execute(text("INSERT INTO work VALUES ('a')"))
                assert left_in(db) == "1 INSERT statement"
            del factory, session, db
    finally:
        gc.enable()
        run_here.reset(token)
