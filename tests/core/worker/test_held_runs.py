"""The runs that a worker holds, and what it says of those that it gives back."""

from __future__ import annotations

from flask_cronjobs.core.worker.held_runs import HeldRuns
from flask_cronjobs.core.worker.outcomes import released
from flask_cronjobs.types import Claim
from tests.leases import EndlessLeases

CLAIM = Claim(1, "host:1:token", "it", "{}", 1, 3, None)


def test_what_has_left_the_inbox_has_begun_whoever_gives_it_back() -> None:
    """As async handlers have that are at work beside one whose process is ended."""
    held = HeldRuns(EndlessLeases())
    held.add([Claim(number, "host:1:token", "it", "{}", 1, 3, None) for number in (1, 2)], 0.0)
    assert held.inbox.get() is not None
    held.release_all()
    assert {outcome.id: outcome.begun for outcome in held.outcomes} == {1: True, 2: False}


def test_a_run_that_is_claimed_again_has_one_claim_that_counts() -> None:
    held, again = HeldRuns(EndlessLeases()), CLAIM._replace(token="host:1:again")
    held.add([CLAIM], 0.0)
    held.outcomes.append(old := released(CLAIM))
    held.postpone(old)
    assert held.outdated == set()
    held.add([again], 0.0)
    assert held.outdated == {CLAIM.identity}
    held.remove(old)
    assert held.outdated == set()
    assert held.unfinished == [again]
    held.outcomes.append(released(again))
    assert held.recordable(0.0) == held.outcomes
