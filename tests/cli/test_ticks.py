"""``admin ticks``: which ticks came, what they did, and when none came."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import pytest
from click.testing import Result
from flask import Flask

from flask_cronjobs import CronJobs
from tests.rows import Rows, ago

Run = Callable[..., Result]


@pytest.fixture
def ticks(app: Flask, jobs: CronJobs) -> Run:
    return lambda *args: app.test_cli_runner().invoke(args=["jobs", "admin", "ticks", *args])


def test_no_tick_yet_says_how_to_install_one(ticks: Run) -> None:
    result = ticks()
    assert result.exit_code == 0
    assert result.output == "No tick has run yet. To install one: flask jobs admin crontab\n"


def test_each_tick_is_a_line_newest_first(ticks: Run, rows: Rows) -> None:
    rows.tick(
        host="web-1", started_at=ago(120), seen_at=ago(118), finished_at=ago(118), succeeded=3
    )
    rows.tick(
        host="web-2", started_at=ago(60), seen_at=ago(59), finished_at=ago(59), failed=1, dead=2
    )
    rows.tick(host="web-3", started_at=ago(4), seen_at=ago(2), finished_at=None)
    header, *lines = ticks().output.splitlines()
    assert header.split() == ["ID", "STARTED", "HOST", "TOOK", "DID"]
    third, second, first = lines
    assert "web-3" in third
    assert "seen " in third
    assert third.endswith("nothing was due")
    assert "web-2" in second
    assert second.endswith("1 failed, 2 dead")
    assert "web-1  2.0 s" in first
    assert first.endswith("3 succeeded")


def test_tick_that_only_snoozed_runs_did_something(ticks: Run, rows: Rows) -> None:
    rows.tick(started_at=ago(60), seen_at=ago(59), finished_at=ago(59), snoozed=2)
    assert ticks().output.splitlines()[-1].endswith("2 snoozed")


def test_gaps_come_first(ticks: Run, rows: Rows) -> None:
    for start in (4000, 1000):
        rows.tick(started_at=ago(start), seen_at=ago(start - 1), finished_at=ago(start - 1))
    now, before, *_ = ticks().output.splitlines()
    assert now.startswith("No tick has done its work since ")
    assert before.startswith("No tick did its work from ")
    assert before.endswith(": 49 min 59 s.")


def test_pages_and_json(ticks: Run, rows: Rows) -> None:
    ids = [rows.tick(started_at=ago(age)) for age in (300, 200, 100)]
    line = ticks("--limit", "2").output.splitlines()[-1]
    words = shlex.split(line.removeprefix("Older: "))
    assert words == f"flask jobs admin ticks --limit 2 --before {ids[1]}".split()
    older = json.loads(ticks(*words[4:], "--json").output)
    assert [tick["id"] for tick in older["ticks"]] == ids[:1]
    assert older["before"] is None
    assert set(older["ticks"][0]) >= {"host", "started_at", "succeeded", "clock_offset"}
    assert "There are no older ticks." in ticks("--before", str(ids[0])).output
