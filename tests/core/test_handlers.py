"""A handler's timeout, heartbeats and progress, and a stop in the middle of a claim."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs, Retry, TickReport, TimedOut, current_run
from flask_cronjobs.config import Settings
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.worker import keeper as keeper_module
from flask_cronjobs.core.worker.keeper import Keeper
from flask_cronjobs.models import JobFailure, JobRun
from tests.kit import statements

Tick = Callable[[], TickReport]


def test_timeout_passes_except_exception_and_the_run_is_tried_again(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    blocks: list[str] = []

    @jobs.task(timeout=0.2, retry=Retry(max_attempts=2, base=0))
    def slow_at_first() -> None:
        try:
            time.sleep(120 if current_run.attempt == 1 else 0)
        except Exception:
            blocks.append("except Exception")
        finally:
            blocks.append("finally")
        blocks.append("went on")

    with app.app_context():
        slow_at_first.using(commit=True).enqueue()
        report = tick()
        failure = db.session.scalars(db.select(JobFailure)).one()
    assert (report.failed, report.succeeded) == (1, 1)
    assert blocks == ["finally", "finally", "went on"]
    assert (failure.attempt, failure.error_type) == (1, "TimedOut")
    assert failure.error == "the handler ran longer than its timeout of 0.2 s"
    assert not issubclass(TimedOut, Exception)


def test_in_a_thread_a_handler_goes_on_beyond_its_timeout_and_the_log_warns(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()

    @jobs.task(timeout=0.1, retry=False)
    def slow() -> bool:
        return goes_on.wait(60)

    def work() -> None:
        with app.app_context():
            tick()

    state: State = app.extensions["cronjobs"]
    settings = replace(state.settings, shutdown_grace=0.1)
    app.extensions["cronjobs"] = replace(state, settings=settings)
    with app.app_context():
        slow.using(commit=True).enqueue()
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive() and "its handler does not end" not in caplog.text:
            time.sleep(0.01)
        goes_on.set()
        thread.join()
        run = db.session.scalars(db.select(JobRun)).one()
    assert (run.status, run.result) == ("succeeded", True)
    assert "let an executor use processes, not threads" in caplog.text


def test_lease_by_default_outlasts_three_missed_heartbeats_and_a_minute() -> None:
    lease = Settings().lease
    assert lease - lease / keeper_module.BEATS_PER_LEASE * 3 >= lease / 4
    assert lease >= 60


def test_progress_is_written_rarely_however_often_it_is_reported(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    @jobs.task
    def busy() -> None:
        for step in range(10_000):
            current_run.progress(step / 10_000)
        current_run.progress(1, "all")

    with app.app_context():
        busy.using(commit=True).enqueue()
        updates = statements(db.engine, "SET progress =")
        began = time.monotonic()
        assert tick().succeeded == 1
        assert 2 <= len(updates) <= 3 + 4 * (time.monotonic() - began)
        run = db.session.scalars(db.select(JobRun)).one()
        assert (run.progress, run.progress_message) == (1.0, "all")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
def test_worker_asked_to_stop_in_the_midst_of_a_claim_holds_nothing_afterwards(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, moment: str, number: int
) -> None:
    writes: list[str] = []
    calls: list[int] = []

    @jobs.task
    def note(n: int) -> None:
        calls.append(n)

    def stop(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "candidate AS" in statement:
            writes.append(statement)
            if len(writes) == number:
                keeper = threading.current_thread()
                assert isinstance(keeper, Keeper)
                keeper.flag.stop()

    with app.app_context():
        note.using(commit=True).enqueue_many([{"n": n} for n in range(500)])
        event.listen(db.engine, moment, stop)
        tick()
        assert len(writes) >= number
        rows = list(db.session.scalars(db.select(JobRun)))
        ends = {(run.status, run.attempts, run.locked_by) for run in rows}
        assert ends <= {("queued", 0, None), ("succeeded", 1, None)}
        succeeded = [run.payload["n"] for run in rows if run.status == "succeeded"]
    assert sorted(calls) == sorted(succeeded)
