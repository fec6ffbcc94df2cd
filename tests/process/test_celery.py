"""What is Celery's alone; `test_executors` has what all executors share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker
from tests.process.executor_workers import ExecutorSite, executor_site
from tests.process.support import wait_until

pytest.importorskip("celery")


@pytest.fixture
def site(database_url: str, tmp_path: Path, redis_server: Broker) -> Iterator[ExecutorSite]:
    """A site whose runs Celery executes, on Redis."""
    with executor_site(database_url, tmp_path, "celery", redis_server) as made:
        yield made


def test_threads_execute_runs(site: ExecutorSite) -> None:
    site.start_worker("--pool", "threads", "--concurrency", "4")
    ids = site.enqueue_many("note", [{"label": str(n)} for n in range(20)])
    ids += site.enqueue_many("effect", [{"key": "a"}, {"key": "b"}])
    ids += site.enqueue_many("atomic_entry", [{"label": "a"}, {"label": "b"}])
    ids += [site.enqueue("fail", {"attempts": 1})]
    site.tick_until_ended(*ids)
    assert site.statuses() == {"succeeded": len(ids)}
    assert Counter(line["label"] for line in site.trace("note")) == {str(n): 1 for n in range(20)}
    assert Counter(line["key"] for line in site.trace("effect")) == {"a": 1, "b": 1}
    assert len(site.query("SELECT id FROM entries")) == 2
    assert site.failures(ids[-1]) == ["RuntimeError"]


def test_doubled_deliveries(site: ExecutorSite, redis_server: Broker) -> None:
    """Redis delivers a message again that was not acknowledged for its visibility timeout."""
    import redis

    ids = site.enqueue_many("note", [{}] * 10)
    site.hand_on()
    client: Any = redis.Redis.from_url(redis_server.url)
    messages = client.lrange("default", 0, -1)
    assert len(messages) == 10
    for _ in range(2):
        client.rpush("default", *messages)
    site.start_worker()
    wait_until(lambda: client.llen("default") == 0)
    site.tick_until_ended(*ids)
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys(ids, 1)


def test_on_rabbitmq(database_url: str, tmp_path: Path, rabbitmq_server: Broker) -> None:
    """A connection cut in mid-run, redelivered messages, and the broker's data lost."""
    with executor_site(database_url, tmp_path, "celery", rabbitmq_server) as site:
        worker = site.start_worker()
        ids = site.enqueue_many("note", [{}] * 10)
        ids += [site.enqueue("sleep", {"seconds": 4})]
        site.hand_on()
        site.wait_for("begun")
        more = site.enqueue_many("note", [{}] * 10)
        os.kill(worker.pid, signal.SIGSTOP)
        site.hand_on()
        rabbitmq_server.kill()
        os.kill(worker.pid, signal.SIGCONT)
        done = site.run_tick()
        assert done.returncode == 0, done.stderr
        rabbitmq_server.start()
        site.tick_until_ended(*ids, *more)
        notes = Counter(line["run"] for line in site.trace("note"))
        assert notes == dict.fromkeys([*ids[:-1], *more], 1)
        assert len(site.trace("ended")) == 1
        assert {site.run(each).attempts for each in [*ids, *more]} == {1}


def test_flask_without_celery_installed_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['celery'] = None\n"
        "from flask import Flask\nfrom flask_sqlalchemy import SQLAlchemy\n"
        "from flask_cronjobs import CronJobs\n"
        "from flask_cronjobs.registry.executor import executor_of\n"
        "app = Flask('x')\napp.config['SQLALCHEMY_DATABASE_URI'] = 'sqlite://'\n"
        "app.config['CRONJOBS_EXECUTORS'] = {'far': 'celery'}\n"
        "SQLAlchemy(app)\nCronJobs(app)\nexecutor_of(app, 'celery')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path.cwd()
    )
    assert "pip install 'Flask-CronJobs[celery]'" in done.stderr
