"""The statements of rates, for the plans of `tests/repository/test_plans.py`."""

from __future__ import annotations

from datetime import timedelta

from flask_cronjobs.core.tasks.rate import Rate
from flask_cronjobs.features.rates import rates
from flask_cronjobs.types import Claim
from tests.kit import Kit, outcome

#: The number of these statements.
STATEMENTS = 7


def send(kit: Kit) -> None:
    """Let runs begin at a rate, take their starts, hold a key, and clean up."""
    limits = {"task": Rate(timedelta(seconds=60), burst=2)}
    claims: tuple[Claim, ...] = ()
    kit.runs(3, rate_key="key", gate="rate")
    for number in (2, 0):  # The key has no row at first.
        assert rates.open_starts(kit.books, limits, kit.request()).opened == number
        claims = kit.claim(side_by_side=True) or claims
        rates.spend(kit.books, limits, claims)
    delayed = outcome(claims[0], "succeeded", delay=30.0, holds_rate=True)
    rates.record_and_hold(kit.books, delayed, limits["task"])
    kit.finish(claims[1])
    kit.runs(2, rate_key="key", gate="rate")
    rates.open_unrated(kit.books, ["task"], [])
    rates.delete_unused_keys(kit.books)
