"""The commands about runs: list, show, retry, cancel, discard, again, run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from textwrap import indent
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.insights import run_list
from flask_cronjobs.models import JobOutput, JobRun
from tests.rows import Rows, ago, now, runs

from .conftest import Admin

Stored = Callable[[], "list[JobRun]"]


@pytest.fixture
def jobs(jobs: CronJobs) -> CronJobs:
    @jobs.task
    def send(user: int) -> None: ...

    jobs.task(name="export")(lambda: None)
    jobs.task(name="other")(lambda: None)
    jobs.task(name="nightly", schedule="0 7 1 1 *", queue="slow")(lambda: None)
    return jobs


@pytest.fixture
def stored(app: Flask, db: SQLAlchemy) -> Stored:
    """Read all runs."""

    def read() -> list[JobRun]:
        with app.app_context():
            return runs(db)

    return read


# list and show


def test_list_filters_pages_and_prints_json(admin: Admin, rows: Rows) -> None:
    assert "no runs yet" in admin.ok("list")
    ids = [rows.run("dead", error_type="OSError", job_type="a task", age=60) for _ in range(3)]
    rows.run()
    args = ("--status", "dead", "--task", "a task", "--newer-than", "12d", "--limit", "2")
    output = admin.ok("list", *args)
    assert str(ids[2]) in output
    assert "queued" not in output
    words = shlex.split(output.partition("Older: ")[2])
    assert words[:4] == ["flask", "jobs", "admin", "list"]
    page = admin.data(*words[3:])
    assert [run["id"] for run in page["runs"]] == ids[:1]
    assert page["before"] is None
    assert "Older" not in admin.ok("list", "--error", "oserr", "--limit", "3")
    assert admin.data("list", "--error", "oserr", "--newer-than", "2h")["runs"]
    assert not admin.data("list", "--older-than", "2h")["runs"]


def test_list_searches_several_statuses_and_a_time(admin: Admin, rows: Rows) -> None:
    dead = rows.run("dead", job_type="send", label="invoice 7", age=50)
    queued = rows.run(job_type="send", label="invoice 77", age=10, queue="slow")
    rows.run("succeeded", job_type="send", label="invoice 7")
    args = ("list", "--status", "dead", "--status", "queued", "-q", "invoice 7")
    out = admin.ok(*args, "--limit", "1", "--wide")
    assert [word in out for word in ("QUEUE", "slow")] == [True, True]
    again = shlex.join(("flask", "jobs", "admin", *args, "--wide", "--limit", "1", "--before"))
    older = next(line for line in out.splitlines() if "Older" in line)
    assert sorted(shlex.split(f"{again} {queued}")) == sorted(shlex.split(older)[1:])
    assert "Searched all runs by id and idempotency key, and by label and task back to run" in out
    assert [run["id"] for run in admin.data(*args)["runs"]] == [queued, dead]
    times = ("--since", f"{ago(60):%Y-%m-%dT%H:%MZ}", "--until", f"{ago(-60):%Y-%m-%dT%H:%MZ}")
    assert len(admin.data("list", *times)["runs"]) == 3


def test_wait_ends_with_the_outcome(admin: Admin, rows: Rows) -> None:
    codes = {"succeeded": 0, "dead": 1, "cancelled": 3, "skipped": 4, "queued": 124}
    for status, code in codes.items():
        run_id = rows.run(status, job_type="send", label="to Ada", last_error="why")
        result = admin("wait", run_id, "--timeout", "0")
        assert result.exit_code == code
        assert f"Run {run_id} of send (to Ada): {status}" in result.output
        message = f"Waiting for run {run_id}, which is queued: it waits for a worker"
        assert (message in result.stderr) == (status == "queued")
        assert ("why" in result.output) == (status != "succeeded")
    assert "There is no run 4711" in admin.refused("wait", "4711", code=2)


@pytest.mark.parametrize("verb", ["list", "cancel", "retry"])
def test_filter_by_an_unknown_name_suggests_one(admin: Admin, rows: Rows, verb: str) -> None:
    rows.definition("nightly")
    assert admin.ok(verb, "--task", "exprt").endswith(
        "runs match. This app's code declares no task exprt. Did you mean 'export'?\n"
    )
    sentence = " There is no definition 'nigtly'. Did you mean 'nightly'?\n"
    assert admin.ok(verb, "--definition", "nigtly").endswith(f"runs match.{sentence}")
    assert "There is no definition" not in admin.ok(verb, "--definition", "nightly")
    assert "uses the queue default2. Did you mean 'default'?" in admin.ok(
        verb, "--queue", "default2"
    )
    hint = f"task: flask jobs admin {verb} --task export"
    assert hint in admin.ok(verb, "--definition", "export")


def test_show_prints_payload_attempts_stacks_and_output(admin: Admin, rows: Rows) -> None:
    ours = '  File "/lib/flask_cronjobs/core/worker/runner.py", line 12, in call\n    call()\n'
    theirs = '  File "/srv/shop.py", line 3, in send\n    post()\n'
    run_id = rows.run("dead", payload={"user": 7, "password": "hush"}, idempotency_key="k:1")
    rows.failure(run_id, 1, stack=f"Traceback:\n{ours}{theirs}ValueError: no\n")
    printed = "hello\x1b[31m\n"
    rows.insert(JobOutput(run_id=run_id, attempt=1, worker="w", output=printed))
    output = admin.ok("show", run_id)
    for part in ('"user": 7', '"password": "***"', "Attempt 1: failed", "worker web-1:7"):
        assert part in output
    assert re.search(r"idempotency key +\*\*\*\n", output)
    assert "took 3.0 s" in output
    assert indent(f"Traceback:\n{theirs}ValueError: no", "  ") in output
    assert indent(f"Traceback:\n{ours}{theirs}", "  ") in admin.ok("show", run_id, "--frames")
    assert "Output of attempt 1\n  hello\ufffd[31m\n" in output
    assert "hush" not in output
    view = admin.data("show", run_id)
    assert view["row"]["status"] == "dead"
    (attempt,) = view["attempts"]
    assert (attempt["output"], attempt["error_type"]) == (printed, "ValueError")
    assert "There is no run 4711; it may have been pruned." in admin.refused("show", "4711")


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
    assert f"Run {running} of send: asked its worker to stop." in output
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
    assert admin.refused("retry", "--status", "succeeded", "--yes") == (
        "Error: Each of these runs succeeded. To do its work again: flask jobs admin again ID\n"
    )


def test_show_lists_steps(admin: Admin, rows: Rows) -> None:
    run_id = rows.run("dead")
    rows.step(run_id, "totals", result={"sum": 7})
    rows.step(run_id, "nap", "sleep", due_at=now() + timedelta(hours=1), finished_at=None)
    output = admin.ok("show", run_id)
    assert "  totals: done, " in output
    assert ', took 3.0 s, attempt 1 on web-1:7\n    {"sum": 7}\n' in output
    assert "  nap: sleeps until " in output
    assert [step["name"] for step in admin.data("show", run_id)["steps"]] == ["totals", "nap"]


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


def test_a_search_of_several_steps_says_of_each_run_why_it_waits(
    jobs: CronJobs, admin: Admin, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.task(name="it")(lambda: None)
    key: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
    holder = rows.run("running", job_type="it", label="shop 3", **key, concurrency_share=1)
    for _ in range(2):
        rows.run(job_type="it", label="shop 3", **key)
    monkeypatch.setattr(run_list, "WINDOW", 1)
    assert admin.ok("list", "-q", "shop 3").count(f"key busy: run {holder}") == 2
