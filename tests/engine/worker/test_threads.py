"""How a worker's threads take turns, and hand on what they have."""

from __future__ import annotations

import sys
import threading

import pytest

from flask_cronjobs.engine.threads import SWITCH_SECONDS, switching_often
from flask_cronjobs.engine.worker.held_runs import HeldRuns, Leases


def test_threads_take_turns_often_while_a_worker_works() -> None:
    before = sys.getswitchinterval()
    with switching_often():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
        with switching_often():
            pass
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == before


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
