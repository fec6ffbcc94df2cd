"""Which messages in a broker begin a run: an app, a forger or a reader of pages sends them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import Throttle, state_of
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.engines import connect_apart
from flask_cronjobs.features.executors import perform as executor_worker
from flask_cronjobs.features.executors.tokens import database_fingerprint
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import handed_to
from tests.features.executors.conftest import forget_kept_connections
from tests.features.executors.threads import Threads
from tests.marks import on_postgresql
from tests.postgres import Server


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the warnings of this process in the last minute."""
    monkeypatch.setattr(executor_worker, "_refused", Throttle())


@pytest.fixture
def other_url(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a second database of the same kind."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'other.sqlite'}"
        return
    server: Server = request.getfixturevalue("postgres_server")
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture
def other(other_url: str) -> Iterator[Flask]:
    """Another owner's app, with a queue of the same name and its own database."""
    app = Flask("other")
    app.config["SQLALCHEMY_DATABASE_URI"] = other_url
    db = SQLAlchemy(app)
    jobs = CronJobs(app)
    jobs.task(queue="far", name="far")(lambda: "other")
    with app.app_context():
        db.create_all()
        jobs.enqueue("far", commit=True)
    yield app
    forget_kept_connections()
    with app.app_context():
        db.engine.dispose()


def perform(run_id: int, token: str) -> str | None:
    return executor_worker.perform_handed(state_of(), run_id, token)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def fingerprint_of(app: Flask) -> str:
    with Bookkeeping(state_of(app).engine) as books:
        return database_fingerprint(books)


def test_a_message_of_another_database_is_refused_and_reported(
    far: Any, executor: Threads, jobs: CronJobs, other: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    run = far.enqueue()
    jobs.tick()
    (message,) = executor.sent
    with other.app_context():
        assert perform(message.id, message.token) is None
        assert perform(message.id, message.token) is None
    (line,) = warnings(caplog)
    assert f"message for the run {run.id}" in line
    assert "another database" in line
    assert "its own broker or queues" in line
    executor.deliver(message)  # The owner's worker begins it all the same.
    assert executor.results() == ["succeeded"]


def test_it_is_refused_even_if_a_copied_row_has_its_token(
    far: Any, executor: Threads, jobs: CronJobs, other: Flask
) -> None:
    """A staging database that was restored from a dump has the rows of production."""
    far.enqueue()
    jobs.tick()
    (message,) = executor.sent
    with other.app_context():
        session = other.extensions["sqlalchemy"].session
        claim_sql = "UPDATE job_runs SET status = 'running', locked_by = :token, attempts = 1"
        session.execute(
            text(f"{claim_sql}, locked_until = '2999-01-01', started_at = created_at"),
            {"token": message.token},
        )
        session.commit()
        (copied,) = session.query(JobRun)
        session.rollback()
        assert perform(copied.id, message.token) is None
        session.refresh(copied)
        assert copied.status == "running"


def test_a_role_that_may_not_read_the_cluster_s_identity_has_a_fingerprint(
    postgresql_url: str, postgres_server: Server
) -> None:
    app = Flask("tests")
    app.config["SQLALCHEMY_DATABASE_URI"] = postgresql_url
    db = SQLAlchemy(app)
    CronJobs(app)
    with app.app_context():
        db.create_all()
        session = db.session
        session.execute(text("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))
        session.execute(text("CREATE ROLE plain LOGIN"))
        session.commit()
        before = fingerprint_of(app)
        with Bookkeeping(db.engine) as books:
            books.rows(text("SET ROLE plain"))
            limited = database_fingerprint(books)
        assert len(limited) == len(before)
        session.execute(text("DROP ROLE plain"))
        session.commit()
        db.engine.dispose()


@pytest.mark.parametrize("forged", ["", "handed:celery", "handed:celery:0:host:1:ab", "odd"])
def test_a_forged_token_begins_nothing(
    forged: str, far: Any, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    run = far.enqueue()
    jobs.tick()
    assert perform(run.id, forged) is None
    db.session.refresh(run)
    assert handed_to(run.locked_by) == "celery"
    assert len(warnings(caplog)) == 1


def test_the_token_of_one_handed_run_begins_no_other(
    far: Any, executor: Threads, jobs: CronJobs
) -> None:
    for _ in range(3):
        far.enqueue()
    jobs.tick()
    first, *others_sent = executor.sent
    assert len({message.token for message in executor.sent}) == 3
    for later in others_sent:
        assert perform(later.id, first.token) is None
    for message in executor.sent:
        executor.deliver(message)
    assert executor.results() == ["succeeded"] * 3


@pytest.mark.parametrize("paused", [False, True])
def test_the_token_of_a_running_run_is_not_exchanged(
    paused: bool, executor: Threads, context: None, jobs: CronJobs, app: Flask, db: SQLAlchemy
) -> None:
    """It is not traded for a release either, as the token of a paused task's message is."""
    started, goes_on = threading.Event(), threading.Event()
    calls: list[None] = []

    @jobs.task
    def near() -> None:
        calls.append(None)
        started.set()
        goes_on.wait(60)

    def tick() -> None:
        with app.app_context():
            jobs.tick()

    run = near.using(commit=True).enqueue()
    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        assert started.wait(60)
        if paused:
            jobs.pause(task="near")
        db.session.refresh(run)
        assert perform(run.id, run.locked_by or "") is None
        db.session.refresh(run)
        assert (run.status, run.attempts) == ("running", 1)
    finally:
        goes_on.set()
        ticking.join()
    db.session.refresh(run)
    assert (run.status, run.attempts, len(calls)) == ("succeeded", 1, 1)


def test_each_app_of_a_forked_process_forgets_the_connections_of_its_parent(
    app: Flask, jobs: CronJobs, other: Flask
) -> None:
    for app_ in (app, other):
        state_of(app_).pids[:] = [0]  # This simulates apps that another process made.
        with app_.app_context():
            engine = app_.extensions["sqlalchemy"].engine
            engine.dispose()  # Nothing else would close the forgotten connections.
            before = engine.pool
            perform(1, "gone")
            assert engine.pool is not before


@on_postgresql
def test_messages_whose_tokens_are_gone_make_one_connection(
    far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of the broker, hundreds of them may come before the first good one."""
    calls: list[None] = []

    def count(*arguments: Any) -> Any:
        calls.append(None)
        return connect_apart(*arguments)

    monkeypatch.setattr("flask_cronjobs.db.connection.connect_apart", count)
    for _ in range(3):
        assert perform(1, "handed:celery:gone") is None
    assert len(calls) == 1
