"""Each command works on PostgreSQL; the other tests of this folder use SQLite."""

from __future__ import annotations

from contextlib import suppress

import click
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.cli import jobs_group
from flask_cronjobs.models import JobEffect
from tests.marks import on_postgresql
from tests.rows import Rows

#: A command of ``flask jobs``, and a line of its output. ``{dead}`` is a dead run's id.
COMMANDS = (
    ("tick --json", '"dead": 1'),
    ("work --help", "Usage"),
    ("admin", "dead"),
    ("admin --json", '"dead"'),
    ("admin list --status dead --task send --json", '"task": "send"'),
    ("admin list --overdue --stale", "No runs"),
    ("admin list --batch b", "break_down"),
    ("admin show {dead} --json", '"status": "dead"'),
    ("admin again {dead}", "Queued run"),
    ("admin retry {dead}", "of send: queued again"),
    ("admin retry --status dead --task send --yes", "1 run"),
    ("admin cancel {queued}", "of send: cancelled"),
    ("admin discard {dead}", "of send: discarded"),
    ("admin run remind --delay 60", "Queued run"),
    ("admin batches --json", '"key": "b"'),
    ("admin batches b --close", "Closed b"),
    ("admin definitions", "remind"),
    ("admin remove remind", "is declared in code"),
    ("admin pause --task send", "Paused"),
    ("admin resume --queue default", "Not paused"),
    ("admin effects --json", '"key": "charge:1"'),
    ("admin effects --done charge:1", "marked as done"),
    ("admin ticks --json", '"worker"'),
    ("admin operations --json", '"operations"'),
    ("admin queues --json", '"name": "default"'),
    ("admin wait {succeeded}", "succeeded"),
    ("admin list --waits turn", "No runs match"),
    ("admin prune --dry-run", "Would prune 0 runs"),
    ("admin doctor --json", '"findings"'),
    ("admin init", "All tables exist"),
    ("admin crontab --json", '"crontab"'),
)


@pytest.fixture
def ids(app: Flask, db: SQLAlchemy, jobs: CronJobs, rows: Rows) -> dict[str, int]:
    """Insert rows of each kind; return the ids of the runs by their status."""
    jobs.task(name="send")(lambda: None)
    jobs.task(name="remind", schedule="0 7 * * *")(lambda: None)

    @jobs.task(retry=False)
    def break_down() -> None:
        raise ValueError("no")

    with app.app_context():
        jobs.tick()
        with suppress(ZeroDivisionError), jobs.batch("b"):
            break_down.enqueue()
            raise ZeroDivisionError
        db.session.add(JobEffect(key="charge:1", state="in_doubt"))
        db.session.commit()
    return {status: rows.run(status) for status in ("queued", "running", "dead", "succeeded")}


@pytest.mark.parametrize(("command", "line"), COMMANDS)
@on_postgresql
def test_command_works(app: Flask, ids: dict[str, int], command: str, line: str) -> None:
    args = command.format(**ids).split()
    result = app.test_cli_runner().invoke(args=["jobs", *args])
    assert line in result.output
    assert result.exit_code == (1 if "declared" in line else 0)


def test_each_command_is_here() -> None:
    context = click.Context(jobs_group)
    admin = jobs_group.get_command(context, "admin")
    assert isinstance(admin, click.Group)
    names = {*jobs_group.list_commands(context)}
    listed = admin.list_commands(context)
    assert sorted(listed) == sorted(admin.commands), "each is in one section of --help"
    names |= {f"admin {name}" for name in listed}
    assert names == {name for name in names for command, _ in COMMANDS if command.startswith(name)}
