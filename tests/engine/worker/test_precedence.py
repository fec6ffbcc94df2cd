"""The keeper goes before the worker's other threads, but never holds them up for long."""

from __future__ import annotations

import threading
import time

import pytest

from flask_cronjobs.engine import threads
from flask_cronjobs.engine.threads import Precedence
from flask_cronjobs.engine.worker.held_runs import HeldRuns, Leases


def test_nobody_waits_while_the_keeper_is_not_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "GIVE_WAY_FOR", 60.0)
    going_first = Precedence()
    began = time.monotonic()
    going_first.give_way()
    with going_first.taken(), going_first.lent():
        going_first.give_way()
    assert time.monotonic() - began < threads.GIVE_WAY_FOR


def test_others_wait_until_the_keeper_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    going_first, order = Precedence(), list[str]()
    monkeypatch.setattr(threads, "GIVE_WAY_FOR", 120.0)

    def work() -> None:
        going_first.give_way()
        order.append("other")

    with going_first.taken():
        other = threading.Thread(target=work)
        other.start()
        time.sleep(0.1)
        order.append("keeper")
        with going_first.lent():
            other.join(100)
    assert order == ["keeper", "other"]


def test_keeper_that_is_held_up_holds_up_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "GIVE_WAY_FOR", 0.3)
    going_first = Precedence()
    with going_first.taken():
        began = time.monotonic()
        going_first.give_way()
        assert time.monotonic() - began >= threads.GIVE_WAY_FOR
        began = time.monotonic()
        for _ in range(100):
            going_first.give_way()
        assert time.monotonic() - began < 50 * threads.GIVE_WAY_FOR
        with going_first.lent():
            pass
        began = time.monotonic()
        going_first.give_way()
        assert time.monotonic() - began >= threads.GIVE_WAY_FOR


# The two queues between a worker's threads, without a database


def test_collecting_without_a_pause_never_waits() -> None:
    """On Python 3.10 one call in some thousands waited forever, and the whole worker with it."""

    def collect() -> None:
        for _ in range(50_000):
            HeldRuns(Leases(60.0)).collect(0.0)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
