"""Runs at a rate wait for starts, and a claim takes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from flask_cronjobs.core import gate
from flask_cronjobs.core.tasks.rate import Rate
from flask_cronjobs.features.rates import rates
from flask_cronjobs.insights.run_actions import CANCEL, RETRY
from flask_cronjobs.models import JobRate
from flask_cronjobs.types import Claim, OutcomeKind
from tests.kit import Kit, in_threads, outcome
from tests.marks import on_postgresql
from tests.plans import sent_by
from tests.rows import ago

#: A hundred starts a minute.
HUNDRED = Rate(timedelta(seconds=0.6))


def waiting(kit: Kit, key: str = "key", number: int = 1, **values: Any) -> list[int]:
    """Insert *number* due runs that wait for their rate; return their ids."""
    return kit.runs(number, rate_key=key, gate="rate", **values)


def opened(kit: Kit, rate: Rate = HUNDRED, **request: Any) -> rates.Opened:
    return rates.open_starts(kit.books, {"task": rate}, kit.request(**request))


def spent(kit: Kit, claims: Sequence[Claim], rate: Rate = HUNDRED) -> list[int]:
    """Take starts; return the runs that got none."""
    return [*rates.spend(kit.books, {"task": rate}, claims)]


def held_back(kit: Kit, claim: Claim, rate: Rate, seconds: float) -> None:
    failed = outcome(claim, "failed")._replace(holds_rate=True, delay=seconds)
    assert rates.record_and_hold(kit.books, failed, rate).recorded == {claim.id}


def tat(kit: Kit) -> datetime:
    with kit.engine.connect() as connection:
        return connection.execute(select(JobRate.tat)).scalar_one()


def taken(kit: Kit, ahead: float, key: str = "key") -> None:
    """Set the key's next start to *ahead* seconds from now."""
    kit.sql(
        "INSERT INTO job_rates (key, tat, period, burst) VALUES (:key, :tat, 0.6, 1)",
        key=key,
        tat=ago(seconds=-ahead),
    )


def test_waiting_runs_are_not_claimed_until_they_have_a_slot(kit: Kit) -> None:
    first, second = waiting(kit, number=2)
    assert kit.claim_ids(side_by_side=True) == []
    assert opened(kit).opened == 1
    assert opened(kit) == rates.Opened(), "one is ready already"
    claims = kit.claim(side_by_side=True)
    assert [claim.id for claim in claims] == [first]
    assert spent(kit, claims) == []
    answer = opened(kit)
    assert answer.opened == 0
    assert 0 < (answer.wait or 0) <= 0.6
    assert kit.claim_ids(side_by_side=True) == []
    assert kit.get(second).gate == "rate"


def test_all_that_a_claim_takes_moves_each_key_once(kit: Kit) -> None:
    """One statement moves the keys, and returns which ones."""
    for key in "abc":
        kit.runs(2, rate_key=key)
    rate = HUNDRED._replace(burst=2)
    claims = kit.claim(limit=6, side_by_side=True)
    with sent_by(kit.engine) as sent:
        assert spent(kit, claims, rate) == []
    assert ["INSERT INTO job_rates" in sql for sql, _ in sent.statements] == [False, True]
    assert [row.key for row in kit.sql("SELECT key FROM job_rates ORDER BY key")] == ["a", "b", "c"]


def test_first_due_runs_of_each_key_come_first(kit: Kit) -> None:
    low, high = waiting(kit)[0], waiting(kit, priority=1)[0]
    waiting(kit, priority=9, run_at=ago(seconds=-60))
    old = waiting(kit, "other", run_at=ago(hours=1))[0]
    waiting(kit, "other")
    taken(kit, 5, "held")
    waiting(kit, "held")
    answer = opened(kit)
    assert answer.opened == 2
    assert 4 < (answer.wait or 0) <= 5
    assert kit.claim_ids(side_by_side=True) == [high, old]
    assert kit.get(low).gate == "rate"


def test_runs_that_this_worker_cannot_take_do_not_keep_others(kit: Kit) -> None:
    busy: dict[str, Any] = {"concurrency_key": "busy", "concurrency_limit": 1}
    kit.run(**busy)
    kit.claim_one()
    waiting(kit, job_type="other", priority=9)
    waiting(kit, queue="far", priority=9)
    waiting(kit, queue="paused", priority=9)
    kit.sql("INSERT INTO job_pauses (kind, name) VALUES ('queue', 'paused')")
    waiting(kit, number=3, priority=5, **busy)
    (mine,) = waiting(kit)
    for _ in range(2):
        opened(kit, elsewhere=frozenset({"far"}))
    assert kit.claim_ids(side_by_side=True, elsewhere=frozenset({"far"})) == [mine]


