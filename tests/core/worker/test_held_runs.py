"""The runs that a worker holds, and what it says of those that it gives back."""

from __future__ import annotations

from flask_cronjobs.core.worker.held_runs import HeldRuns
from flask_cronjobs.types import Claim
from tests.leases import EndlessLeases


def test_what_has_left_the_inbox_has_begun_whoever_gives_it_back() -> None:
    """As async handlers have that are at work beside one whose process is ended."""
    held = HeldRuns(EndlessLeases())
    held.add([Claim(number, "host:1:token", "it", "{}", 1, 3, None) for number in (1, 2)], 0.0)
    assert held.inbox.get() is not None
    held.release_all()
    assert {outcome.id: outcome.begun for outcome in held.outcomes} == {1: True, 2: False}
