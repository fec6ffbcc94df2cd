"""The two queues between a worker's threads, without a database."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from flask_cronjobs.engine.worker.held_runs import HeldRuns, Leases


def held_runs(mailbox: SimpleQueue[Any]) -> HeldRuns:
    return HeldRuns(SimpleQueue(), mailbox, Leases(60.0))


def test_collecting_without_a_pause_never_waits() -> None:
    """On Python 3.10 one call in some thousands waited forever, and the whole worker with it."""

    def collect() -> None:
        for _ in range(50_000):
            held_runs(SimpleQueue()).collect(0.0)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_collecting_without_a_pause_takes_what_is_there() -> None:
    mailbox: SimpleQueue[Any] = SimpleQueue()
    runs = held_runs(mailbox)
    runs.wake()
    assert runs.collect(0.0) == []
    assert runs.woken
    assert mailbox.empty()