@pytest.mark.parametrize("priority", [0, 1])
def test_runs_of_a_busy_key_do_not_keep_others_from_starts_however_many(
    kit: Kit, priority: int
) -> None:
    busy: dict[str, Any] = {"concurrency_key": "busy", "concurrency_limit": 1}
    kit.run(**busy)
    kit.claim_one()
    waiting(kit, number=150, priority=priority, **busy)
    mine = waiting(kit, number=3)
    opened(kit, HUNDRED._replace(burst=2))
    # The first claim may only park the runs at the front.
    claimed = kit.claim_ids(side_by_side=True) or kit.claim_ids(side_by_side=True)
    assert claimed == mine[:2]


def test_runs_behind_others_in_their_order_do_not_keep_others_from_starts(kit: Kit) -> None:
    order: dict[str, Any] = {"concurrency_key": "o", "concurrency_limit": 1, "strict": True}
    kit.run(run_at=ago(hours=-1), **order)
    behind = waiting(kit, number=3, priority=1, **order)
    (mine,) = waiting(kit)
    opened(kit)
    assert kit.claim_ids(side_by_side=True) == [mine]
    assert [kit.get(run_id).gate for run_id in behind] == ["order"] * 3


def test_run_passes_from_its_rate_to_the_gate_of_its_key_and_needs_no_other_start(
    kit: Kit,
) -> None:
    busy: dict[str, Any] = {"concurrency_key": "busy", "concurrency_limit": 1}
    first = kit.run(**busy)
    holder = kit.claim_one()
    (rated,) = waiting(kit, **busy)
    assert opened(kit).opened == 1
    assert kit.claim_ids(side_by_side=True) == []
    assert kit.get(rated).gate == "keys"
    assert opened(kit) == rates.Opened(), "its rate has let it go"
    kit.finish(holder)
    assert gate.open_behind(kit.books, [first]) == 1
    claims = kit.claim(side_by_side=True)
    assert [claim.id for claim in claims] == [rated]
    assert spent(kit, claims) == []


@on_postgresql
def test_locked_runs_do_not_keep_others_of_their_key_from_starts(kit: Kit) -> None:
    locked, (free, last) = waiting(kit, number=30), waiting(kit, number=2)
    with kit.engine.begin() as connection:
        connection.execute(
            text("SELECT 1 FROM job_runs WHERE id = ANY(:ids) FOR UPDATE"), {"ids": locked}
        )
        assert opened(kit).opened == 1
        assert kit.claim_ids(side_by_side=True) == [free]
    assert kit.get(last).gate == "rate"


@pytest.mark.parametrize("kind", ["failed", "released", "snoozed"])
def test_run_waits_again_for_its_next_attempt(kit: Kit, kind: OutcomeKind) -> None:
    run = kit.run(rate_key="key")
    kit.finish(kit.claim_one(), kind)
    assert kit.get(run).gate == "rate"
    kit.act(CANCEL, run)
    assert kit.get(run).gate is None
    kit.act(RETRY, run)
    assert kit.get(run).gate == "rate"


@pytest.mark.parametrize(("period", "starts"), [(3600, 0), (0.001, 1)])
def test_change_of_the_rate_counts_from_the_last_attempt(
    kit: Kit, period: float, starts: int
) -> None:
    """It does not count from the time at which the old rate would have allowed the next start."""
    taken(kit, 0.5)
    kit.sql("UPDATE job_rates SET period = 60")
    waiting(kit)
    rate = Rate(timedelta(seconds=period))
    assert opened(kit, rate).opened == starts
    kit.runs(1, rate_key="key")
    assert len(spent(kit, kit.claim(limit=1, side_by_side=True), rate)) == 1 - starts


@pytest.mark.parametrize(("period", "starts"), [(60, 0), (600, 0), (0.01, 10)])
def test_rate_that_a_deploy_makes_faster_holds_at_once(
    kit: Kit, period: float, starts: int
) -> None:
    """If the old burst is used up, the wait becomes as short as the new period."""
    kit.runs(10, rate_key="key")
    assert not spent(
        kit, kit.claim(limit=10, side_by_side=True), Rate(timedelta(minutes=1), burst=10)
    )
    kit.sql(
        f"UPDATE job_rates SET tat = {kit.books.dialect.typed(':tat', 'timestamptz')}, "
        f"last_at = {kit.books.dialect.typed(':last', 'timestamptz')}",
        tat=kit.books.dialect.instant(ago(seconds=1) + timedelta(minutes=10)),
        last=kit.books.dialect.instant(ago(seconds=1)),
    )
    waiting(kit, number=15)
    assert opened(kit, Rate(timedelta(seconds=period), burst=10)).opened == starts


