"""``concurrency=N``: at most N running rows of a key, whatever races."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import insert, text

from flask_cronjobs.core.claim_statement import SPARE, WINDOW
from flask_cronjobs.models import JobRun
from tests.kit import Kit, outcome
from tests.marks import on_postgresql
from tests.rows import ago


def keyed(kit: Kit, key: str = "key", limit: int = 1, **values: Any) -> int:
    return kit.run(concurrency_key=key, concurrency_limit=limit, **values)


def add_many(kit: Kit, number: int, **values: Any) -> None:
    row = {"job_type": "task", "run_at": ago(seconds=60), "concurrency_limit": 1, **values}
    with kit.engine.begin() as connection:
        connection.execute(insert(JobRun), [row] * number)


class TestBehindABusyKey:
    """More of its runs than a claim looks through stand in front."""

    @pytest.fixture(autouse=True)
    def busy(self, kit: Kit) -> None:
        keyed(kit, "m")
        kit.claim_one()
        add_many(kit, WINDOW + SPARE + 10, concurrency_key="m", run_at=ago(seconds=600))

    def test_each_has_its_turn(self, kit: Kit) -> None:
        """However many runs the first have: a claim goes on where the last one ended."""
        for key in "abxyz":
            for _ in range(3):
                keyed(kit, key, limit=3)
        keys: list[str] = []
        after = ""
        for _ in range(5):
            (claim,) = kit.claim(limit=1, after=after)
            after = claim.concurrency_key or ""
            keys.append(after)
        assert keys == list("abxyz")
        assert kit.claim(limit=1, after=after) == ()
        assert [claim.concurrency_key for claim in kit.claim(limit=9)] == list("abxyz")

    def test_another_is_found_behind_runs_of_another_task_too(self, kit: Kit) -> None:
        add_many(kit, 2 * WINDOW + 1, concurrency_key="t", job_type="theirs", priority=9)
        run = keyed(kit, "a")
        assert kit.claim_ids(1) == [run]

    def test_those_without_a_share_or_not_due_are_passed_by(self, kit: Kit) -> None:
        keyed(kit, "a")
        assert len(kit.claim()) == 1
        keyed(kit, "a")
        keyed(kit, "b", run_at=ago(seconds=-3600))
        keyed(kit, "c", job_type="unknown")
        last = keyed(kit, "d")
        assert kit.claim_ids(limit=1) == [last]


def test_share_that_an_outcome_frees_is_claimed_with_it(kit: Kit) -> None:
    """The claim comes after the outcomes, in the same transaction."""
    first, second = keyed(kit), keyed(kit)
    (claim,) = kit.claim()
    answer = kit.claims.record_and_claim([outcome(claim, "succeeded")], kit.request())
    assert (answer.recorded, [each.id for each in answer.claims]) == ({first}, [second])


@on_postgresql
def test_claim_of_a_share_that_another_is_taking_waits_for_it_and_takes_none(kit: Kit) -> None:
    """Neither sees the other's row yet, so a count of those that run would let both pass."""
    first, second = keyed(kit, queue="one"), keyed(kit, queue="two")
    other = kit.another()
    claimed: list[int] = []

    def compete() -> None:
        with other.books:
            claimed.extend(other.claim_ids(queues=("two",)))

    thread = threading.Thread(target=compete)
    with kit.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE job_runs SET status = 'running', attempts = 1, concurrency_share = 1,"
                " locked_by = 'host:1:other', locked_until = now() + interval '1 hour'"
                " WHERE id = :id"
            ),
            {"id": first},
        )
        thread.start()
        until = time.monotonic() + 60
        while thread.is_alive() and not waits_for_a_lock(kit) and time.monotonic() < until:
            time.sleep(0.01)
    thread.join(60)
    assert claimed == []
    assert [kit.get(run).status for run in (first, second)] == ["running", "queued"]


def waits_for_a_lock(kit: Kit) -> bool:
    rows = kit.sql(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return bool(rows)
