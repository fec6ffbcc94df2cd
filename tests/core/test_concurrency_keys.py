"""``concurrency=N`` allows at most N running rows of a key in every race."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import insert, text

from flask_cronjobs.core import gate
from flask_cronjobs.core.claim import Answer
from flask_cronjobs.core.claim_statement import SPARE, WINDOW
from flask_cronjobs.core.worker.claims import BEYOND_RUNS
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


def claim_until_nothing_is_parked(kit: Kit, limit: int) -> list[int]:
    """Return the ids that a worker gets if it opens what it parks and then claims again."""
    answer = Answer()
    for _ in range(10):
        beyond = BEYOND_RUNS if answer.parked else 0
        answer = kit.claims.record_and_claim([], kit.request(limit, beyond=beyond))
        assert gate.open_behind(kit.books, answer.parked) == 0
        if answer.claims or not answer.parked:
            break
    return [claim.id for claim in answer.claims]


class TestBehindABusyKey:
    """The first runs are of a busy key, and there are more than a claim reads."""

    @pytest.fixture(autouse=True)
    def busy(self, kit: Kit) -> None:
        keyed(kit, "m")
        kit.claim_one()
        add_many(kit, WINDOW + SPARE + 10, concurrency_key="m", run_at=ago(seconds=600))

    def test_they_are_parked_once_and_the_others_have_their_turn(self, kit: Kit) -> None:
        ids = [keyed(kit, key, limit=2) for key in "aab"]
        assert claim_until_nothing_is_parked(kit, 1) == ids[:1]
        waits = [row for row in kit.all_rows() if row.gate == "keys"]
        assert {row.concurrency_key for row in waits} == {"m"}
        assert len(waits) == WINDOW + SPARE + 10
        assert kit.claim_ids(9) == ids[1:]

    def test_the_end_of_the_running_one_opens_only_the_next(self, kit: Kit) -> None:
        assert claim_until_nothing_is_parked(kit, 1) == []
        (running,) = (row for row in kit.all_rows() if row.status == "running")
        assert kit.claims.release_token(running.locked_by)
        opened = [row.id for row in kit.all_rows() if row.gate is None and row.id != running.id]
        assert len(opened) == 1
        assert kit.claim_ids(9) == opened
        assert gate.open_all_left_parked(kit.books) == 0

    def test_another_is_also_found_behind_runs_of_another_task(self, kit: Kit) -> None:
        add_many(kit, 2 * WINDOW + 1, concurrency_key="t", job_type="theirs", priority=9)
        run = keyed(kit, "a")
        assert claim_until_nothing_is_parked(kit, 1) == [run]

    def test_those_without_a_share_or_not_due_are_skipped(self, kit: Kit) -> None:
        keyed(kit, "a", run_at=ago(seconds=900))
        assert len(claim_until_nothing_is_parked(kit, 1)) == 1
        keyed(kit, "a")
        keyed(kit, "b", run_at=ago(seconds=-3600))
        keyed(kit, "c", job_type="unknown")
        last = keyed(kit, "d")
        assert claim_until_nothing_is_parked(kit, 1) == [last]


def test_as_many_of_a_key_are_opened_as_have_a_share_of_each_task_and_queue(kit: Kit) -> None:
    """A pause, or a task that no worker has, delays no other run."""
    ids = [keyed(kit, limit=3) for _ in range(3)]
    claims = kit.claim()
    assert [claim.id for claim in claims] == ids
    groups = [{}, {"queue": "mail"}, {"job_type": "other"}]
    waiting = [[keyed(kit, limit=3, **options) for _ in range(4)] for options in groups]
    answer = kit.claims.record_and_claim([], kit.request(tasks=("task", "other"), beyond=20))
    assert answer.parked == {run_id for some in waiting for run_id in some}
    for claim in claims[:2]:
        assert kit.finish(claim)
    assert gate.open_behind(kit.books, ids[:2]) == 6
    assert {run_id for some in waiting for run_id in some[:2]} == {
        row.id for row in kit.all_rows() if row.status == "queued" and row.gate is None
    }


def test_run_with_a_lower_limit_is_opened_though_others_hold_shares_above_it(kit: Kit) -> None:
    """The slots of a task with ``concurrency=5`` have the limit 1, as long as overlaps skip."""
    first, _ = keyed(kit, limit=5), keyed(kit, limit=5)
    claims = {claim.id: claim for claim in kit.claim(2)}
    slot = keyed(kit, limit=1)
    assert kit.claim_ids(9) == []
    assert [row.gate for row in kit.all_rows()] == [None, None, "keys"]
    kit.finish(claims[first], "succeeded")
    assert gate.open_behind(kit.books, [first]) == 1
    assert kit.claim_ids(9) == [slot]
    assert [row.concurrency_share for row in kit.all_rows()] == [None, 2, 1]


@on_postgresql
def test_opening_skips_locked_runs_and_opens_the_next(kit: Kit) -> None:
    first, second, third = keyed(kit), keyed(kit), keyed(kit)
    answer = kit.claims.record_and_claim([], kit.request(beyond=20))
    (claim,) = answer.claims
    assert answer.parked == {second, third}
    with kit.engine.connect() as psql:
        psql.execute(text("SELECT 1 FROM job_runs WHERE id = :id FOR UPDATE"), {"id": second})
        assert kit.finish(claim)
        assert gate.open_behind(kit.books, [first]) == 1
        assert kit.claim_ids() == [third]
        psql.rollback()
    assert kit.get(second).gate == "keys"


@on_postgresql
def test_locked_run_holds_up_its_key_until_the_next_claim_looks_behind_it(kit: Kit) -> None:
    """Another claim may be taking the run, and then no share is left for those after it."""
    first, second, third = keyed(kit), keyed(kit), keyed(kit)
    with kit.engine.connect() as psql:
        psql.execute(text("SELECT 1 FROM job_runs WHERE id = :id FOR UPDATE"), {"id": first})
        answer = kit.claims.record_and_claim([], kit.request())
        assert (answer.claims, answer.parked, answer.blocked) == ((), set(), {first})
        behind = kit.request(blocked=answer.blocked)
        assert [claim.id for claim in kit.claims.record_and_claim([], behind).claims] == [second]
        psql.rollback()
    assert kit.get(third).gate == "keys"


@on_postgresql
def test_locked_run_holds_up_its_key_for_one_claim_also_if_that_looks_no_further(kit: Kit) -> None:
    first, second = keyed(kit), keyed(kit)
    kit.run()
    with kit.engine.connect() as psql:
        psql.execute(text("SELECT 1 FROM job_runs WHERE id = :id FOR UPDATE"), {"id": first})
        answer = kit.claims.record_and_claim([], kit.request(1))
        assert (answer.parked, answer.blocked) == (set(), {first})
        assert kit.claim_ids(1, blocked=answer.blocked) == [second]
        psql.rollback()


def test_share_that_an_outcome_frees_is_claimed_with_it(kit: Kit) -> None:
    """The claim comes after the outcomes, in the same transaction."""
    first = keyed(kit)
    (claim,) = kit.claim()
    second = keyed(kit)
    answer = kit.claims.record_and_claim([outcome(claim, "succeeded")], kit.request())
    assert (answer.recorded, [claim.id for claim in answer.claims]) == ({first}, [second])


@on_postgresql
def test_claim_of_a_share_that_another_is_taking_waits_for_it_and_takes_none(kit: Kit) -> None:
    """Neither claim sees the other's row yet, so counting running rows would let both claim."""
    first, second = keyed(kit, queue="one"), keyed(kit, queue="two")
    second_worker = kit.another()
    claimed: list[int] = []

    def compete() -> None:
        with second_worker.books:
            claimed.extend(second_worker.claim_ids(queues=("two",)))

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


def test_runs_beyond_the_limit_of_a_claim_are_not_taken_for_locked(kit: Kit) -> None:
    """Otherwise the next claims would skip them, and a tick would end without them."""
    busy: dict[str, Any] = {"concurrency_key": "busy", "concurrency_limit": 1}
    kit.run(**busy)
    kit.claim_one()
    kit.runs(3, **busy)
    answer = kit.claims.record_and_claim([], kit.request(1))
    assert answer.parked
    assert answer.blocked == frozenset()
