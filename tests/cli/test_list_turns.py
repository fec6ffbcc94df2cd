"""``admin turns``: the keys in strict order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from flask_cronjobs import CronJobs
from tests.rows import Rows, ago

Run = Callable[..., Result]


@pytest.fixture
def admin(app: Flask, jobs: CronJobs) -> Run:
    return lambda *args: app.test_cli_runner().invoke(args=["jobs", "admin", *args])


@pytest.fixture
def dead(rows: Rows) -> int:
    """A dead run that stops its key; two wait behind it. Another key has one run."""
    order: dict[str, Any] = {"concurrency_limit": 1, "on_dead": "stop"}
    dead = rows.run("dead", finished_at=ago(60), concurrency_key="account:1", **order)
    for _ in range(2):
        rows.run(concurrency_key="account:1", order_mark="waits", **order)
    rows.run(concurrency_key="account:2", **order)
    return dead


def test_no_strict_order(admin: Run) -> None:
    assert admin("turns").output == "No run of a strict order waits or runs.\n"
    assert admin("turns", "--stopped").output == "No key is stopped.\n"


def test_each_key_is_a_line_with_what_it_waits_for(admin: Run, dead: int) -> None:
    header, first, second, advice = admin("turns").output.splitlines()
    assert header.split() == ["KEY", "WAITING", "FIRST", "TASK", "STATUS", "WHY"]
    assert first.split()[:3] == ["account:1", "2", str(dead)]
    assert "stopped by a dead run" in first
    assert second.split()[:2] == ["account:2", "0"]
    assert f"flask jobs admin retry {dead}" in advice
    assert f"flask jobs admin discard {dead}" in advice
    assert "account:2" not in admin("turns", "--stopped").output


def test_the_next_page_is_of_stopped_keys_too(admin: Run, jobs: CronJobs, rows: Rows) -> None:
    for number in range(2):
        key: dict[str, Any] = {"concurrency_key": f"stopped:{number}", "on_dead": "stop"}
        rows.run("dead", concurrency_limit=1, **key)
    more = "More: flask jobs admin turns --stopped --limit 1 --after stopped:0\n"
    assert more in admin("turns", "--stopped", "--limit", "1").output


def test_pages_and_json(admin: Run, dead: int) -> None:
    more = "More: flask jobs admin turns --limit 1 --after account:1\n"
    assert more in admin("turns", "--limit", "1").output
    found = json.loads(admin("turns", "--json", "--after", "account:1").output)
    assert [each["key"] for each in found["keys"]] == ["account:2"]
    assert found["after"] is None


def test_overview_and_show_tell_of_it(admin: Run, rows: Rows, dead: int) -> None:
    assert "Strict order is stopped by 1 dead run: flask jobs admin turns --stopped" in (
        admin().output
    )
    shown = admin("show", str(dead + 1)).output
    assert f"strict, waits for run {dead}, which is dead and stops its key" in shown
    assert f"flask jobs admin retry {dead}, or: flask jobs admin discard {dead}" in shown


def test_queued_runs_that_wait_for_their_turn_are_listed(admin: Run, dead: int) -> None:
    found = json.loads(admin("list", "--status", "queued", "--json").output)
    assert len(found["runs"]) == 3
