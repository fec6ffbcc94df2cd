"""A webhook is told what begins to need a person, and what ends."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs
from flask_cronjobs.engine.webhook import message
from flask_cronjobs.jobs.checks import findings
from flask_cronjobs.jobs.definitions.actions import Target, pause
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobAlert, JobRun

from ..monitor import Monitor
from ..rows import Rows, ago

pytestmark = pytest.mark.usefixtures("context")
DEAD = "tests: 1 run ended dead in the last 24 h"


@pytest.fixture
def told(jobs: CronJobs, state: State, monitor: Monitor) -> Any:
    """Run a tick, and return the lines that the webhook was told."""
    object.__setattr__(state.settings, "alert_url", f"{monitor.url}hook?secret")

    def tick() -> list[str]:
        monitor.bodies.clear()
        jobs.tick()
        lines = [line for body in monitor.bodies for line in json.loads(body)["text"].split("\n")]
        return [line.partition(". ")[0] for line in lines]

    return tick


def _unseen(db: SQLAlchemy) -> None:
    """Let all alerts have been seen long ago."""
    db.session.execute(update(JobAlert).values(seen_at=ago(360)))
    db.session.commit()


def _set(db: SQLAlchemy, run_id: int, status: str) -> None:
    db.session.execute(update(JobRun).where(JobRun.id == run_id).values(status=status))
    db.session.commit()


def test_what_begins_is_told_once_and_what_ends_when_it_stays_away(
    db: SQLAlchemy, rows: Rows, told: Any
) -> None:
    assert told() == []
    run_id = rows.run("dead", finished_at=ago(60))
    assert told() == [DEAD]
    assert told() == []
    _set(db, run_id, "cancelled")
    assert told() == []  # It may come back soon.
    _set(db, run_id, "dead")
    assert told() == []
    _set(db, run_id, "cancelled")
    _unseen(db)
    assert told() == ["tests: over: 1 run ended dead in the last 24 h"]
    assert told() == []
    assert db.session.scalars(select(JobAlert)).all() == []


def test_each_thing_is_told_apart_though_its_words_change(
    jobs: CronJobs, rows: Rows, told: Any
) -> None:
    rows.run("dead", finished_at=ago(60))
    assert told() == [DEAD]
    rows.run("dead", finished_at=ago(60))
    jobs.pause(queue="mail")
    jobs.pause(queue="sms")
    assert told() == [
        "tests: The queue mail is paused",
        "tests: The queue sms is paused",
    ]


def test_a_webhook_that_fails_is_told_by_the_next_tick(
    rows: Rows, monitor: Monitor, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows.run("dead", finished_at=ago(60))
    monitor.status = 500
    assert told() == [DEAD]
    assert "secret" not in caplog.text
    monitor.status = 200
    assert told() == [DEAD]
    assert told() == []


def test_what_ended_before_it_was_told_is_never_told(
    db: SQLAlchemy, rows: Rows, monitor: Monitor, told: Any
) -> None:
    run_id = rows.run("dead", finished_at=ago(60))
    monitor.status = 500
    told()
    _set(db, run_id, "cancelled")
    _unseen(db)
    monitor.status = 200
    assert told() == []


def test_without_the_setting_nothing_is_noted(jobs: CronJobs, db: SQLAlchemy, rows: Rows) -> None:
    rows.run("dead", finished_at=ago(60))
    jobs.tick()
    assert db.session.scalars(select(JobAlert)).all() == []


def began(what: str) -> Any:
    return SimpleNamespace(what=what, todo="", ended_at=None)


def test_a_name_is_no_link_no_mention_and_no_second_line() -> None:
    what = "The batch <!channel> @here <https://e.vil|R&D> [R](https://e.vil)\nshop: over: all"
    assert message("shop", [began(what)]) == (
        "shop: The batch &lt;!channel&gt; @\u200bhere &lt;https://e.vil|R&amp;D&gt; "
        "[R]\u200b(https://e.vil) shop: over: all",
        1,
    )


def test_many_changes_are_several_messages_that_discord_takes(
    jobs: CronJobs, monitor: Monitor, told: Any
) -> None:
    for number in range(30):
        jobs.pause(queue=f"queue-{number}")
    lines = told()
    assert len(set(lines)) == 30
    assert len(monitor.bodies) > 1
    assert max(len(json.loads(body)["text"]) for body in monitor.bodies) <= 2000
    assert len(message("shop", [began("a" * 9000)])[0]) == 2000


def test_who_acted_is_not_told_to_the_webhook(
    jobs: CronJobs, state: State, rows: Rows, told: Any
) -> None:
    jobs.task(name="other")(lambda: None)
    order: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "on_dead": "skip"}
    rows.run(age=3600, job_type="gone", **order)
    rows.run(age=3600, job_type="other", order_mark="waits", **order)
    pause(state, Target("queue", "mail"), "203.0.113.9")
    lines = told()
    assert "tests: The queue mail is paused" in lines
    assert any("run 2 waits in strict order" in line.lower() for line in lines)
    assert "203.0.113.9" in {each.by for each in findings(state)}
