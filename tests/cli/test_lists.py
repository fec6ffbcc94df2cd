"""The other lists, and the commands that change their rows."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from tests.rows import Rows, ago

from .conftest import Admin


def test_empty_list_says_so(admin: Admin) -> None:
    for args, message in (
        ("definitions", "No definitions yet: add schedule= to a task; the next tick records it."),
        ("effects", "No effect is being done or in doubt."),
        ("effects --all", "No effects."),
        ("batches", "No unfinished batches. To list all: --all."),
        ("batches --all", "No batches."),
        (
            "ticks",
            "No tick has run yet. To print the line for the crontab: flask jobs admin crontab",
        ),
        ("ticks --before 1", "There are no older ticks."),
        ("list --before 1", "There are no older runs."),
        ("effects --before 1", "There are no older effects."),
        ("batches --before 1", "There are no older batches."),
        ("operations --before 1", "There are no older operations."),
        ("definitions --after z", "There are no more definitions."),
        ("operations", "No operations have been recorded."),
        ("queues", "No task is declared, and nothing waits."),
    ):
        assert admin.ok(*args.split()) == f"{message}\n"
        data = admin.data(*args.split())
        assert [data.pop(by, None) for by in ("before", "after")] == [None, None]
        assert all(rows == [] for rows in data.values())


@pytest.mark.parametrize(
    ("args", "rows_of", "key", "next_by"),
    [
        ("effects --all", "effects", "id", "Older: {} --all --limit 2 --before 2"),
        ("batches", "batches", "id", "Older: {} --limit 2 --before 2"),
        ("ticks", "ticks", "id", "Older: {} --limit 2 --before 2"),
        ("definitions", "definitions", "name", "More: {} --limit 2 --after k1"),
    ],
)
def test_next_page_is_a_command_with_all_that_was_asked(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, admin: Admin, rows: Rows,
    args: str, rows_of: str, key: str, next_by: str,
) -> None:  # fmt: skip
    jobs.task(name="it")(lambda: None)
    for number in range(3):
        rows.definition(f"k{number}")
        rows.effect(f"k{number}", state="done", done_at=ago(1))
        rows.tick(started_at=ago(100 - number))
        with app.app_context():
            with jobs.batch(f"b{number}"):
                jobs.get("it").enqueue()
            db.session.commit()
    output = admin.ok(*args.split(), "--limit", "2")
    (line,) = [line for line in output.splitlines() if line.startswith(("Older: ", "More: "))]
    name = args.split()[0]
    assert line == next_by.format(f"flask jobs admin {name}")
    words = shlex.split(line.partition(": ")[2])
    rest = admin.data(*words[3:])
    whole = admin.data(*args.split())[rows_of]
    assert len(whole) == 3
    assert [row[key] for row in rest[rows_of]] == [whole[2][key]]
    assert rest["before" if "Older" in line else "after"] is None
    assert f": flask jobs admin {name}" not in admin.ok(*args.split(), "--limit", "3")


def test_queues_are_all_listed(admin: Admin, rows: Rows) -> None:
    """The list has no next page, and its JSON would not say that it was cut."""
    names = [f"q{number:03}" for number in range(101)]
    for name in names:
        rows.run(queue=name)
    assert [queue["name"] for queue in admin.data("queues")["queues"]] == names


# definitions


def test_definitions_show_their_next_three_slots(admin: Admin, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="daily", schedule="@daily")(lambda: None)
    jobs.task(name="send")(lambda: None)
    definition = rows.definition("daily", schedule="0 7 * * *", timezone="Europe/Berlin")
    rows.definition("broken", schedule="61 * * * *")
    rows.definition("gone")
    rows.run("succeeded", definition_id=definition)
    header, broken, daily, gone, legend, unscheduled = admin.ok("definitions").splitlines()
    assert header.split() == ["NAME", "TASK", "SCHEDULE", "LAST", "TEN", "TOOK", "NEXT"]
    assert "  broken: " in broken
    assert daily.count(" 07:00") == 3
    assert "0 7 * * * Europe/Berlin  .         2.0 s  " in daily
    assert gone.endswith("not declared by this app's code")
    assert legend == ". succeeded"
    assert unscheduled == "Tasks without a schedule in the code: send"
    assert unscheduled not in admin.ok("definitions", "--limit", "1")
    views = admin.data("definitions")["definitions"]
    assert [len(view["next_slots"]) for view in views] == [0, 3, 3]


def test_slots_of_other_years_have_their_year(admin: Admin, rows: Rows, jobs: CronJobs) -> None:
    """Three leap days would look like three times the next February 29."""
    jobs.task(name="leap")(lambda: None)
    rows.definition("leap", origin="database", schedule="0 0 29 2 *")
    (view,) = admin.data("definitions")["definitions"]
    days = [slot[:10] for slot in view["next_slots"]]
    output = admin.ok("definitions")
    assert [day in output for day in days] == [day[:4] != str(ago().year) for day in days]


# effects


def test_effects_are_listed_and_settled(admin: Admin, rows: Rows) -> None:
    rows.effect("charge:1", state="in_doubt")
    rows.effect("charge:2", state="in_doubt")
    rows.effect("charge:3", state="done", done_at=ago(1))
    output = admin.ok("effects")
    assert "charge:1" in output
    assert "charge:3" not in output
    assert "charge:3" in admin.ok("effects", "--all")
    assert "will not be done again" in admin.ok("effects", "--done", "charge:1")
    assert "The next call does it" in admin.ok("effects", "--redo", "charge:2")
    assert admin.data("effects") == {"effects": [], "before": None}
    admin.refused("effects", "--done", "charge:1")


# batches


@pytest.fixture
def batch(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> str:
    """The key of a batch: one run has succeeded, one has died, and two wait."""

    @jobs.task(retry=1)
    def work(bad: bool = False) -> None:
        if bad:
            raise ValueError("bad")

    with app.app_context():
        with suppress(ZeroDivisionError), jobs.batch("b", then=work):
            work.enqueue()
            work.enqueue(bad=True)
            work.using(delay=3600).enqueue_many([{}] * 2)
            db.session.commit()
            raise ZeroDivisionError
        jobs.tick()
    return "b"


def test_batch_is_listed_and_shown(admin: Admin, batch: str) -> None:
    line = admin.ok("batches").splitlines()[1].split()
    assert line[:6] == ["b", "open", "2", "of", "4", "1"]
    output = admin.ok("batches", batch)
    assert "Batch b: open, 2 of 4 runs ended" in output
    assert "Its dead runs: flask jobs admin list --batch b --status dead" in output
    assert admin.data("batches", batch)["counts"]["total"] == 4
    assert "no batch nothing" in admin.refused("batches", "nothing")


def test_batch_is_closed_cancelled_and_retried(admin: Admin, batch: str) -> None:
    assert "Closed b." in admin.ok("batches", batch, "--close")
    assert "already closed" in admin.ok("batches", batch, "--close")
    assert f"2 runs of {batch} are cancelled.\n" in admin.ok("batches", batch, "--cancel")
    assert "No unfinished batches" in admin.ok("batches")
    assert "finished" in admin.ok("batches", "--all")
    assert f"1 run of {batch} is queued again.\n" in admin.ok("batches", batch, "--retry")


# ticks


def test_each_tick_is_a_line_newest_first(admin: Admin, rows: Rows) -> None:
    for number, did in enumerate(({"succeeded": 3}, {"failed": 1, "dead": 2}, {})):
        age = 240 - number * 60
        times: dict[str, Any] = {"started_at": ago(age), "seen_at": ago(age - 2)}
        rows.tick(host=f"web-{number}", finished_at=ago(age - 2), **times, **did)
    rows.tick(host="web-3", started_at=ago(4), seen_at=ago(2), finished_at=None)
    header, *lines = admin.ok("ticks").splitlines()
    assert header.split() == ["ID", "STARTED", "HOST", "TOOK", "DID"]
    ends = "nothing yet", "nothing was due", "1 failed, 2 dead", "3 succeeded"
    assert all(line.endswith(end) for line, end in zip(lines, ends, strict=False))
    assert ("web-3  seen " in lines[0], "web-0  2.0 s" in lines[3]) == (True, True)
    assert set(admin.data("ticks")["ticks"][0]) >= {"host", "started_at", "dead", "clock_offset"}


def test_gaps_come_first(admin: Admin, rows: Rows) -> None:
    for start in (4000, 1000):
        rows.tick(started_at=ago(start), seen_at=ago(start - 1), finished_at=ago(start - 1))
    now, before, *_ = admin.ok("ticks").splitlines()
    assert now.startswith("No tick has done its work since ")
    assert before.startswith("No tick did its work from ")
    assert before.endswith(": 49 min 59 s.")
    assert len(admin.data("ticks")["gaps"]) == 2


def test_hosts_say_when_they_were_seen_last(admin: Admin, rows: Rows) -> None:
    for host, age in (("web-1", 400), ("web-2", 90), ("web-1", 200)):
        rows.tick(host=host, started_at=ago(age), seen_at=ago(age))
    *_, second, first = admin.ok("ticks").splitlines()
    assert (second, first) == ("web-2 was seen 1 min ago", "web-1 was seen 3 min ago")
    assert [host["host"] for host in admin.data("ticks")["hosts"]] == ["web-2", "web-1"]


# errors


# operations


def test_operations_say_who_did_what(admin: Admin, jobs: CronJobs, rows: Rows) -> None:
    jobs.task(name="send")(lambda: None)
    rows.run("dead", job_type="send")
    admin.ok("retry", "--task", "send", "--yes")
    admin.ok("pause", "--queue", "mail")
    header, paused, retried = admin.ok("operations").splitlines()
    assert header.split() == ["ID", "WHEN", "BY", "WHAT", "RUNS", "TARGET"]
    assert re.search(r"\(shell\) +paused .*queue mail$", paused)
    assert re.search(r"\(shell\) +retried .*1 +1 run of send$", retried)
    page = admin.data("operations", "--limit", "1")
    assert ([row["what"] for row in page["operations"]], page["before"]) == (["paused"], 2)


def test_as_many_operations_are_printed_as_are_asked_for(admin: Admin, rows: Rows) -> None:
    for number in range(101):
        rows.operation("retried", number)
    page = admin.data("operations", "--limit", "500")
    assert (len(page["operations"]), page["before"]) == (101, None)


# queues


def test_queues_say_who_serves_them(admin: Admin, jobs: CronJobs, rows: Rows) -> None:
    jobs.task(name="send", queue="mail")(lambda: None)
    rows.tick(age=5, queues=["mail"], version="1.2", resident=True)
    rows.run("succeeded", age=60, queue="mail", run_at=ago(65), started_at=ago(62))
    rows.run(age=70, queue="slow")
    _, mail, slow = (line.split() for line in admin.ok("queues").splitlines())
    assert mail == ["mail", "0", "0", "-", "web-1"]
    assert slow == ["slow", "1", "1", "1", "min", "ago", "no", "host"]
    (queue,) = admin.data("queues")["queues"][1:]
    assert (queue["name"], queue["due"]["value"], queue["hosts"]) == ("slow", 1, [])
