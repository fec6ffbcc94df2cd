"""Commands that look at runs: list, show, wait."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.insights import run_list
from flask_cronjobs.models import JobOutput
from tests.rows import Rows, ago, now

from .conftest import Admin


@pytest.fixture
def jobs(jobs: CronJobs) -> CronJobs:
    for name in ("send", "export"):
        jobs.task(name=name)(lambda: None)
    return jobs


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
    assert "Searched labels and tasks back to run" in out
    assert [run["id"] for run in admin.data(*args)["runs"]] == [queued, dead]
    times = ("--since", f"{ago(60):%Y-%m-%dT%H:%MZ}", "--until", f"{ago(-60):%Y-%m-%dT%H:%MZ}")
    assert len(admin.data("list", *times)["runs"]) == 3


def test_the_next_page_keeps_an_age_of_0(admin: Admin, rows: Rows) -> None:
    """Without it, the next page would have runs that are not due yet."""
    rows.run(age=-600)
    for _ in range(2):
        rows.run(age=60)
    out = admin.ok("list", "--older-than", "0s", "--limit", "1")
    assert "Older: flask jobs admin list --older-than 0s --limit 1 --before" in out


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


def test_ctrl_c_does_not_end_a_wait_as_a_dead_run_does(
    admin: Admin, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flask_cronjobs.cli.runs.time", SimpleNamespace(sleep=press))
    admin.refused("wait", rows.run(), code=130)


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


def test_show_lists_steps(admin: Admin, rows: Rows) -> None:
    run_id = rows.run("dead")
    rows.step(run_id, "totals", result={"sum": 7})
    rows.step(run_id, "nap", "sleep", due_at=now() + timedelta(hours=1), finished_at=None)
    output = admin.ok("show", run_id)
    assert "  totals: done, " in output
    assert ', took 3.0 s, attempt 1 on web-1:7\n    {"sum": 7}\n' in output
    assert "  nap: sleeps until " in output
    assert [step["name"] for step in admin.data("show", run_id)["steps"]] == ["totals", "nap"]


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
