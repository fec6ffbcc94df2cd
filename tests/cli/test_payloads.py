"""``retry --payload``, ``again``, and the output that ``show`` prints."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobOutput
from tests.rows import Rows

Run = Callable[..., Result]


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    @jobs.task
    def send(user: int) -> None: ...

    def invoke(*args: str) -> Result:
        return app.test_cli_runner().invoke(args=["jobs", "admin", *args])

    return invoke


def test_retry_with_another_payload(run: Run, rows: Rows) -> None:
    run_id = rows.run("dead", payload={"user": 1})
    done = run("retry", str(run_id), "--payload", '{"user": 2}')
    assert (done.exit_code, done.output) == (0, f"Run {run_id} of send: queued again.\n")
    assert (rows.get(run_id).status, rows.get(run_id).payload) == ("queued", {"user": 2})


@pytest.mark.parametrize("args", [(), ("1", "2"), ("--task", "send"), ("1", "--task", "send")])
def test_a_payload_is_for_one_run(run: Run, rows: Rows, args: tuple[str, ...]) -> None:
    for _ in range(2):
        rows.run("dead", payload={"user": 1})
    done = run("retry", *args, "--payload", '{"user": 2}')
    assert done.exit_code == 2
    assert "--payload is for one run. Give one ID." in done.output
    assert rows.get(1).status == "dead"


@pytest.mark.parametrize("command", ["retry", "again"])
def test_a_payload_that_the_handler_does_not_take_is_refused(
    run: Run, rows: Rows, command: str
) -> None:
    run_id = rows.run("dead", payload={"user": 1})
    done = run(command, str(run_id), "--payload", '{"usr": 2}')
    assert done.exit_code == 1
    assert "send() missing a required argument: 'user'" in done.output
    assert "--payload JSON" in done.output


def test_a_payload_of_too_many_levels_is_refused(run: Run, rows: Rows) -> None:
    run_id = rows.run("dead", payload={"user": 1})
    done = run("retry", str(run_id), "--payload", '{"user":' + "[" * 50_000 + "]" * 50_000 + "}")
    assert done.exit_code == 2
    assert "this is not JSON: maximum recursion depth" in done.output


def test_again_makes_a_new_run(run: Run, rows: Rows) -> None:
    run_id = rows.run("succeeded", payload={"user": 1})
    done = run("again", str(run_id))
    assert done.output == f"Queued run {run_id + 1}, like run {run_id}. The next tick runs it.\n"
    as_json = run("again", str(run_id), "--payload", '{"user": 9}', "--json")
    assert rows.get(json.loads(as_json.output)["id"]).payload == {"user": 9}


def test_show_prints_the_output(run: Run, rows: Rows, app: Flask, db: SQLAlchemy) -> None:
    run_id = rows.run("dead")
    rows.failure(run_id, 1)
    with app.app_context():
        said = "hello\x1b[31m\n"
        db.session.add(JobOutput(run_id=run_id, attempt=1, worker="w", output=said))
        db.session.commit()
    shown = run("show", str(run_id)).output
    assert "Output of attempt 1\nhello\ufffd[31m\n" in shown
    assert json.loads(run("show", str(run_id), "--json").output)["attempts"][0]["output"] == said
