"""Runs that Celery's workers execute: what may be killed, lost and doubled, and what not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_cronjobs.failpoints import VARIABLE
from flask_cronjobs.types import handed_to
from tests.brokers import Broker
from tests.process.engines import EngineSite, engine_site
from tests.process.support import wait_until

pytest.importorskip("celery")


@pytest.fixture
def site(database_url: str, tmp_path: Path, redis_server: Broker) -> Iterator[EngineSite]:
    """A site whose runs Celery executes, on Redis."""
    with engine_site(database_url, tmp_path, "celery", redis_server) as made:
        yield made


POOLS = {
    "prefork": ("--pool", "prefork", "--concurrency", "2"),
    "threads": ("--pool", "threads", "--concurrency", "4"),
}


@pytest.mark.parametrize("pool", POOLS)
def test_every_kind_of_run_is_executed_once(pool: str, site: EngineSite) -> None:
    site.start_worker(*POOLS[pool])
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
    # None of it in a tick.
    assert not {line["pid"] for line in site.trace()} & {tick.pid for tick in site.ticks[1:]}


def test_timeout_and_cancel_interrupt_a_handler(site: EngineSite) -> None:
    site.start_worker()
    too_long, stubborn, cancelled = (
        site.enqueue("too_long"),
        site.enqueue("too_long_and_stubborn", {"seconds": 60}),
        site.enqueue("sleep", {"seconds": 60}),
    )
    site.hand_on()
    wait_until(lambda: site.failures(too_long) == ["TimedOut"])
    wait_until(lambda: site.failures(stubborn)[:1] == ["TimedOut"])
    wait_until(lambda: site.trace("begun") and site.run(cancelled).locked_by)
    site.wait_for_status(cancelled, "running")
    wait_until(lambda: any(line["run"] == cancelled for line in site.trace("begun")))
    site.cancel(cancelled)
    site.wait_for_status(cancelled, "cancelled")


def test_a_long_run_keeps_its_lease(site: EngineSite) -> None:
    site.start_worker()
    run = site.enqueue("sleep", {"seconds": 6})
    site.hand_on()
    site.wait_for("begun")
    for _ in range(3):
        time.sleep(1.5)
        site.hand_on()
    site.wait_for_status(run, "succeeded")
    assert site.run(run).attempts == 1


def test_kill_of_the_worker_and_its_processes(site: EngineSite) -> None:
    worker = site.start_worker()
    run = site.enqueue("wait_once")
    site.hand_on()
    site.wait_for("begun")
    worker.end()
    site.start_worker()
    site.tick_until_ended(run)
    assert site.run(run).status == "succeeded"
    assert site.failures(run) == ["WorkerLost"]
    assert len(site.trace("redone")) == 1


def test_kill_of_one_process_of_the_pool(site: EngineSite) -> None:
    site.start_worker()
    run = site.enqueue("kill_self", {"attempts": 1})
    site.tick_until_ended(run)
    assert site.failures(run) == ["WorkerLost"]
    assert len(site.trace("survived")) == 1


def test_kill_between_begin_and_handler(site: EngineSite) -> None:
    worker = site.start_worker(**{VARIABLE: "before-handler"})
    run = site.enqueue("note")
    site.hand_on()
    wait_until(lambda: site.run(run).locked_by and handed_to(site.run(run).locked_by) is None)
    worker.end()
    assert site.trace("note") == []
    site.start_worker()
    site.tick_until_ended(run)
    assert len(site.trace("note")) == 1
    assert site.failures(run) == ["WorkerLost"]


@pytest.mark.parametrize("point", ["before-send", "after-send"])
def test_kill_of_the_tick_that_hands_on(point: str, site: EngineSite) -> None:
    run = site.enqueue("note")
    done = site.run_tick(env={VARIABLE: point})
    assert done.returncode == -signal.SIGKILL
    assert handed_to(site.run(run).locked_by) == "celery"
    site.start_worker()
    if point == "after-send":
        site.wait_for("note")
    site.tick_until_ended(run)
    assert len(site.trace("note")) == 1
    assert (site.run(run).attempts, site.failures(run)) == (1, [])


def test_kill_of_the_broker_with_its_data(site: EngineSite, redis_server: Broker) -> None:
    ids = site.enqueue_many("note", [{}] * 10)
    site.hand_on()
    redis_server.renew()
    site.start_worker()
    site.tick_until_ended(*ids)
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys(ids, 1)
    assert {site.run(each).attempts for each in ids} == {1}


def test_a_broker_that_is_away(site: EngineSite, redis_server: Broker) -> None:
    site.start_worker()
    first = site.enqueue("note")
    site.tick_until_ended(first)
    redis_server.kill()
    ids = site.enqueue_many("note", [{}] * 3)
    done = site.run_tick()
    assert done.returncode == 0
    assert "celery cannot be reached, so the queue default waits" in done.stderr
    assert {site.run(each).status for each in ids} == {"queued"}
    assert {site.run(each).attempts for each in ids} == {0}
    redis_server.start()
    site.tick_until_ended(*ids)
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys([first, *ids], 1)


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


def test_warm_shutdown_lets_a_run_end(site: EngineSite) -> None:
    worker = site.start_worker()
    run = site.enqueue("sleep", {"seconds": 3})
    site.hand_on()
    site.wait_for("begun")
    worker.send(signal.SIGTERM)
    worker.wait()
    assert site.run(run).status == "succeeded"
    assert site.run(run).attempts == 1


def test_resident_worker_hands_on(site: EngineSite) -> None:
    site.start_worker()
    resident = site.start("jobs", "work")
    ids = site.enqueue_many("note", [{}] * 30)
    wait_until(lambda: site.statuses().get("succeeded") == 30)
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys(ids, 1)
    resident.send(signal.SIGTERM)
    assert resident.wait().returncode == 0


def test_on_rabbitmq(database_url: str, tmp_path: Path, rabbitmq_server: Broker) -> None:
    """A connection cut in mid-run, redelivered messages, and the broker's data lost."""
    with engine_site(database_url, tmp_path, "celery", rabbitmq_server) as site:
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
