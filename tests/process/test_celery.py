"""What is Celery's alone; `test_engines` has what all engines share."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, CronJobsError
from flask_cronjobs.registry.executor import executor_of
from tests.brokers import Broker
from tests.process.engines import EngineSite, engine_site
from tests.process.support import wait_until

pytest.importorskip("celery")


@pytest.fixture
def site(postgresql_url: str, tmp_path: Path, redis_server: Broker) -> Iterator[EngineSite]:
    """A site whose runs Celery executes, on Redis."""
    with engine_site(postgresql_url, tmp_path, "celery", redis_server) as made:
        yield made


def test_doubled_deliveries(site: EngineSite, redis_server: Broker) -> None:
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


def test_on_rabbitmq(postgresql_url: str, tmp_path: Path, rabbitmq_server: Broker) -> None:
    """A connection cut in mid-run, redelivered messages, and the broker's data lost."""
    with engine_site(postgresql_url, tmp_path, "celery", rabbitmq_server) as site:
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


def test_flask_without_celery_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Flask("x")
    app.config.update(SQLALCHEMY_DATABASE_URI="sqlite://", CRONJOBS_EXECUTORS={"far": "celery"})
    SQLAlchemy(app)
    CronJobs(app)
    monkeypatch.setitem(sys.modules, "celery", None)
    monkeypatch.delitem(sys.modules, "flask_cronjobs.executors.celery", raising=False)
    with pytest.raises(CronJobsError, match=r"pip install 'Flask-CronJobs\[celery\]'"):
        executor_of(app, "celery")
