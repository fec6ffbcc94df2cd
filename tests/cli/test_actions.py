"""Commands that act: retry, cancel, discard, again, run, pause, resume."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.insights import run_actions
from flask_cronjobs.models import JobRun
from tests.repository.pages import blocks, named
from tests.rows import Rows, now, runs

from .conftest import Admin

Stored = Callable[[], "list[JobRun]"]


@pytest.fixture
def jobs(jobs: CronJobs) -> CronJobs:
    @jobs.task
    def send(user: int) -> None: ...

    jobs.task(name="export")(lambda: None)
    jobs.task(name="other")(lambda: None)
    return jobs


@pytest.fixture
def stored(app: Flask, db: SQLAlchemy) -> Stored:
    """Read all runs."""

    def read() -> list[JobRun]:
        with app.app_context():
            return runs(db)

    return read


# retry, cancel, discard and again


def test_retry_cancel_and_discard_by_id(admin: Admin, rows: Rows) -> None:
    """A refused id does not stop the others."""
    ended, dead, queued, running, given_up = (
        rows.run(status) for status in ("succeeded", "dead", "queued", "running", "dead")
    )
    output = admin.refused("retry", ended, dead)
    again = f"Run {ended} succeeded. To do its work again: flask jobs admin again {ended}"
    assert again in output
    assert f"Run {dead} of send: queued again." in output
    output = admin.ok("cancel", queued, running)
    assert f"Run {queued} of send: cancelled." in output
    assert f"Run {running} of send: its worker was asked to stop it." in output
    assert (rows.get(queued).last_error or "").endswith("(shell)")
    output = admin.refused("discard", given_up, dead)
    assert f"Run {given_up} of send: discarded." in output
    assert f"Run {dead} is not dead. To stop it: flask jobs admin cancel {dead}" in output
    assert rows.get(given_up).status == "cancelled"


@pytest.mark.parametrize(
    ("verb", "message", "after"),
    [("retry", "queued again", "queued"), ("discard", "discarded", "cancelled")],
)
def test_bulk_shows_counts_and_asks_first(
    admin: Admin, rows: Rows, verb: str, message: str, after: str
) -> None:
    kinds = ("KeyError", "ValueError", "ValueError")
    dead = [rows.run("dead", error_type=kind) for kind in kinds]
    foreign = rows.run("dead", job_type="other")
    prompt = admin.refused(verb, "--task", "send", input="n\n")
    assert f"{dead[-1]}   dead    send  ValueError" in prompt
    assert "By task and error:\n  2 of send, ValueError\n  1 of send, KeyError\n" in prompt
    assert f"{verb.capitalize()} 3 runs? [y/N]" in prompt
    assert rows.get(dead[0]).status == "dead"
    assert f"3 runs are {message}." in admin.ok(verb, "--task", "send", input="y\n")
    assert {rows.get(run_id).status for run_id in dead} == {after}
    assert "?" not in admin.ok(verb, "--task", "other", "--status", "dead", "--yes")
    assert rows.get(foreign).status == after


def test_an_id_that_is_given_twice_counts_once(admin: Admin, rows: Rows) -> None:
    run_id = rows.run("dead")
    assert admin.ok("retry", run_id, run_id) == f"Run {run_id} of send: queued again.\n"


def test_bulk_that_finds_nothing_says_which_statuses_it_looked_at(admin: Admin, rows: Rows) -> None:
    rows.run("failed", age=3600, queue="quick")
    rows.run("succeeded")
    others = "To include others, add --status with one of: cancelled, failed."
    nothing = f"No dead runs match. {others}\n"
    assert admin.ok("retry", "--task", "send") == nothing
    assert admin.ok("retry", "--task", "send", "--status", "dead") == "No dead runs match.\n"
    assert admin.ok("discard", "--task", "send") == "No dead runs match.\n"
    nothing = admin.ok("cancel", "--task", "export")
    assert nothing == "No queued or failed or running runs match.\n"
    assert admin.ok("cancel", "--stale") == "No running runs match.\n"
    assert admin.ok("retry", "--overdue", "--queue", "x").startswith(
        "No failed runs match. No task"
    )
    assert "--status" not in admin.ok("retry", "--overdue", "--queue", "x")
    assert admin.refused("retry", "--status", "succeeded", "--yes") == (
        "Error: Each of these runs succeeded. To do its work again: flask jobs admin again ID\n"
    )


def test_ctrl_c_says_how_many_runs_are_done(
    admin: Admin, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rows.run("dead")
    change, calls = run_actions.change_in_rounds, []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return change(*arguments, **more)

    monkeypatch.setattr(run_actions, "change_in_rounds", interrupted)
    monkeypatch.setattr("flask_cronjobs.insights.run_actions.CHANGED_AT_ONCE", 2)
    result = admin("retry", "--status", "dead", "--yes")
    assert result.exit_code == 1
    assert "Stopped: at least 2 of 3 runs are done." in result.output


def test_a_payload_that_cannot_be_used_is_refused(admin: Admin, rows: Rows) -> None:
    rows.run("dead", payload={"user": 1})
    for payload, code, message in (
        ('{"usr": 2}', 1, "send() missing a required argument: 'user'"),
        ("user=1", 2, "Give an object of arguments, such as '{\"user_id\": 1}'."),
        ("[1]", 2, "Give an object of arguments, such as '{\"user_id\": 1}'."),
        ('{"user":' + "[" * 50_000 + "]" * 50_000 + "}", 2, "it is nested too deeply"),
    ):
        for command in (("retry", "1"), ("again", "1"), ("run", "send")):
            output = admin.refused(*command, "--payload", payload, code=code)
            assert message in output
            assert ("Give the arguments as --payload JSON." in output) == (code == 1)
            assert rows.get(1).status == "dead"


def test_retry_takes_another_payload_and_again_makes_a_new_run(admin: Admin, rows: Rows) -> None:
    run_id = rows.run("dead", payload={"user": 1})
    output = admin.ok("retry", run_id, "--payload", '{"user": 2}')
    assert output == f"Run {run_id} of send: queued again.\n"
    assert (rows.get(run_id).status, rows.get(run_id).payload) == ("queued", {"user": 2})
    output = admin.ok("again", run_id)
    assert output == f"Queued run {run_id + 1}, like run {run_id}. The next tick runs it.\n"
    new = admin.data("again", run_id, "--payload", '{"user": 9}')["id"]
    assert rows.get(new).payload == {"user": 9}


# run


def test_run_queues_a_run_with_a_payload(admin: Admin, stored: Stored) -> None:
    run = admin.data("run", "send", "--payload", '{"user": 1}')
    assert run == {"id": 1, "is_new": True}
    assert stored()[0].payload == {"user": 1}
    assert admin.refused("run", "sent").endswith("Did you mean 'send'?\n")


def test_run_is_due_at_the_time_or_after_the_delay(admin: Admin, stored: Stored) -> None:
    output = admin.ok("run", "export", "--at", "2030-01-01T07:00+01:00")
    assert output == "Queued run 1 of export, due 2030-01-01 06:00:00 UTC.\n"
    output = admin.ok("run", "export", "--delay", "10m")
    assert output == "Queued run 2 of export, due in 10 min.\n"
    first, second = stored()
    assert first.run_at == datetime(2030, 1, 1, 6, tzinfo=timezone.utc)
    assert first.status == "queued"
    assert timedelta(minutes=9) < second.run_at - now() < timedelta(minutes=11)


def test_a_run_that_a_pause_holds_back_is_not_promised_to_the_next_tick(admin: Admin) -> None:
    admin.ok("pause", "--task", "export")
    waits = "It waits until the task export is resumed.\n"
    assert admin.ok("run", "export") == f"Queued run 1 of export. {waits}"
    assert admin.ok("again", 1) == f"Queued run 2, like run 1. {waits}"


def test_key_that_a_run_has_queues_nothing(admin: Admin, stored: Stored) -> None:
    output = admin.ok("run", "export", "--key", "k")
    assert output == "Queued run 1 of export. The next tick runs it.\n"
    again = admin.ok("run", "export", "--key", "k")
    assert again == "Queued nothing: run 1 of export already has the key.\n"
    assert admin.data("run", "export", "--key", "k") == {"id": 1, "is_new": False}
    assert "held by run 1 of the task export" in admin.refused("run", "other", "--key", "k")
    (run,) = stored()
    assert run.idempotency_key == "k"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        *(
            (["--at", time], 2, f"{time!r} is not a time with a time zone. Write 2026-11-20T06:00Z")
            for time in (
                "2030-01-01T07:00",
                "tomorrow",
                "",
                "0001-01-01T00:00+23:59",
                "9999-12-31T23:59-23:59",
            )
        ),
        (["--at", "2030-01-01T07:00Z", "--delay", "1m"], 2, "Give --at or --delay, not both."),
        (["--delay", "soon"], 2, "is not a duration"),
        (["--queue", ""], 1, "queue is ''"),
    ],
)
def test_wrong_options_are_refused(
    admin: Admin, stored: Stored, args: list[Any], code: int, message: str
) -> None:
    assert message in admin.refused("run", "export", *args, code=code)
    assert stored() == []


# pause, resume


def test_pause_and_resume(admin: Admin, rows: Rows) -> None:
    rows.definition("daily")
    assert "resume daily" in admin.ok("pause", "daily")
    assert "daily is already paused" in admin.ok("pause", "daily")
    admin.ok("pause", "--queue", "mail")
    assert "mail is already paused" in admin.ok("pause", "--queue", "mail")
    assert "paused" in admin.ok("definitions")
    assert admin.ok("resume", "daily") == "Resumed daily.\n"
    assert admin.ok("resume", "daily") == "Not paused: daily.\n"
    assert admin.ok("resume", "--task", "snd") == "Not paused: the task snd.\n"
    output = admin.ok("pause", "--queue", "defaults")
    assert "No task in this app's code uses the queue defaults. Did you mean 'default'?" in output
    admin.refused("pause", "dayly")
    admin.refused("pause", code=2)
    admin.refused("pause", "daily", "--queue", "mail", code=2)


def test_the_commands_that_remove_a_schedule_cancel_its_runs(
    admin: Admin, rows: Rows, stored: Stored
) -> None:
    rows.run(definition_id=rows.definition("send_reminders"))
    page = blocks(named("changing-code.md"), "sh")
    (text,) = (block.text for block in page if "admin remove" in block.text)
    for line in text.splitlines():
        admin.ok(*shlex.split(line)[3:], input="y\n")
    assert [run.status for run in stored()] == ["cancelled"]
    assert "send_reminders" not in admin.ok("definitions")
