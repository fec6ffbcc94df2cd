"""The executor of the page ``outgrowing.md`` works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun

PAGE = Path(__file__).parents[2] / "docs" / "outgrowing.md"


def documented() -> str:
    """The block of the page that defines `ThreadExecutor`."""
    blocks = re.findall("```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [each for each in blocks if "class ThreadExecutor" in each]
    return str(block)


def test_it_has_50_lines_at_most() -> None:
    assert len(documented().splitlines()) <= 50


def test_it_executes_runs(app: Flask, db: SQLAlchemy) -> None:
    names: dict[str, Any] = {}
    exec(documented(), names)
    executor = names["ThreadExecutor"](app)
    app.config["CRONJOBS_EXECUTORS"] = {"far": executor}
    jobs = CronJobs(app)
    task = jobs.task(queue="far", name="far")(lambda value: value)
    with app.app_context():
        db.create_all()
        task.using(commit=True).enqueue_many([{"value": number} for number in range(10)])
        jobs.tick()
        executor.pool.shutdown()
        done = {run.result for run in db.session.query(JobRun) if run.status == "succeeded"}
    assert done == set(range(10))
