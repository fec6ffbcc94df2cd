"""The runs that a worker holds, and how it reports those that it gives back."""

from __future__ import annotations

import threading

from flask_cronjobs.core.worker.held_runs import HeldRuns, Leases
from flask_cronjobs.core.worker.outcomes import released
from flask_cronjobs.types import Claim
from tests.leases import EndlessLeases

CLAIM = Claim(1, "host:1:token", "it", "{}", 1, 3, None)


def test_claim_that_has_left_the_inbox_counts_as_begun() -> None:
    """Async handlers begin like this, beside one whose process is killed."""
    held_runs = HeldRuns(EndlessLeases())
    held_runs.add([Claim(number, "host:1:token", "it", "{}", 1, 3, None) for number in (1, 2)], 0.0)
    assert held_runs.inbox.get() is not None
    held_runs.release_all()
    assert {outcome.id: outcome.unbegun for outcome in held_runs.outcomes} == {1: False, 2: True}


def test_a_run_that_is_claimed_again_has_one_claim_that_counts() -> None:
    held_runs, again = HeldRuns(EndlessLeases()), CLAIM._replace(token="host:1:again")
    held_runs.add([CLAIM], 0.0)
    held_runs.outcomes.append(old := released(CLAIM))
    held_runs.postpone(old)
    assert held_runs.outdated == set()
    held_runs.add([again], 0.0)
    assert held_runs.outdated == {CLAIM.identity}
    held_runs.remove(old)
    assert held_runs.outdated == set()
    assert held_runs.unfinished == [again]
    held_runs.outcomes.append(released(again))
    assert held_runs.recordable(0.0) == held_runs.outcomes


def test_collecting_without_a_pause_never_waits() -> None:
    """On Python 3.10, one call in some thousands waited forever, and so did the whole worker."""

    def collect() -> None:
        for _ in range(50_000):
            HeldRuns(Leases(60.0)).collect(0.0)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
