"""Rate limits: runs wait for slots, and a claim takes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import pytest

from flask_cronjobs.jobs import rates
from flask_cronjobs.jobs.rates import Slot
from flask_cronjobs.registry.rate import Rate
from flask_cronjobs.types import Claim
from tests.kit import Kit
from tests.rows import ago

#: A hundred a minute.
HUNDRED = Rate(timedelta(seconds=0.6))


def refuse_too_early(times: Sequence[datetime], period: float, burst: int = 1) -> None:
    """Fail if any window has more of *times*, in order, than its length allows, and *burst*."""
    for (i, first), (j, last) in combinations(enumerate(times), 2):
        least = timedelta(seconds=period) * (j - i + 1 - burst)
        assert last - first >= least, f"{j - i + 1} attempts in {last - first}"


def waiting(kit: Kit, key: str = "key", number: int = 1, **values: Any) -> list[int]:
    """So many due runs that wait for their rate."""
    return kit.runs(number, rate_key=key, rate_mark="waits", **values)


def opened(kit: Kit, rate: Rate = HUNDRED, **request: Any) -> rates.Slots:
    return rates.open_slots(kit.books, {"task": rate}, kit.request(**request))


def spent(kit: Kit, claims: Sequence[Claim], rate: Rate = HUNDRED) -> list[Slot | None]:
    return [*rates.spend(kit.books, {"task": rate}, claims).values()]


def tat(kit: Kit, key: str = "key", **values: Any) -> datetime | None:
    found = kit.sql("SELECT tat FROM job_rates WHERE key = :key", key=key)
    return found[0].tat if found else None


def taken(kit: Kit, ahead: float, key: str = "key") -> None:
    """Let the key's next slot come in *ahead* seconds."""
    kit.sql(
        "INSERT INTO job_rates (key, tat, period, burst) VALUES (:key, :tat, 0.6, 1)",
        key=key,
        tat=ago(seconds=-ahead),
    )


def test_waiting_runs_are_not_claimed_until_they_have_a_slot(kit: Kit) -> None:
    first, second = waiting(kit, number=2)
    assert kit.claim_ids() == []
    assert opened(kit) == (1, None)
    assert opened(kit) == (0, None), "one is ready already"
    claims = kit.claim()
    assert [claim.id for claim in claims] == [first]
    (slot,) = spent(kit, claims)
    assert slot is not None
    assert slot.after - slot.before == HUNDRED.period
    found = opened(kit)
    assert found.opened == 0
    assert 0 < (found.wait or 0) <= 0.6
    assert kit.claim_ids() == []
    assert kit.row(second).rate_mark == "waits"


@pytest.mark.parametrize("number", [3, 30])
def test_claim_takes_no_more_slots_than_there_are(kit: Kit, number: int) -> None:
    kit.runs(number, rate_key="key")
    claims = kit.claim()
    assert len(claims) == number
    rate = HUNDRED._replace(burst=10)
    slots = spent(kit, claims, rate)
    assert [slot is not None for slot in slots] == [place < 10 for place in range(number)]
