"""``flask jobs admin batches``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Callable[..., Result]:
    def invoke(*args: str, **kwargs: Any) -> Result:
        return app.test_cli_runner().invoke(args=["jobs", "admin", "batches", *args], **kwargs)

    return invoke


@pytest.fixture
def batch(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> str:
    """The key of a batch: one run has succeeded, one has died, and two wait."""

    @jobs.task(retry=1)
    def work(bad: bool = False) -> None:
        if bad:
            raise ValueError("bad")

    with app.app_context():
        with jobs.batch("b", then=work, close=False):
            work.enqueue()
            work.enqueue(bad=True)
            work.using(delay=3600).enqueue_many([{}] * 2)
        db.session.commit()
        jobs.tick()
    return "b"


def test_list(run: Callable[..., Result], batch: str) -> None:
    line = run().output.splitlines()[1].split()
    assert line[:5] == ["b", "open", "[##########..........]", "2/4", "1"]


def test_a_page_that_is_just_full_is_the_last(run: Callable[..., Result], batch: str) -> None:
    assert "Older" not in run("--limit", "1").output
    assert json.loads(run("--limit", "1", "--json").output)["before"] is None


def test_show(run: Callable[..., Result], batch: str) -> None:
    output = run(batch).output
    assert "Batch b: open" in output
    assert "50% of 4 members" in output
    assert "Its dead runs: flask jobs admin list --batch b --status dead" in output
    assert json.loads(run(batch, "--json").output)["counts"]["total"] == 4
    missing = run("nothing")
    assert missing.exit_code == 1
    assert "no batch nothing" in missing.output


def test_cancel_retry_and_close(run: Callable[..., Result], batch: str) -> None:
    assert "Closed b." in run(batch, "--close").output
    assert "closed already" in run(batch, "--close").output
    assert f"2 runs of {batch} are cancelled.\n" in run(batch, "--cancel").output
    assert "No batch is unfinished" in run().output
    assert "finished" in run("--all").output
    assert f"1 run of {batch} is queued again.\n" in run(batch, "--retry", "--again").output
    assert "running" in run().output


@pytest.mark.parametrize("wrong", [("--retry",), ("b", "--again"), ("b", "--retry", "--cancel")])
def test_wrong_use(run: Callable[..., Result], wrong: tuple[str, ...]) -> None:
    assert run(*wrong).exit_code == 2


def test_nothing_there(run: Callable[..., Result]) -> None:
    assert "No batches." in run("--all").output
    assert json.loads(run("--json").output) == {"batches": [], "before": None}


@pytest.mark.parametrize("change", ["--retry", "--cancel", "--close"])
@pytest.mark.parametrize("option", ["--json", "--watch"])
def test_what_is_for_a_list_is_refused_for_a_change(
    run: Callable[..., Result], batch: str, change: str, option: str
) -> None:
    before = run(batch, "--json").output
    result = run(batch, change, option)
    assert result.exit_code == 2
    assert "Leave them out of a change." in result.output or "for a terminal" in result.output
    assert run(batch, "--json").output == before
