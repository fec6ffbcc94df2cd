"""``concurrency=N``: at most N running rows of a key, whatever races."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import text

from flask_cronjobs.store.candidates import FRONT
from flask_cronjobs.store.leases import watch
from flask_cronjobs.types import OutcomeKind
from tests.marks import on_postgresql
from tests.rows import ago
from tests.store.kit import Kit


def keyed(kit: Kit, key: str = "key", limit: int = 1, **values: Any) -> int:
    return kit.run(concurrency_key=key, concurrency_limit=limit, **values)


def claim_all(kit: Kit) -> list[int]:
    """Claim until there is nothing; a claim takes one run of a key at a time."""
    ids: list[int] = []
    while claimed := kit.claim_ids():
        ids += claimed
    return ids


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_of_a_key_run_than_its_limit(kit: Kit, limit: int) -> None:
    ids = [keyed(kit, limit=limit) for _ in range(5)]
    assert claim_all(kit) == ids[:limit]
    assert sorted(row.concurrency_share or 0 for row in kit.all_rows())[-limit:] == list(
        range(1, limit + 1)
    )


def test_keys_do_not_disturb_each_other_nor_runs_without_a_key(kit: Kit) -> None:
    first, _, other, free = keyed(kit, "a"), keyed(kit, "a"), keyed(kit, "b"), kit.run()
    assert sorted(claim_all(kit)) == [first, other, free]


@pytest.mark.parametrize(
    "kind", ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
)
def test_share_comes_free_with_every_outcome(kit: Kit, kind: OutcomeKind) -> None:
    keyed(kit)
    second = keyed(kit)
    claim = kit.claim_one()
    assert kit.claim() == ()
    kit.finish(claim, kind, delay=3600.0)
    if kind == "released":
        kit.sql("UPDATE job_runs SET run_at = '2999-01-01' WHERE id = :id", id=claim.id)
    assert kit.claim_one().id == second


def test_share_of_a_dead_worker_comes_free_with_its_lease(kit: Kit) -> None:
    keyed(kit)
    second = keyed(kit)
    claim = kit.claim_one()
    kit.expire(claim)
    assert kit.claim() == (), "the lease ran out, but nobody has taken the run back yet"
    kit.finish(claim, "failed", reclaimed=True, delay=3600.0)
    assert kit.claim_one().id == second


def test_lowest_free_share_is_taken(kit: Kit) -> None:
    for _ in range(4):
        keyed(kit, limit=3)
    one, two, _ = (kit.claim_one() for _ in range(3))
    kit.finish(two)
    assert kit.row(kit.claim_one().id).concurrency_share == 2
    kit.finish(one)
    assert kit.claim() == ()


def test_runs_of_one_key_keep_their_order(kit: Kit) -> None:
    ids = [keyed(kit) for _ in range(4)]
    order = []
    while claimed := kit.claim():
        order += [claim.id for claim in claimed]
        for claim in claimed:
            kit.finish(claim)
    assert order == ids


def test_keyed_and_free_runs_are_claimed_in_one_order(kit: Kit) -> None:
    late = kit.run(run_at=ago(minutes=1))
    early = keyed(kit, run_at=ago(minutes=2))
    high = keyed(kit, "other", priority=5)
    assert kit.claim_ids() == [high, early, late]


def test_limit_of_the_claim_holds_over_keyed_and_free_runs_together(kit: Kit) -> None:
    kit.runs(3)
    for number in range(3):
        keyed(kit, f"key {number}")
    assert len(kit.claim(limit=4)) == 4


def test_run_of_a_key_that_is_not_due_does_not_stand_in_the_way(kit: Kit) -> None:
    keyed(kit, run_at=ago(minutes=-60), priority=9)
    due = keyed(kit)
    assert kit.claim_ids() == [due]


def test_run_of_an_unknown_task_does_not_block_its_key(kit: Kit) -> None:
    keyed(kit, job_type="unknown", priority=9)
    due = keyed(kit)
    assert kit.claim_ids() == [due]


def test_retry_of_a_key_travels_alone(kit: Kit) -> None:
    retry = keyed(kit, status="failed", attempts=1, run_at=ago(minutes=9))
    free = kit.run()
    assert kit.claim_ids() == [retry]
    assert kit.claim_ids() == [free]


def test_lowered_limit_holds_for_the_next_claim(kit: Kit) -> None:
    """A deploy lowered concurrency from 3 to 1 while two run."""
    for _ in range(2):
        keyed(kit, limit=3)
    claim_all(kit)
    keyed(kit, limit=1)
    assert kit.claim() == ()


def test_ten_thousand_runs_of_a_busy_key_are_stepped_over(kit: Kit) -> None:
    busy = keyed(kit, "busy", priority=9)
    kit.sql(
        "INSERT INTO job_runs (job_type, run_at, priority, concurrency_key, concurrency_limit)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
        " SELECT 'task', '2000-01-01', 9, 'busy', 1 FROM n"
    )
    others = [keyed(kit, "quiet"), kit.run()]
    kit.sql("ANALYZE")
    first = kit.claim_ids(limit=1)
    assert first != [busy], "the rows of 2000 are due before it"
    started = time.monotonic()
    assert kit.claim_ids() == others
    assert kit.claim() == ()
    # A walk over ten thousand rows with a look at each takes far longer than a step over them.
    assert time.monotonic() - started < 60


def test_keys_are_served_in_the_order_of_their_next_runs(kit: Kit) -> None:
    late = keyed(kit, "a", run_at=ago(seconds=10))
    urgent = keyed(kit, "c", priority=5, run_at=ago(seconds=5))
    early = keyed(kit, "b", run_at=ago(seconds=20))
    assert kit.claim_ids(limit=2) == [urgent, early]
    assert kit.claim_ids() == [late]


class TestBehindABusyKey:
    """More of its runs than a claim looks through stand in front."""

    @pytest.fixture(autouse=True)
    def busy(self, kit: Kit) -> None:
        keyed(kit, "m")
        kit.claim_one()
        for _ in range(FRONT + 10):
            keyed(kit, "m", run_at=ago(seconds=600))

    def test_others_are_found_on_both_sides_of_it(self, kit: Kit) -> None:
        ids = {keyed(kit, "a"), keyed(kit, "z")}
        assert set(kit.claim_ids(limit=10)) == ids

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

    def test_those_without_a_share_or_not_due_are_passed_by(self, kit: Kit) -> None:
        keyed(kit, "a")
        assert len(kit.claim()) == 1
        keyed(kit, "a")
        keyed(kit, "b", run_at=ago(seconds=-3600))
        keyed(kit, "c", job_type="unknown")
        last = keyed(kit, "d")
        assert kit.claim_ids(limit=1) == [last]


def test_racing_claims_never_run_two_of_a_key(kit: Kit) -> None:
    for number in range(24):
        keyed(kit, f"key {number % 3}", limit=2)
    start = threading.Barrier(4)
    broken: list[object] = []

    def compete() -> None:
        worker = kit.another()
        start.wait()
        with worker.books:
            for _ in range(12):
                for claim in worker.claim(limit=3):
                    worst = worker.sql(
                        "SELECT concurrency_key, count(*) AS number FROM job_runs"
                        " WHERE status = 'running' GROUP BY 1 HAVING count(*) > 2"
                    )
                    broken.extend(worst)
                    while not worker.finish(claim):  # Another one may have locked its row.
                        assert claim.id in watch(worker.books, [claim]).held

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while claims := kit.claim():
        for claim in claims:
            kit.finish(claim)
    assert broken == []
    assert {row.status for row in kit.all_rows()} == {"succeeded"}
    assert {row.attempts for row in kit.all_rows()} == {1}


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
    assert [kit.row(run).status for run in (first, second)] == ["running", "queued"]


def waits_for_a_lock(kit: Kit) -> bool:
    rows = kit.sql(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return bool(rows)
