"""Runs that RQ's workers execute: what may be killed, lost and doubled, and what not."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.process.engines import EngineSite, engine_site
from tests.process.support import wait_until

pytest.importorskip("rq")


@pytest.fixture
def site(database_url: str, tmp_path: Path, redis_server: Broker) -> Iterator[EngineSite]:
    """A site whose runs RQ executes."""
    with engine_site(database_url, tmp_path, "rq", redis_server) as made:
        yield made


def test_every_kind_of_run_is_executed_once(site: EngineSite) -> None:
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


def test_timeout_and_cancel_interrupt_a_handler(site: EngineSite) -> None:
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


def test_kill_of_the_worker_and_its_processes(site: EngineSite) -> None:
    worker = site.start_worker()
    run = site.enqueue("wait_once")
    site.hand_on()
    site.wait_for("begun")
    worker.end()
    for line in site.trace("begun"):  # RQ's processes are in groups of their own.
        kill(line["pid"])
    site.start_worker()
    site.tick_until_ended(run)
    assert site.failures(run) == ["WorkerLost"]
    assert len(site.trace("redone")) == 1


def test_kill_of_the_broker_with_its_data(site: EngineSite, redis_server: Broker) -> None:
    ids = site.enqueue_many("note", [{}] * 5)
    site.hand_on()
    redis_server.renew()
    site.start_worker()
    site.tick_until_ended(*ids)
    assert Counter(line["run"] for line in site.trace("note")) == dict.fromkeys(ids, 1)
    assert {site.run(each).attempts for each in ids} == {1}


def test_warm_shutdown_lets_a_run_end(site: EngineSite) -> None:
    worker = site.start_worker()
    run = site.enqueue("sleep", {"seconds": 3})
    site.hand_on()
    site.wait_for("begun")
    worker.send(signal.SIGTERM)
    worker.wait()
    assert (site.run(run).status, site.run(run).attempts) == ("succeeded", 1)


def kill(pid: int) -> None:
    import os
    from contextlib import suppress

    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
