"""Runs that an executor's workers execute: what may be killed, lost and doubled, and what not."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from flask_cronjobs.failpoints import VARIABLE
from flask_cronjobs.types import handed_to
from tests.brokers import Broker
from tests.process.executor_workers import ExecutorSite, executor_site
from tests.process.support import wait_until

#: How long a broker is away, in seconds.
MINUTE = 60.0


@pytest.fixture(params=["celery", "rq"])
def executor(request: pytest.FixtureRequest) -> str:
    """The executor that executes the runs; the test is skipped where it is not installed."""
    name: str = request.param
    pytest.importorskip(name)
    return name


@pytest.fixture
def site(
    executor: str, database_url: str, tmp_path: Path, redis_server: Broker
) -> Iterator[ExecutorSite]:
    """A site whose runs the executor executes, on Redis."""
    with executor_site(database_url, tmp_path, executor, redis_server) as made:
        yield made


def test_every_kind_of_run_is_executed_once(site: ExecutorSite) -> None:
    site.start_worker()
    ids = site.enqueue_many("note", [{"label": str(n)} for n in range(5)])
    ids += site.enqueue_many("effect", [{"key": "a"}, {"key": "b"}])
    ids += [site.enqueue("atomic_entry", {"label": "a"})]
    ids += [site.enqueue("fail", {"attempts": 1})]
    site.tick_until_ended(*ids)
    assert site.statuses() == {"succeeded": len(ids)}
    assert Counter(line["label"] for line in site.trace("note")) == {str(n): 1 for n in range(5)}
    assert Counter(line["key"] for line in site.trace("effect")) == {"a": 1, "b": 1}
    assert len(site.query("SELECT id FROM entries")) == 1
    assert site.failures(ids[-1]) == ["RuntimeError"]
    # None of it in a tick.
    assert not {line["pid"] for line in site.trace()} & {tick.pid for tick in site.ticks[1:]}


def test_timeout_and_cancel_interrupt_a_handler(site: ExecutorSite) -> None:
    site.start_worker()
    stubborn = site.enqueue("too_long_and_stubborn", {"seconds": 60})
    site.hand_on()
    wait_until(lambda: site.failures(stubborn)[:1] == ["TimedOut"])
    cancelled = site.enqueue("sleep", {"seconds": 60})
    site.cancel(stubborn)
    site.hand_on()
    wait_until(lambda: any(line["run"] == cancelled for line in site.trace("begun")))
    site.cancel(cancelled)
    site.wait_for_status(cancelled, "cancelled")


def test_a_long_run_keeps_its_lease(site: ExecutorSite) -> None:
    site.start_worker()
    run = site.enqueue("sleep", {"seconds": 6})
    site.hand_on()
    site.wait_for("begun")
    for _ in range(3):
        time.sleep(1.5)
        site.hand_on()
    site.wait_for_status(run, "succeeded")
    assert site.run(run).attempts == 1


def test_kill_of_the_worker_and_its_processes(site: ExecutorSite) -> None:
    worker = site.start_worker()
    run = site.enqueue("wait_once")
    site.hand_on()
    site.wait_for("begun")
    worker.end()
    for line in site.trace("begun"):  # RQ's processes are in groups of their own.
        with suppress(ProcessLookupError):
            os.kill(line["pid"], signal.SIGKILL)
    site.start_worker()
    site.tick_until_ended(run)
    assert site.run(run).status == "succeeded"
    assert site.failures(run) == ["WorkerLost"]
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
    site.hand_on()
    wait_until(lambda: site.run(run).locked_by and handed_to(site.run(run).locked_by) is None)
    worker.end()
    assert site.trace("note") == []
    site.start_worker()
    site.tick_until_ended(run)
    assert len(site.trace("note")) == 1
    assert site.failures(run) == ["WorkerLost"]


@pytest.mark.parametrize("point", ["before-send", "after-send"])
def test_kill_of_the_tick_that_hands_on(point: str, executor: str, site: ExecutorSite) -> None:
    run = site.enqueue("note")
    done = site.run_tick(env={VARIABLE: point})
    assert done.returncode == -signal.SIGKILL
    assert handed_to(site.run(run).locked_by) == executor
    site.start_worker()
    if point == "after-send":
        site.wait_for("note")
    site.tick_until_ended(run)
    assert len(site.trace("note")) == 1
    assert (site.run(run).attempts, site.failures(run)) == (1, [])


def test_kill_of_the_broker_with_its_data(site: ExecutorSite, redis_server: Broker) -> None:
    ids = site.enqueue_many("note", [{}] * 10)
    site.hand_on()
    redis_server.renew()
    site.start_worker()
    site.tick_until_ended(*ids)
    assert_each_ran_once(site, ids)


def test_a_broker_that_is_away(executor: str, site: ExecutorSite, redis_server: Broker) -> None:
    site.start_worker()
    first = site.enqueue("note")
    site.tick_until_ended(first)
    redis_server.kill()
    ids = site.enqueue_many("note", [{}] * 3)
    done = site.run_tick()
    assert done.returncode == 0
    assert f"{executor} cannot be reached, so the queue default waits" in done.stderr
    assert {site.run(each).status for each in ids} == {"queued"}
    assert {site.run(each).attempts for each in ids} == {0}
    redis_server.start()
    site.start_worker()  # One of RQ does not outlive its broker: a supervisor starts another.
    site.tick_until_ended(*ids)
    assert_each_ran_once(site, [first, *ids])


def test_a_broker_that_hangs_and_is_away_for_a_minute(
    site: ExecutorSite, redis_server: Broker
) -> None:
    site.start_worker()
    long = site.enqueue("sleep", {"seconds": MINUTE / 4})
    site.hand_on()
    site.wait_for("begun")
    began, ids = time.monotonic(), list[int]()
    with redis_server.frozen():
        while time.monotonic() < began + MINUTE / 2:
            ids += site.enqueue_many("note", [{}] * 3)
            assert site.run_tick().returncode == 0
    # A long run needs no broker to end.
    assert (site.run(long).status, site.run(long).attempts) == ("succeeded", 1)
    redis_server.kill()
    while time.monotonic() < began + MINUTE:
        ids += site.enqueue_many("note", [{}] * 3)
        assert site.run_tick().returncode == 0
        time.sleep(1)
    redis_server.start()
    site.start_worker()  # One of RQ does not outlive its broker: a supervisor starts another.
    site.tick_until_ended(*ids)
    assert_each_ran_once(site, ids)


def test_ten_restarts_of_the_broker(site: ExecutorSite, redis_server: Broker) -> None:
    """Celery's worker and RQ's may end at a restart, so a supervisor starts another one."""
    worker, ids = site.start_worker(), list[int]()
    for _ in range(10):
        ids += [site.enqueue("note")]
        site.hand_on()
        redis_server.renew()
        if not worker.running:
            worker = site.start_worker()

    def all_ended() -> bool:
        nonlocal worker
        if not worker.running:
            worker = site.start_worker()
        site.hand_on()
        return site.statuses() == {"succeeded": len(ids)}

    wait_until(all_ended)
    assert_each_ran_once(site, ids)


def test_warm_shutdown_lets_a_run_end(site: ExecutorSite) -> None:
    worker = site.start_worker()
    run = site.enqueue("sleep", {"seconds": 3})
    site.hand_on()
    site.wait_for("begun")
    worker.send(signal.SIGTERM)
    worker.wait()
    assert (site.run(run).status, site.run(run).attempts) == ("succeeded", 1)


def test_resident_worker_hands_on(site: ExecutorSite) -> None:
    site.start_worker()
    resident = site.start("jobs", "work")
    ids = site.enqueue_many("note", [{}] * 10)
    wait_until(lambda: site.statuses().get("succeeded") == len(ids))
    assert_each_ran_once(site, ids)
    resident.send(signal.SIGTERM)
    assert resident.wait().returncode == 0


def assert_each_ran_once(site: ExecutorSite, ids: Sequence[int]) -> None:
    """Each run of `note` was called once, and that is the one attempt that its row counts."""
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys(ids, 1)
    assert {site.run(each).attempts for each in ids} == {1}
