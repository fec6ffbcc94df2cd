"""``flask jobs admin discard``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from flask_cronjobs import CronJobs
from tests.rows import Rows


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Callable[..., Result]:
    def invoke(*args: str, **kwargs: Any) -> Result:
        return app.test_cli_runner().invoke(args=["jobs", "admin", *args], **kwargs)

    return invoke


def test_runs_are_discarded_by_id(run: Callable[..., Result], rows: Rows) -> None:
    dead, queued = rows.run("dead"), rows.run("queued")
    result = run("discard", str(dead), str(queued))
    assert result.exit_code == 1
    assert f"Run {dead} of send: discarded." in result.output
    assert f"Run {queued} is not dead. To stop it: flask jobs admin cancel" in result.output
    assert [rows.get(each).status for each in (dead, queued)] == ["cancelled", "queued"]


def test_those_of_a_filter_are_counted_before(run: Callable[..., Result], rows: Rows) -> None:
    dead = [rows.run("dead"), rows.run("dead")]
    rows.run("dead", job_type="other")
    refused = run("discard", "--task", "send", input="n\n")
    assert refused.exit_code == 1
    assert "Discard 2 runs?" in refused.output
    assert {rows.get(each).status for each in dead} == {"dead"}
    done = run("discard", "--task", "send", "--yes")
    assert "2 runs are discarded." in done.output
    assert {rows.get(each).status for each in dead} == {"cancelled"}
