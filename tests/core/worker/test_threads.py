"""How a worker's threads alternate, and pass runs to each other."""

from __future__ import annotations

import threading

from flask_cronjobs.core.worker.held_runs import HeldRuns, Leases

# The two queues between a worker's threads, without a database


def test_collecting_without_a_pause_never_waits() -> None:
    """On Python 3.10, one call in some thousands waited forever, and so did the whole worker."""

    def collect() -> None:
        for _ in range(50_000):
            HeldRuns(Leases(60.0)).collect(0.0)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
