"""Runs that an executor's workers execute, while kills, losses and duplicates happen."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flask_cronjobs.db.failpoints import VARIABLE
from flask_cronjobs.types import handed_to
from tests.brokers import Broker
from tests.process.executor_app import ExecutorSite, executor_site
from tests.process.support import wait_until

pytest.importorskip("celery")


@pytest.fixture
def site(database_url: str, tmp_path: Path, redis_server: Broker) -> Iterator[ExecutorSite]:
    """A site whose runs Celery executes, on Redis."""
    with executor_site(database_url, tmp_path, redis_server) as site:
        yield site


def at_work(site: ExecutorSite, task: str, payload: dict[str, Any] | None = None) -> int:
    """Enqueue a run and hand it on; return its id when a worker has begun it."""
    run = site.enqueue(task, payload)
    site.tick_here()
    wait_until(lambda: any(line["run"] == run for line in site.trace("begun")))
    return run


def assert_each_ran_once(site: ExecutorSite, ids: Sequence[int]) -> None:
    """Check that each run of `note` was called once, which its row counts as one attempt."""
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys(ids, 1)
    assert site.ends(*ids) == {("succeeded", 1)}


@pytest.mark.parametrize("options", [(), ("--pool", "threads", "--concurrency", "4")])
def test_every_kind_of_run_is_executed_once(site: ExecutorSite, options: tuple[str, ...]) -> None:
    site.start_worker(*options)
    notes = site.enqueue_many("note", [{}] * 20)
    run_ids = site.enqueue_many("effect", [{"key": "a"}, {"key": "b"}])
    run_ids += site.enqueue_many("atomic_entry", [{"label": "a"}, {"label": "b"}])
    failing = site.enqueue("fail", {"attempts": 1})
    site.tick_until_ended(*notes, *run_ids, failing)
    assert_each_ran_once(site, notes)
    assert Counter(line["key"] for line in site.trace("effect")) == {"a": 1, "b": 1}
    assert len(site.query("SELECT id FROM entries")) == 2
    assert (site.failures(failing), site.ends(failing)) == (["RuntimeError"], {("succeeded", 2)})
    assert os.getpid() not in {line["pid"] for line in site.trace()}, "a tick has executed one"


def test_a_worker_with_a_limit_of_runs_hands_more_runs_over(site: ExecutorSite) -> None:
    """The limit is for the runs that the worker performs, after which a fresh one replaces it."""
    site.enqueue_many("note", [{}] * 3)
    site.start("jobs", "work", "--max-runs", "1")
    wait_until(lambda: site.statuses() == {"running": 3})


def test_a_long_run_keeps_its_lease_and_a_cancel_ends_it(site: ExecutorSite) -> None:
    site.start_worker()
    run = at_work(site, "sleep")
    first = site.run(run).locked_until
    wait_until(lambda: site.run(run).locked_until > first)
    site.tick_here()
    assert site.ends(run) == {("running", 1)}
    site.cancel(run)
    site.wait_for_status(run, "cancelled")
    assert len(site.trace("interrupted")) == 1


def test_kill_of_the_worker_and_its_processes(site: ExecutorSite) -> None:
    worker = site.start_worker()
    run = at_work(site, "wait_once")
    worker.end()
    site.start_worker()
    site.tick_until_ended(run)
    assert (site.ends(run), site.failures(run)) == ({("succeeded", 2)}, ["WorkerLost"])
    assert len(site.trace("redone")) == 1


def test_kill_of_the_process_that_executes_a_run(site: ExecutorSite) -> None:
    site.start_worker()
    run = site.enqueue("kill_self", {"attempts": 1})
    site.tick_until_ended(run)
    assert site.failures(run) == ["WorkerLost"]
    assert len(site.trace("survived")) == 1


def test_kill_between_begin_and_handler(site: ExecutorSite) -> None:
    worker = site.start_worker(**{VARIABLE: "before-handler"})
    run = site.enqueue("note")
    site.tick_here()
    wait_until(lambda: site.run(run).locked_by and handed_to(site.run(run).locked_by) is None)
    worker.end()
    assert site.trace("note") == []
    site.start_worker()
    site.tick_until_ended(run)
    assert len(site.trace("note")) == 1
    assert site.failures(run) == ["WorkerLost"]


@pytest.mark.parametrize("point", ["before-send", "after-send"])
def test_kill_of_the_tick_that_hands_on(point: str, site: ExecutorSite) -> None:
    run = site.enqueue("note")
    result = site.run_tick(env={VARIABLE: point})
    assert result.returncode == -signal.SIGKILL
    assert handed_to(site.run(run).locked_by) == "celery"
    site.start_worker()
    if point == "after-send":
        site.wait_for("note")
    site.tick_until_ended(run)
    assert_each_ran_once(site, [run])
    assert site.failures(run) == []


def test_five_restarts_of_the_broker(site: ExecutorSite, redis_server: Broker) -> None:
    """Celery's worker may end at a restart, so a supervisor starts another one."""
    worker, ids = site.start_worker(), list[int]()
    for _ in range(5):
        ids += [site.enqueue("note")]
        site.tick_here()
        redis_server.renew()
        if not worker.running:
            worker = site.start_worker()

    def all_ended() -> bool:
        nonlocal worker
        if not worker.running:
            worker = site.start_worker()
        site.tick_here()
        return site.statuses() == {"succeeded": len(ids)}

    wait_until(all_ended)
    assert_each_ran_once(site, ids)


def test_warm_shutdown_lets_a_run_end(site: ExecutorSite) -> None:
    worker = site.start_worker()
    run = at_work(site, "wait_for", {"path": str(site.gate)})
    worker.send(signal.SIGTERM)
    site.gate.touch()
    worker.wait()
    assert site.ends(run) == {("succeeded", 1)}


def test_celery_on_rabbitmq(database_url: str, tmp_path: Path, rabbitmq_server: Broker) -> None:
    """A connection is cut during a run, messages are redelivered, and the broker's data is lost."""
    with executor_site(database_url, tmp_path, rabbitmq_server) as site:
        worker = site.start_worker()
        ids = site.enqueue_many("note", [{}] * 10)
        long = at_work(site, "sleep", {"seconds": 4})
        ids += site.enqueue_many("note", [{}] * 10)
        os.kill(worker.pid, signal.SIGSTOP)
        site.tick_here()
        rabbitmq_server.kill()
        os.kill(worker.pid, signal.SIGCONT)
        result = site.run_tick()
        assert result.returncode == 0, result.stderr
        rabbitmq_server.start()
        site.tick_until_ended(*ids, long)
        assert_each_ran_once(site, ids)
        assert (len(site.trace("ended")), site.ends(long)) == (1, {("succeeded", 1)})
