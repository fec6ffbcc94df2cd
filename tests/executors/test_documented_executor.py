"""The executors of the page ``outgrowing.md`` work as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun
from tests.brokers import Broker
from tests.process.support import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "outgrowing.md"

SHOP = """
from dramatiq.brokers.redis import RedisBroker
from dramatiq_executor import DramatiqExecutor
from flask import Flask
from flask_cronjobs import CronJobs
from flask_sqlalchemy import SQLAlchemy

db = SQLAlchemy()
jobs = CronJobs()


@jobs.task(queue="reports")
def report(value):
    return value


def create_app():
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = DATABASE_URL
    db.init_app(app)
    CREATE_APP
    jobs.init_app(app)
    return app
"""


def printed(begin: str) -> str:
    """The block of the page that begins so."""
    blocks = re.findall("```(?:python|py|sh)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [each for each in blocks if each.startswith(begin) or f"\n{begin}" in each]
    return str(block)


def results(db: SQLAlchemy) -> list[Any]:
    db.session.rollback()
    done = db.session.query(JobRun).filter_by(status="succeeded", attempts=1)
    return sorted(run.result for run in done)


def test_threads_execute_runs(app: Flask, db: SQLAlchemy) -> None:
    names: dict[str, Any] = {}
    block = printed("class ThreadExecutor")
    assert len(block.splitlines()) <= 50
    exec(block, names)
    executor = names["ThreadExecutor"](app)
    app.config["CRONJOBS_EXECUTORS"] = {"far": executor}
    jobs = CronJobs(app)
    task = jobs.task(queue="far", name="far")(lambda value: value)
    with app.app_context():
        db.create_all()
        task.using(commit=True).enqueue_many([{"value": number} for number in range(10)])
        jobs.tick()
        executor.pool.shutdown()
        assert results(db) == list(range(10))


def write_shop(folder: Path, database_url: str, redis_url: str) -> None:
    in_create_app = printed("# In create_app() of shop.py").replace("\n", "\n    ")
    assert "redis://localhost:6379/0" in in_create_app
    shop = SHOP.replace("CREATE_APP", in_create_app).replace("DATABASE_URL", repr(database_url))
    (folder / "shop.py").write_text(shop.replace("redis://localhost:6379/0", redis_url))
    for name in ("dramatiq_executor.py", "make_dramatiq.py"):
        (folder / name).write_text(printed(f"# {name}\n"))


@pytest.mark.slow
def test_dramatiq_executes_runs(
    database_url: str, tmp_path: Path, redis_server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dramatiq")
    redis_server.renew()
    write_shop(tmp_path, database_url, redis_server.url)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop", "dramatiq_executor"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import shop  # type: ignore[import-not-found]

    app = shop.create_app()
    command, *args = printed("dramatiq make_dramatiq").split()
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    worker = subprocess.Popen(
        [sys.executable, "-m", command, *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        with app.app_context():
            shop.db.create_all()
            shop.report.using(commit=True).enqueue_many([{"value": each} for each in range(8)])
            shop.jobs.tick()
            wait_until(lambda: results(shop.db) == list(range(8)))
            shop.db.session.rollback()
            shop.db.engine.dispose()
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
