"""Each change of a run's state is announced by a signal and a line in the log."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import product
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import update

from flask_cronjobs import CronJobs, Discard, current_run, signals
from flask_cronjobs.models import JobDefinition, JobRun
from tests.rows import ago

pytestmark = pytest.mark.usefixtures("context")


class TestSignals:
    @pytest.fixture
    def heard(self, app: Flask) -> Iterator[list[str]]:
        names: list[str] = []
        receivers = []
        for name in ("run_started", "run_succeeded", "run_failed", "run_dead", "run_cancelled",
                     "slot_skipped", "tick_finished", "lease_lost"):  # fmt: skip

            def receive(sender: Flask, name: str = name, **details: Any) -> None:
                assert sender is app
                (detail,) = details
                names.append(f"{name}({detail})")

            receivers.append(receive)
            getattr(signals, name).connect(receive, app)
        yield names
        receivers.clear()

    @pytest.mark.parametrize(
        ("error", "options", "names"),
        [
            (None, {}, ["run_succeeded(outcome)"]),
            (ValueError("x"), {"retry": 5}, ["run_failed(outcome)"]),
            (ValueError("x"), {}, ["run_dead(outcome)"]),
            (Discard("x"), {}, ["run_cancelled(outcome)"]),
        ],
        ids=["success", "failure", "death", "cancellation"],
    )
    def test_each_change_sends_a_signal(
        self, perform: Any, heard: list[str], error: Any, options: Any, names: list[str]
    ) -> None:
        def handler() -> None:
            if error is not None:
                raise error

        perform(handler, **options)
        assert heard == ["run_started(claim)", *names, "tick_finished(report)"]

    @pytest.mark.receiver_raises
    def test_receiver_that_is_an_async_def_is_logged_since_none_of_its_lines_run(
        self, app: Flask, perform: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def tell_somebody(sender: Flask, **details: Any) -> None: ...

        with signals.run_succeeded.connected_to(tell_somebody, app):
            assert perform(lambda: None).status == "succeeded"
        assert "A receiver of the signal 'run-succeeded'" in caplog.text
        assert "tell_somebody is an async def" in caplog.text

    def test_failure_of_a_run_that_is_to_be_cancelled_sends_the_signal_of_a_cancel(
        self, perform: Any, heard: list[str], caplog: pytest.LogCaptureFixture, db: SQLAlchemy
    ) -> None:
        def handler() -> None:
            run = db.session.get_one(JobRun, current_run.id)
            run.cancel_requested_at = datetime.now(timezone.utc)
            db.session.commit()
            raise ValueError("x")

        assert perform(handler, retry=5).status == "cancelled"
        assert heard == ["run_started(claim)", "run_cancelled(outcome)", "tick_finished(report)"]
        assert [record.cronjobs_event for record in caplog.records][-1] == "cancelled"  # type: ignore[attr-defined]

    @pytest.mark.receiver_raises
    @pytest.mark.parametrize(
        ("name", "error"),
        [
            *product(
                ("run_started", "run_succeeded", "tick_finished"),
                (ValueError, asyncio.CancelledError, GeneratorExit, SystemExit),
            ),
            ("run_succeeded", KeyboardInterrupt),  # The keeper's thread raises it.
        ],
    )
    def test_receiver_that_raises_is_logged_and_harms_nothing(
        self, app: Flask, perform: Any, caplog: Any, name: str, error: type[BaseException]
    ) -> None:
        def receive(sender: Flask, **details: Any) -> None:
            raise error

        with getattr(signals, name).connected_to(receive, app):
            assert perform(lambda: None).status == "succeeded"
        assert "A receiver of the signal" in caplog.text

    def test_keyboard_s_interrupt_of_a_receiver_goes_on_up(
        self, app: Flask, jobs: CronJobs
    ) -> None:
        def receive(sender: Flask, **details: Any) -> None:
            raise KeyboardInterrupt

        with signals.tick_finished.connected_to(receive, app), pytest.raises(KeyboardInterrupt):
            jobs.tick()


class TestLog:
    def test_slots_are_lines_with_the_same_fields(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "flask_cronjobs")
        jobs.task(name="daily", schedule="@daily")(lambda: None)
        jobs.tick()
        caplog.clear()
        db.session.execute(update(JobDefinition).values(next_run_at=ago(3 * 86400)))
        db.session.commit()
        jobs.tick()
        lines = [vars(record) for record in caplog.records][:2]
        assert [line["cronjobs_event"] for line in lines] == ["skipped", "queued"]
        assert [line["levelname"] for line in lines] == ["WARNING", "INFO"]
        for line in lines:
            assert (line["cronjobs_task"], line["cronjobs_attempt"]) == ("daily", 0)
            assert line["cronjobs_worker"].endswith(f":{os.getpid()}")
            assert db.session.get(JobRun, line["cronjobs_run_id"]) is not None

    def test_each_change_is_a_line_with_the_same_facts_as_fields(
        self, jobs: CronJobs, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "flask_cronjobs")

        @jobs.task(retry=False)
        def secretive(password: str) -> None:
            raise ValueError("broken")

        run = secretive.using(commit=True).enqueue(password="hunter2").id
        jobs.tick()
        lines = [
            record for record in caplog.records if getattr(record, "cronjobs_run_id", None) == run
        ]
        assert [vars(line)["cronjobs_event"] for line in lines] == ["started", "dead"]
        assert [line.levelname for line in lines] == ["INFO", "ERROR"]
        for line in lines:
            fields = vars(line)
            assert (fields["cronjobs_task"], fields["cronjobs_attempt"]) == ("secretive", 1)
            assert fields["cronjobs_worker"] in line.getMessage()
            assert isinstance(fields["cronjobs_ms"], float)
        assert lines[1].getMessage().startswith(f"dead: task secretive, run {run}, attempt 1, ")
        assert lines[1].getMessage().endswith(": ValueError")
        assert "hunter2" not in caplog.text
        assert {record.name for record in lines} == {"flask_cronjobs"}
