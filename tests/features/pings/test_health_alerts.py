"""A webhook reports each problem when it begins and when it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.features.pings.health_alerts import message
from flask_cronjobs.insights.health_checks import Finding, findings
from flask_cronjobs.insights.schedule_actions import Target, pause
from flask_cronjobs.models import JobRun, JobTick
from tests.monitor import Monitor
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("context")
DEAD = "tests: 1 run died in the last 24 h"


@pytest.fixture
def tick_lines(jobs: CronJobs, state: State, monitor: Monitor) -> Any:
    """Run a tick, and return the lines that the webhook got."""
    object.__setattr__(state.settings, "alert_url", f"{monitor.url}hook?secret")

    def tick() -> list[str]:
        monitor.bodies.clear()
        jobs.tick()
        lines = [line for body in monitor.bodies for line in json.loads(body)["text"].split("\n")]
        return [line.partition(". ")[0] for line in lines]

    return tick


def _set(db: SQLAlchemy, run_id: int, status: str) -> None:
    db.session.execute(update(JobRun).where(JobRun.id == run_id).values(status=status))
    db.session.commit()


def _written(db: SQLAlchemy) -> list[object]:
    db.session.rollback()
    return list(db.session.scalars(select(JobTick.findings).order_by(JobTick.id)))


def test_beginning_and_end_of_a_problem_are_reported_once(
    db: SQLAlchemy, rows: Rows, tick_lines: Any
) -> None:
    assert tick_lines() == []
    run_id = rows.run("dead", finished_at=ago(60))
    assert tick_lines() == [DEAD]
    assert tick_lines() == []
    _set(db, run_id, "cancelled")
    assert tick_lines() == ["tests: resolved: dead"]
    assert tick_lines() == []
    assert _written(db) == [[], ["dead"], ["dead"], [], []]


def test_each_check_is_reported_separately(jobs: CronJobs, rows: Rows, tick_lines: Any) -> None:
    rows.run("dead", finished_at=ago(60))
    assert tick_lines() == [DEAD]
    rows.run("dead", finished_at=ago(60))
    jobs.pause(queue="mail")
    jobs.pause(queue="sms")
    assert tick_lines() == ["tests: The queue mail is paused", "tests: The queue sms is paused"]


def test_a_webhook_that_fails_is_told_by_the_next_tick(
    db: SQLAlchemy, rows: Rows, monitor: Monitor, tick_lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = rows.run("dead", finished_at=ago(60))
    monitor.status = 500
    assert tick_lines() == [DEAD]
    assert _written(db) == [None]
    text = "The CRONJOBS_ALERT_URL alert to 127.0.0.1 failed: HTTPError 500 Internal Server Error"
    assert text in caplog.text
    assert "secret" not in caplog.text
    monitor.status = 200
    assert tick_lines() == [DEAD]
    monitor.status = 500
    _set(db, run_id, "cancelled")
    assert tick_lines() == ["tests: resolved: dead"]
    monitor.status = 200
    assert tick_lines() == ["tests: resolved: dead"]
    assert tick_lines() == []


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_webhook_that_redirects_counts_as_failed(
    db: SQLAlchemy, rows: Rows, monitor: Monitor, tick_lines: Any, status: int
) -> None:
    rows.run("dead", finished_at=ago(60))
    monitor.status, monitor.location = status, "/elsewhere"
    assert tick_lines() == [DEAD]
    assert _written(db) == [None]
    monitor.status, monitor.location = 200, None
    assert tick_lines() == [DEAD]


def test_a_webhook_that_fails_for_long_is_a_finding(
    db: SQLAlchemy, state: State, rows: Rows, monitor: Monitor, tick_lines: Any
) -> None:
    def found() -> list[str]:
        return [finding.what for finding in findings(state) if finding.id == "webhook"]

    rows.tick(age=3600, findings=[])
    monitor.status = 500
    rows.run("dead", finished_at=ago(60))
    tick_lines()
    assert found() == []
    db.session.execute(
        update(JobTick).where(JobTick.findings.is_(None)).values(started_at=ago(1200))
    )
    db.session.commit()
    assert found() == ["CRONJOBS_ALERT_URL has not answered for 20 min"]
    monitor.status = 200
    assert tick_lines() == [DEAD]
    assert found() == []


def test_a_webhook_that_fails_twice_is_a_finding_with_its_reason_in_the_log(
    state: State, rows: Rows, tick_lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    object.__setattr__(state.settings, "alert_url", "http://127.0.0.1:1/services/typo")
    rows.run("dead", finished_at=ago(60))
    tick_lines(), tick_lines()
    assert "webhook" in [finding.id for finding in findings(state)]
    text = "The CRONJOBS_ALERT_URL alert to 127.0.0.1 failed: URLError: Connection refused"
    assert text in caplog.text
    assert "typo" not in caplog.text


def test_without_the_setting_nothing_is_noted(jobs: CronJobs, db: SQLAlchemy, rows: Rows) -> None:
    rows.run("dead", finished_at=ago(60))
    jobs.tick()
    assert _written(db) == [None]


def test_a_name_is_no_link_no_mention_and_no_second_line() -> None:
    text = "The batch <!channel> @here <https://e.vil|R&D> [R](https://e.vil)\nshop: resolved: all"
    assert message("shop", [Finding("open-batch", "warning", text)], ()) == (
        "shop: The batch &lt;!channel&gt; @\u200bhere &lt;https://e.vil|R&amp;D&gt; "
        "[R]\u200b(https://e.vil) shop: resolved: all"
    )


def test_a_message_is_one_that_discord_takes() -> None:
    checks = [Finding(f"check-{number}", "warning", "a" * 100) for number in range(30)]
    text = message("shop", checks, ())
    assert len(text) <= 2000
    *lines, last = text.splitlines()
    assert set(lines) == {f"shop: A{'a' * 99}"}
    assert last == f"shop: {30 - len(lines)} more. To see them: flask jobs admin"
    assert message("shop", checks[: len(lines)], ()).splitlines() == lines
    assert len(message("shop", [Finding("check", "warning", "a" * 3000)], ())) == 2000


def test_webhook_gets_no_name_of_an_operator(state: State, tick_lines: Any) -> None:
    pause(state, Target("queue", "mail"), "203.0.113.9")
    assert tick_lines() == ["tests: The queue mail is paused"]
    assert "203.0.113.9" in {finding.by for finding in findings(state)}
