"""FAULTS: `atomic=True`: the handler's work in the database and the run's success in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask, appcontext_pushed
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text

from flask_cronjobs import CronJobs, Retry, TickReport, current_run, run_started
from flask_cronjobs.models import JobRun
from tests.tables import copy_tables

Tick = Callable[[], TickReport]
AGAIN = Retry(max_attempts=3, base=0)
ISOLATION: list[dict[str, str]] = [
    {},
    {"isolation_level": "AUTOCOMMIT"},
    {"isolation_level": "REPEATABLE READ"},
    {"isolation_level": "SERIALIZABLE"},
]


@pytest.fixture(params=ISOLATION, ids=lambda options: options.get("isolation_level", "default"))
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    """The engine options of an app."""
    chosen: dict[str, str] = request.param
    return chosen


@pytest.fixture
def app(database_url: str, db: SQLAlchemy, options: dict[str, str]) -> Iterator[Flask]:
    """An app whose engine has an isolation level of the app's choice, and a table."""
    if database_url.startswith("sqlite") and options.get("isolation_level") == "REPEATABLE READ":
        options = {"isolation_level": "READ UNCOMMITTED"}  # What SQLite has instead.
    app = Flask("tests")
    app.config.update(SQLALCHEMY_DATABASE_URI=database_url, SQLALCHEMY_ENGINE_OPTIONS=options)
    app.config["CRONJOBS_URL_PREFIX"] = None
    db.init_app(app)
    copy_tables(database_url)  # First: what is there already keeps it from being fast.
    with app.app_context():
        with db.engine.begin() as connection:
            connection.execute(text("CREATE TABLE work (label text)"))
        yield app
        db.session.remove()
        db.engine.dispose()


def labels(db: SQLAlchemy) -> list[str]:
    found = list(db.session.scalars(text("SELECT label FROM work ORDER BY label")))
    db.session.remove()
    return found


def work(db: SQLAlchemy, label: str) -> None:
    db.session.execute(text("INSERT INTO work VALUES (:label)"), {"label": label})


def the_run(db: SQLAlchemy) -> JobRun:
    db.session.remove()
    return db.session.scalars(db.select(JobRun)).one()


def test_work_and_success_are_committed_together(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    seen: list[int | None] = []

    @jobs.task(atomic=True)
    def book() -> str:
        work(db, "booked")
        with db.engine.connect() as other:
            seen.append(other.scalar(text("SELECT count(*) FROM work")))
        return "ok"

    book.using(commit=True).enqueue()
    assert tick().succeeded == 1
    assert (labels(db), seen) == (["booked"], [0])
    run = the_run(db)
    assert (run.status, run.result, run.locked_by) == ("succeeded", "ok", None)


def test_work_of_a_failed_attempt_is_rolled_back(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> None:
        work(db, f"attempt {current_run.attempt}")
        if current_run.attempt == 1:
            raise RuntimeError("after the work")

    book.using(commit=True).enqueue()
    report = tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert labels(db) == ["attempt 2"]


def test_it_is_rolled_back_also_if_the_session_was_used_before(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    def receive(sender: Flask, **_: object) -> None:
        db.session.scalar(text("SELECT count(*) FROM work"))

    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> None:
        work(db, f"attempt {current_run.attempt}")
        if current_run.attempt == 1:
            raise RuntimeError("after the work")

    book.using(commit=True).enqueue()
    with appcontext_pushed.connected_to(receive, app), run_started.connected_to(receive, app):
        report = tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert labels(db) == ["attempt 2"]


def test_lost_lease_rolls_the_work_back(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True)
    def book() -> None:
        with db.engine.begin() as other:
            other.execute(text("UPDATE job_runs SET locked_by = 'other:1:token'"))
        work(db, "stale")

    book.using(commit=True).enqueue()
    report = tick()
    assert (report.succeeded, report.lost) == (0, 1)
    assert labels(db) == []
    assert (the_run(db).status, the_run(db).locked_by) == ("running", "other:1:token")


def test_commit_inside_is_refused_and_nothing_stays(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True, retry=False)
    def book() -> None:
        work(db, "early")
        db.session.commit()

    book.using(commit=True).enqueue()
    assert tick().dead == 1
    assert labels(db) == []
    run = the_run(db)
    assert run.error_type == "AtomicCommit"
    assert "Remove the commit" in (run.last_error or "")


def test_commit_of_the_whole_from_within_a_savepoint_is_refused(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True, retry=False)
    def book() -> None:
        work(db, "early")
        db.session.begin_nested()
        db.session.commit()

    book.using(commit=True).enqueue()
    assert tick().dead == 1
    assert labels(db) == []
    assert the_run(db).error_type == "AtomicCommit"


def test_savepoints_inside_are_fine(app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick) -> None:
    @jobs.task(atomic=True)
    def book() -> None:
        work(db, "kept")
        with db.session.begin_nested():
            work(db, "nested")
        inner = db.session.begin_nested()
        work(db, "taken back")
        inner.rollback()

    book.using(commit=True).enqueue()
    assert tick().succeeded == 1
    assert labels(db) == ["kept", "nested"]


def test_rollback_inside_takes_back_what_was_and_the_rest_is_atomic_still(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> None:
        work(db, "taken back")
        db.session.rollback()
        work(db, f"attempt {current_run.attempt}")
        if current_run.attempt == 1:
            raise RuntimeError("after the work")

    book.using(commit=True).enqueue()
    report = tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert labels(db) == ["attempt 2"]


def test_success_stands_if_a_hook_raises_after_the_commit(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, caplog: pytest.LogCaptureFixture
) -> None:
    def tell_the_search_engine(session: object) -> None:
        raise ConnectionError("the search engine is away")

    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> str:
        work(db, "booked")
        event.listen(db.session(), "after_commit", tell_the_search_engine)
        return "ok"

    book.using(commit=True).enqueue()
    report = tick()
    assert (report.succeeded, report.lost) == (1, 0)
    assert (the_run(db).status, the_run(db).result) == ("succeeded", "ok")
    assert labels(db) == ["booked"]
    assert "its work is committed, and then a hook" in caplog.text


def test_another_session_in_its_place_is_refused(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, options: dict[str, str]
) -> None:
    @jobs.task(atomic=True, retry=False)
    def book() -> None:
        db.session.remove()
        work(db, "in a session of nobody's")

    book.using(commit=True).enqueue()
    assert tick().dead == 1
    if options.get("isolation_level") != "AUTOCOMMIT":  # There, nobody can take it back.
        assert labels(db) == []
    assert the_run(db).error_type == "AtomicCommit"


def test_enqueued_inside_exists_exactly_if_the_run_succeeded(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task
    def follow_up(attempt: int) -> None: ...

    @jobs.task(atomic=True, retry=AGAIN)
    def book() -> None:
        follow_up.enqueue(attempt=current_run.attempt)
        if current_run.attempt == 1:
            raise RuntimeError("after the enqueue")

    book.using(commit=True).enqueue()
    assert tick().succeeded == 2
    payloads = db.session.scalars(db.select(JobRun.payload).where(JobRun.job_type == "follow_up"))
    assert list(payloads) == [{"attempt": 2}]
