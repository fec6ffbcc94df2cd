"""When ``flask run`` starts a worker beside the server; `process/test_reload.py` tests the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pytest
from flask import Flask
from flask.cli import FlaskGroup, ScriptInfo, routes_command, run_command
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs


@pytest.mark.parametrize(
    ("setting", "debug", "command", "reload", "reloaded", "starts"),
    [
        (True, True, run_command, None, True, True),
        (True, True, run_command, True, True, True),
        (True, True, run_command, False, False, True),
        (True, True, run_command, None, False, False),  # This is the process that watches files.
        (True, False, run_command, None, True, False),
        (True, True, routes_command, None, True, False),
        (True, True, None, None, True, False),  # This is `app.run()`, or another command.
        (False, True, run_command, None, True, False),
    ],
)
def test_only_the_process_that_serves_in_debug_mode_starts_a_worker(
    app: Flask, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch,
    setting: bool, debug: bool, command: click.Command | None, reload: bool | None,
    reloaded: bool, starts: bool,
) -> None:  # fmt: skip
    calls: list[Any] = []
    monkeypatch.setattr(
        "flask_cronjobs.core.background.start_worker",
        lambda app, env, by, script: calls.append(app),
    )
    monkeypatch.setenv("WERKZEUG_RUN_MAIN", str(reloaded).lower())
    app.config["CRONJOBS_WORK_IN_DEBUG"] = setting
    app.debug = debug
    if command is None:
        CronJobs(app)
    else:
        with click.Context(command, obj=ScriptInfo("shop:app")) as context:
            context.params["reload"] = reload
            CronJobs(app)
    assert calls == ["shop:app"] * starts


def test_a_script_of_the_app_s_own_starts_the_worker_too(
    app: Flask, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("subprocess.Popen", lambda words, **_: calls.append(words[1:-4]))
    monkeypatch.setenv("WERKZEUG_RUN_MAIN", "true")
    monkeypatch.setattr(sys, "argv", ["manage.py", "run"])
    app.config["CRONJOBS_WORK_IN_DEBUG"] = app.debug = True
    group = FlaskGroup(create_app=lambda: app)
    with (
        click.Context(group, info_name="manage.py") as script,
        click.Context(run_command, parent=script, obj=ScriptInfo(create_app=lambda: app)) as run,
    ):
        run.params["reload"] = None
        CronJobs(app)
    assert calls == [[str(Path("manage.py").absolute()), "jobs", "work"]]
