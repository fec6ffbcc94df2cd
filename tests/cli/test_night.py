"""The questions of a night shift: one command answers each, on both databases."""

from __future__ import annotations

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from example_app import lively
from flask_cronjobs import CronJobs

from .conftest import Admin

pytestmark = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)

#: The command for each question, and a part of its output.
ANSWERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Is something wrong, and since when?": (
        (), ("things need attention", "The queue images is paused by ada", "12 min ago")
    ),
    "What failed, why and for whom?": (
        (), ("send_welcome", "ValueError: The address has no domain", "user 1", "4", "31 min ago")
    ),
    "Why does this run wait?": (("list", "-q", "user 7"), ("behind run", "user 7")),
    "What waits for a pause?": (("list", "--waits", "paused"), ("resize_photos", "queue paused")),
    "What comes next?": (("definitions",), ("send_invoice_reminders", "0 8 * * *", "08:00,")),
    "Is a worker alive?": (("ticks",), ("web-1", "web-2", "No tick did its work from")),
    "Who serves this queue?": (("queues",), ("images", "paused by ada", "web-1, web-2")),
    "What did somebody do?": (("operations",), ("ada", "paused", "queue images", "12 min ago")),
    "Retry these": (
        ("retry", "--task", "send_welcome", "--status", "dead", "--yes"), ("4 runs",)
    ),
}  # fmt: skip


@pytest.fixture
def lively_day(admin: Admin, jobs: CronJobs, app: Flask, db: SQLAlchemy) -> Admin:
    """The commands of an app with a day's rows, whose code declares their schedules."""
    for name, task, cron, zone, _ in lively.DEFINITIONS:
        if name == task:
            jobs.task(name=task, schedule=cron, timezone=zone)(lambda: None)
    with app.app_context():
        lively.fill(db)
    return admin


def test_each_question_of_a_night_takes_one_command(lively_day: Admin) -> None:
    for question, (command, parts) in ANSWERS.items():
        output = lively_day.ok(*command)
        assert [part for part in parts if part not in output] == [], f"{question}\n{output}"