def test_faster_rate_ends_no_hold(kit: Kit) -> None:
    slow, fast = Rate(timedelta(minutes=1), burst=3), Rate(timedelta(milliseconds=1), burst=3)
    run = kit.run(rate_key="key")
    claim = kit.claim_one()
    assert not spent(kit, [claim], slow)
    held_back(kit, claim, slow, 30)
    waiting(kit)
    answer = opened(kit, fast)
    assert answer.opened == 0
    assert 29 < (answer.wait or 0) <= 30
    assert kit.get(run).status == "failed"


def test_key_is_held_back_for_all(kit: Kit) -> None:
    kit.runs(2, rate_key="key")
    rate = HUNDRED._replace(burst=5)
    claims = kit.claim(side_by_side=True)
    spent(kit, claims, rate)
    for claim, seconds in zip(claims, (30, 10), strict=True):
        held_back(kit, claim, rate, seconds)
        waiting(kit, number=2)
        answer = opened(kit, rate)
        assert answer.opened == 0
        assert 29 < (answer.wait or 0) <= 30


@on_postgresql
def test_locked_key_has_no_slot_and_holds_nobody_up(kit: Kit) -> None:
    taken(kit, -60)
    kit.runs(1, rate_key="key")
    claims = kit.claim(side_by_side=True)
    with kit.engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM job_rates FOR UPDATE"))
        assert spent(kit, claims) == [claims[0].id]
    assert spent(kit, claims) == []


def test_two_claims_at_once_never_take_the_same_slot(kit: Kit) -> None:
    rate = HUNDRED._replace(burst=7)
    kit.runs(40, rate_key="key")
    claims = [kit.claim(limit=10, side_by_side=True) for _ in range(4)]
    kits = [kit.another() for _ in claims]
    refused: list[int] = []

    def work(other: Kit, some: Sequence[Claim]) -> None:
        refused.extend(spent(other, some, rate))

    in_threads(*(partial(work, *pair) for pair in zip(kits, claims, strict=True)))
    assert 33 <= len(refused) < 40
    for kit_of_worker in kits:
        kit_of_worker.close()


def test_thousands_of_keys_without_a_slot_do_not_keep_the_keys_behind_them(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round continues where the last one stopped, until all keys are checked."""
    monkeypatch.setattr(rates, "_READS_PER_CHECK", 1)
    monkeypatch.setattr(rates, "GROUPS_READ", 3)
    rates._groups.cache_clear()
    for key in "abcd":
        waiting(kit, key)
        taken(kit, 5, key)
    (last,) = waiting(kit, "e")
    answer = opened(kit)
    assert (answer.opened, answer.wait, answer.after["rate_key"]) == (0, 0, "c")
    answer = rates.open_starts(kit.books, {"task": HUNDRED}, kit.request(), answer.after)
    rates._groups.cache_clear()
    assert (answer.opened, answer.after) == (1, rates.BEFORE_ALL)
    assert kit.claim_ids(side_by_side=True) == [last]


def test_runs_that_lost_their_rate_are_all_let_go(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "_READY", 2)
    monkeypatch.setattr(rates, "_BEYOND", 1)
    rates._open_gate.cache_clear()
    waiting(kit, number=9)
    rates.open_unrated(kit.books, ["task"], [])
    rates._open_gate.cache_clear()
    assert len(kit.claim_ids(side_by_side=True)) == 9


def test_clean_up_frees_runs_without_a_rate_and_forgets_idle_keys(kit: Kit) -> None:
    (old,), (waiting_id,) = waiting(kit), waiting(kit, job_type="rated")
    taken(kit, -90_000, "idle")
    taken(kit, -80_000, "used")
    rates.open_unrated(kit.books, ["task", "rated"], ["rated"])
    rates.delete_unused_keys(kit.books)
    assert (kit.get(old).rate_key, kit.get(old).gate) == (None, None)
    assert kit.get(waiting_id).gate == "rate"
    assert [row.key for row in kit.sql("SELECT key FROM job_rates")] == ["used"]
