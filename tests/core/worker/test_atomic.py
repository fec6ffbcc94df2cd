"""FAULTS: `atomic=True`: one commit has the handler's work and the run's success.

A step's work and its row are also one commit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask, appcontext_pushed
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text

from flask_cronjobs import CronJobs, TickReport, current_run, run_started
from tests.handlers import AGAIN, Enqueue, labels, write
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("table")

Tick = Callable[[], TickReport]
Do = Callable[[SQLAlchemy], None]
ISOLATION: list[dict[str, str]] = [
    {},
    {"isolation_level": "AUTOCOMMIT"},
    {"isolation_level": "REPEATABLE READ"},
    {"isolation_level": "SERIALIZABLE"},
]


@pytest.fixture(params=ISOLATION, ids=lambda options: options.get("isolation_level", "default"))
def engine_options(request: pytest.FixtureRequest, database_url: str) -> dict[str, str]:
    """The app's engine options: the isolation level that it chooses."""
    chosen: dict[str, str] = request.param
    if database_url.startswith("sqlite") and chosen.get("isolation_level") == "REPEATABLE READ":
        return {"isolation_level": "READ UNCOMMITTED"}  # SQLite has these instead.
    return chosen


def count(db: SQLAlchemy) -> int:
    return int(db.session.scalar(text("SELECT count(*) FROM work")) or 0)


def test_work_and_success_are_committed_together(
    db: SQLAlchemy, tick: Tick, enqueue: Enqueue
) -> None:
    counts: list[int | None] = []

    def book() -> str:
        write(db, "booked")
        with db.engine.connect() as reader:
            counts.append(reader.scalar(text("SELECT count(*) FROM work")))
        return "ok"

    enqueue(book, atomic=True)
    assert tick().succeeded == 1
    assert (labels(db), counts) == (["booked"], [0])
    run = the_run(db)
    assert (run.status, run.result, run.locked_by) == ("succeeded", "ok", None)


def plain(db: SQLAlchemy) -> None:
    """Add nothing to the work."""


def roll_back(db: SQLAlchemy) -> None:
    write(db, "taken back")
    db.session.rollback()


def nest(db: SQLAlchemy) -> None:
    with db.session.begin_nested():
        write(db, "kept in attempt 2" if current_run.attempt == 2 else "nested")
    with db.session.begin_nested() as inner:
        write(db, "taken back")
        inner.rollback()


@pytest.mark.parametrize(
    ("first", "used_before"), [(plain, False), (plain, True), (roll_back, False), (nest, False)]
)
def test_it_is_rolled_back_also_if_the_session_was_used_before(
    app: Flask, db: SQLAlchemy, tick: Tick, enqueue: Enqueue, first: Do, used_before: bool
) -> None:
    """This holds whatever a failed attempt wrote, and the next attempt is atomic as well."""

    def receive(sender: Flask, **_: object) -> None:
        if used_before:
            count(db)

    def book() -> None:
        first(db)
        write(db, f"attempt {current_run.attempt}")
        if current_run.attempt == 1:
            raise RuntimeError("after the work")

    enqueue(book, atomic=True, retry=AGAIN)
    with appcontext_pushed.connected_to(receive, app), run_started.connected_to(receive, app):
        report = tick()
    assert (report.failed, report.succeeded) == (1, 1)
    nested = ["kept in attempt 2"] if first is nest else []
    assert labels(db) == ["attempt 2", *nested]


def test_lost_lease_rolls_the_work_back(db: SQLAlchemy, tick: Tick, enqueue: Enqueue) -> None:
    def book() -> None:
        with db.engine.begin() as thief:
            thief.execute(text("UPDATE job_runs SET locked_by = 'other:1:token'"))
        write(db, "stale")

    enqueue(book, atomic=True)
    report = tick()
    assert (report.succeeded, report.lost) == (0, 1)
    assert labels(db) == []
    assert (the_run(db).status, the_run(db).locked_by) == ("running", "other:1:token")


def test_work_of_a_step_that_fails_or_loses_its_run_is_rolled_back(
    db: SQLAlchemy, jobs: CronJobs, tick: Tick, enqueue: Enqueue
) -> None:
    def work(holder: str = "locked_by") -> None:
        count(db)
        with db.engine.begin() as writer:
            # A heartbeat writes like this; with another holder, this is a worker that reclaimed the
            # run.
            writer.execute(text(f"UPDATE job_runs SET locked_by = {holder}"))
        write(db, f"attempt {current_run.attempt}")
        if current_run.attempt == 1:
            raise RuntimeError("after the work")

    def book() -> None:
        count(db)
        jobs.step("first", work)
        jobs.step("last", work, "'other:1:token'")

    enqueue(book, retry=AGAIN)
    report = tick()
    assert (report.failed, report.succeeded, report.lost) == (1, 0, 1)
    assert labels(db) == ["attempt 2"]
    assert (the_run(db).status, the_run(db).locked_by) == ("running", "other:1:token")


def commit(db: SQLAlchemy) -> None:
    write(db, "early")
    db.session.commit()


def commit_within_a_savepoint(db: SQLAlchemy) -> None:
    write(db, "early")
    db.session.begin_nested()
    db.session.commit()


def take_another_session(db: SQLAlchemy) -> None:
    db.session.remove()
    write(db, "in a session of nobody's")


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (commit, "Remove the commit"),
        (commit_within_a_savepoint, "Remove the commit"),
        (take_another_session, "Remove the call"),
    ],
)
def test_commit_inside_is_refused_and_nothing_stays(
    db: SQLAlchemy, tick: Tick, enqueue: Enqueue, engine_options: dict[str, str], do: Do, said: str
) -> None:  # fmt: skip
    def book() -> None:
        do(db)

    enqueue(book, atomic=True, retry=False)
    assert tick().dead == 1
    if do is not take_another_session or engine_options.get("isolation_level") != "AUTOCOMMIT":
        assert labels(db) == []  # Otherwise no tick can reclaim it.
    run = the_run(db)
    assert run.error_type == "AtomicCommit"
    assert said in (run.last_error or "")


def test_success_stands_if_a_hook_raises_after_the_commit(
    db: SQLAlchemy, tick: Tick, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    def tell_the_search_engine(session: object) -> None:
        raise ConnectionError("the search engine is away")

    def book() -> str:
        write(db, "booked")
        event.listen(db.session(), "after_commit", tell_the_search_engine)
        return "ok"

    enqueue(book, atomic=True, retry=AGAIN)
    report = tick()
    assert (report.succeeded, report.lost) == (1, 0)
    assert (the_run(db).status, the_run(db).result) == ("succeeded", "ok")
    assert labels(db) == ["booked"]
    assert "its work was committed, but then a hook" in caplog.text
