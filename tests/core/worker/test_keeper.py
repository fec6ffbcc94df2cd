"""The keeper does not lose what it has to record, and continues after errors elsewhere."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text, update
from sqlalchemy.orm import Session

from flask_cronjobs import CronJobs, current_run
from flask_cronjobs.core import ticks
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.core.tick import TickOptions, tick
from flask_cronjobs.core.worker import keeper as keeper_module
from flask_cronjobs.core.worker import worker as worker_module
from flask_cronjobs.core.worker.keeper import Keeper
from flask_cronjobs.core.worker.work_options import Limits, WorkOptions
from flask_cronjobs.core.worker.worker import work
from flask_cronjobs.db import connection
from flask_cronjobs.models import JobDefinition, JobEffect, JobRun, JobTick
from tests.handlers import GIVEN_BACK, Enqueue, holders, read_runs
from tests.kit import lose_answer
from tests.marks import on_postgresql, on_sqlite
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("context")


class TestLostAnswers:
    @on_postgresql
    def test_runs_of_a_claim_whose_answer_was_lost_are_given_back_at_a_stop(
        self, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
    ) -> None:
        calls: list[int] = []
        enqueue(lambda: calls.append(1))

        def stop(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if "candidate AS" in statement:
                thread = threading.current_thread()
                assert isinstance(thread, Keeper)
                thread.flag.stop()

        event.listen(db.engine, "after_cursor_execute", stop)
        assert lose_answer(db, "candidate AS") == []
        jobs.tick()
        assert calls == []
        assert holders(db) == [GIVEN_BACK]

    @on_postgresql
    @pytest.mark.parametrize("part", ["INSERT INTO job_effects", "UPDATE job_effects SET state"])
    def test_mark_whose_answer_is_lost_is_its_maker_s(
        self, jobs: CronJobs, db: SQLAlchemy, part: str, enqueue: Enqueue
    ) -> None:
        effects: list[str] = []

        enqueue(lambda: jobs.once("mail", lambda: effects.append("sent")), retry=False)
        statements = lose_answer(db, part)
        assert jobs.tick().succeeded == 1
        assert len(statements) == 2
        assert effects == ["sent"]
        assert db.session.scalars(select(JobEffect.state)).all() == ["done"]

    def test_counts_of_a_minute_are_added_once(
        self, jobs: CronJobs, db: SQLAlchemy, state: State, enqueue: Enqueue,
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(keeper_module, "COUNT_SECONDS", 0.0)
        with state.bookkeeping() as books:
            ticks.begin(books, "first", socket.gethostname(), 1, resident=True)
        enqueue(lambda: None)
        lose_answer(db, "UPDATE job_ticks SET succeeded")
        work(state, WorkOptions("second", adds_counts=True))
        assert db.session.scalars(select(JobTick.succeeded)).all() == [1]
        assert "The counts of this minute are incomplete." in caplog.text


class TestProgress:
    @pytest.mark.parametrize("character", ["\udce9", "\0"], ids=["lone surrogate", "NUL"])
    def test_text_that_no_database_takes_is_cleaned(
        self, jobs: CronJobs, db: SQLAlchemy, character: str, enqueue: Enqueue
    ) -> None:
        enqueue(lambda: current_run.progress(0.5, f"cup{character}.txt"), retry=False)
        assert jobs.tick().succeeded == 1
        assert read_runs(db, JobRun.progress_message) == [("cup\ufffd.txt",)]

    @pytest.mark.parametrize("status", ["succeeded", "dead"])
    def test_last_word_is_written_when_the_handler_ends(
        self, jobs: CronJobs, db: SQLAlchemy, status: str, enqueue: Enqueue
    ) -> None:
        def tells() -> None:
            current_run.progress(0.1, "first")
            current_run.progress(0.9, "page 9 of 10")
            if status == "dead":
                raise ValueError("page 10")

        enqueue(tells, retry=False)
        jobs.tick()
        progress = read_runs(db, JobRun.status, JobRun.progress, JobRun.progress_message)
        assert progress == [(status, 0.9, "page 9 of 10")]


@on_sqlite
@pytest.mark.parametrize("whose", ["the handler's own", "somebody else's"])
def test_handler_under_a_lock_beyond_its_lease_is_neither_interrupted_nor_done_twice(
    app: Flask,
    jobs: CronJobs,
    db: SQLAlchemy,
    monkeypatch: pytest.MonkeyPatch,
    whose: str,
    enqueue: Enqueue,
) -> None:
    monkeypatch.setattr(connection, "SQLITE_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(worker_module, "RETRY_SECONDS", 0.1)
    state = state_of(app)
    object.__setattr__(state.settings, "lease", 2)
    calls: list[int] = []

    def works() -> None:
        calls.append(current_run.attempt)
        session = db.session if whose == "the handler's own" else Session(db.engine)
        session.execute(text("DELETE FROM job_ticks WHERE id < 0"))
        time.sleep(3)
        session.commit()
        session.close()

    enqueue(works)
    assert jobs.tick().succeeded == 1
    assert jobs.tick().succeeded == 0
    assert calls == [1]
    assert read_runs(db, JobRun.status, JobRun.attempts) == [("succeeded", 1)]


def full_disk(kind: str, value: object) -> None:
    raise OSError(28, "No space left on device")


@on_sqlite
def test_output_that_fails_harms_no_run_that_is_taken_back_or_skipped_or_performed(
    jobs: CronJobs, db: SQLAlchemy, rows: Rows, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.task(name="minutely", schedule="* * * * *", catchup="none")(lambda: None)
    jobs.tick()
    rows.run("running", job_type="it", locked_until=ago(60), max_attempts=1)
    db.session.execute(update(JobDefinition).values(next_run_at=ago(days=300)))
    db.session.commit()
    enqueue(lambda: None)
    report = tick(state_of(), TickOptions(news=full_disk))
    assert (report.reclaimed, report.skipped > 0) == (1, True)
    assert ("it", "succeeded") in read_runs(db, JobRun.job_type, JobRun.status)
    assert "could not be printed" in caplog.text


def test_tick_is_seen_as_often_as_its_health_asks_however_long_the_lease(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    settings = state_of(app).settings
    object.__setattr__(settings, "lease", 86400.0)
    object.__setattr__(settings, "health_tick_age", 1.0)
    states: list[bool] = []

    def waits_to_be_seen() -> None:
        until = time.monotonic() + 30
        while not any(states) and time.monotonic() < until:
            db.session.rollback()
            (tick,) = db.session.scalars(select(JobTick))
            states.append(tick.seen_at > tick.started_at + timedelta(seconds=0.1))
            db.session.rollback()
            time.sleep(0.02)

    enqueue(waits_to_be_seen)
    assert jobs.tick().succeeded == 1
    assert any(states)


@on_sqlite
def test_max_runs_is_not_spent_on_what_is_handed_back(jobs: CronJobs, enqueue: Enqueue) -> None:
    def slow() -> None:
        time.sleep(0.4)

    enqueue(lambda: None, [{}] * 10, priority=1)
    enqueue(slow, [{}] * 5)
    report = jobs.tick(max_runs=13)
    assert (report.succeeded, report.released) == (13, 0)


def test_tick_whose_budget_is_used_up_before_its_runs_still_claims_once(
    jobs: CronJobs, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host, every tick may be this slow. Otherwise no run would ever begin."""
    slow = "flask_cronjobs.core.tick.sync_definitions"
    monkeypatch.setattr(slow, lambda *args: time.sleep(0.05))
    enqueue(lambda: time.sleep(0.05), [{}] * 3)
    assert jobs.tick(budget=0.01).succeeded == 1


def test_a_worker_claims_no_more_runs_than_its_limit(state: State, enqueue: Enqueue) -> None:
    enqueue(lambda: None, [{}] * 5)
    counts = work(state, WorkOptions("host:1", limits=Limits(runs=2)))
    assert counts == {"succeeded": 2}


def test_worker_that_reaches_a_limit_says_which(
    state: State, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flask_cronjobs")
    events: list[tuple[str, Any]] = []
    enqueue(lambda: None)
    limits = Limits(runs=1)
    work(state, WorkOptions("host:1", limits=limits, news=lambda *news: events.append(news)))
    assert ("replaced", "worker host:1  after 1 run") in events
    assert "The worker host:1 ends after 1 run, and a fresh one follows" in caplog.text
