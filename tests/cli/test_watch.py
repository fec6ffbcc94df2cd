"""``--watch``: the whole screen, again and again, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flask_cronjobs import CronJobsError
from flask_cronjobs.cli import output as watch_module
from flask_cronjobs.cli.output import this_command
from tests.cli.terminal import Terminal
from tests.rows import Rows

from .conftest import Admin

APP = """
import os

from flask import Flask
from flask_cronjobs import CronJobs
from flask_sqlalchemy import SQLAlchemy

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["URL"]
SQLAlchemy(app)
CronJobs(app)
"""


def test_list_is_renewed_until_ctrl_c(tmp_path: Path, database_url: str, rows: Rows) -> None:
    (tmp_path / "app.py").write_text(APP)
    rows.run("dead", job_type="first")
    with Terminal(
        *("--app", "app", "jobs", "admin", "list", "--watch"),
        env={"URL": database_url}, cwd=tmp_path, size=(8, 80),
    ) as terminal:  # fmt: skip
        terminal.wait_for(lambda output: "first" in output)
        for number in range(12):
            rows.run("dead", job_type=f"later-{number}")
        terminal.wait_for(lambda output: "later-11" in output)
        terminal.read(1)
        shown = [row.rstrip() for row in terminal.screen.rows]
        assert shown[0].endswith("  every 2 s: python -m flask --app app jobs admin list")
        assert shown[2].startswith("ID ")
        assert "later-11" in shown[3]
        assert "later-8" in shown[6], "as many lines as there is room for"
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert terminal.output.endswith("\x1b[?1049l"), "back to the screen as it was"
        assert "Aborted" not in terminal.output


def test_the_head_of_the_screen_is_the_command_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, admin: Admin
) -> None:
    shown: list[str] = []

    def repeat(command: Callable[..., object], watch: bool, as_json: bool) -> None:
        shown.append(this_command(watch=None))

    monkeypatch.setattr(watch_module, "repeat", repeat)
    admin("batches", "a key", "--limit", "3", "--watch")
    assert shown == ["flask jobs admin batches 'a key' --limit 3"]


def test_trouble_is_shown_and_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    def show(output: str) -> None:
        pages.append(output)
        if len(pages) == 2:
            raise KeyboardInterrupt

    def command(as_json: bool) -> None:
        if not pages:
            raise CronJobsError("The database does not answer.")
        print("it does")

    monkeypatch.setattr(watch_module, "_show", show)
    monkeypatch.setattr(watch_module, "EVERY", 0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    watch_module.repeat(command, watch=True, as_json=False)
    assert pages == ["Error: The database does not answer.\n", "it does\n"]
