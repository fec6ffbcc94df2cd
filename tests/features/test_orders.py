"""Strict order: the runs of a key one after the other, by their ids."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from flask_cronjobs.core.leases import give_up_exhausted
from flask_cronjobs.features import orders as turns_of_orders
from flask_cronjobs.features.orders import RUNS_READ
from tests.kit import Kit, in_threads
from tests.marks import on_postgresql
from tests.rows import ago


def ordered(kit: Kit, key: str = "key", **values: Any) -> int:
    given = {"concurrency_key": key, "concurrency_limit": 1, "order_mark": "new"}
    return kit.run(strict=True, **{**given, **values})


def give(kit: Kit) -> bool:
    return turns_of_orders.give(kit.books)


def next_ids(kit: Kit) -> list[int]:
    """Give turns, and claim; the ids of what was claimed."""
    give(kit)
    return kit.claim_ids()


def turns(kit: Kit, *ids: int) -> list[str | None]:
    return [kit.get(each).order_mark for each in ids]


def test_run_without_an_attempt_left_gives_its_turn_on(kit: Kit) -> None:
    first, second = ordered(kit, attempts=3, max_attempts=3, status="failed"), ordered(kit)
    assert next_ids(kit) == []
    give_up_exhausted(kit.books)
    assert kit.get(first).status == "dead"
    assert next_ids(kit) == [second]


def test_runs_of_the_key_without_an_order_do_not_wait_for_a_turn(kit: Kit) -> None:
    first = ordered(kit, run_at=ago(hours=-1))
    ordered(kit)
    free = kit.run(concurrency_key="key", concurrency_limit=1)
    assert next_ids(kit) == [free]
    assert kit.get(first).order_mark is None


def _numbers(kit: Kit, number: int) -> str:
    if kit.engine.dialect.name == "postgresql":
        return f"generate_series(1, {number}) AS numbers(id)"
    counted = f"SELECT 1 AS id UNION ALL SELECT id + 1 FROM n WHERE id < {number}"
    return f"(WITH RECURSIVE n AS ({counted}) SELECT id FROM n)"


@on_postgresql
def test_locked_run_keeps_its_mark_and_holds_up_no_other_key(kit: Kit) -> None:
    first, second, other = ordered(kit), ordered(kit), ordered(kit, "other")
    give(kit)
    with kit.engine.connect() as psql:
        kit.operator.cancel([first], "why")
        psql.execute(text("SELECT 1 FROM job_runs WHERE id = :id FOR UPDATE"), {"id": second})
        late = ordered(kit, "late")
        give(kit)
        assert turns(kit, first, second, other, late) == ["over", "waits", None, None]
        psql.rollback()
    give(kit)
    assert turns(kit, first, second) == [None, None]


@on_postgresql
@pytest.mark.parametrize("locked", ["next", "holder", "marks"])
def test_more_marks_than_one_statement_looks_at_behind_a_lock_hold_up_no_other_key(
    kit: Kit, locked: str
) -> None:
    """They wait for the next run, for the one with the turn to give way, or are locked."""
    first = ordered(kit) if locked == "holder" else 0
    over = "'task', 'key', 1, true, 'over', 'succeeded', 1, now()"
    kit.sql(
        "INSERT INTO job_runs (job_type, concurrency_key, concurrency_limit, strict, order_mark,"
        f" status, attempts, finished_at) SELECT {over} FROM {_numbers(kit, 2 * RUNS_READ)}"
    )
    last = ordered(kit, order_mark=None if locked == "holder" else "waits")
    early, late = ordered(kit, "other"), ordered(kit, "other", order_mark=None)
    which = f"id < {last}" if locked == "marks" else f"id = {last}"
    with kit.engine.begin() as psql:
        psql.execute(text(f"SELECT 1 FROM job_runs WHERE {which} FOR UPDATE"))
        for _ in range(4):
            give(kit)
        assert turns(kit, early, late) == [None, "waits"]
    while give(kit):
        pass
    assert turns(kit, first or last) == [None]
    assert turns(kit, last) == ["waits" if first else None]


@on_postgresql
def test_run_with_the_turn_gives_way_once_it_is_unlocked(kit: Kit) -> None:
    first, second = ordered(kit, run_at=ago(hours=-1)), ordered(kit)
    give(kit)
    kit.operator.cancel([first], "why")
    give(kit)
    with kit.engine.connect() as psql:
        psql.execute(text("SELECT 1 FROM job_runs WHERE id = :id FOR UPDATE"), {"id": second})
        kit.operator.retry([first])
        assert next_ids(kit) == []
        assert turns(kit, first, second) == ["new", None]
        psql.rollback()
    assert next_ids(kit) == [first]
    assert turns(kit, first, second) == [None, "waits"]


def test_many_workers_at_once_keep_the_order(kit: Kit) -> None:
    """Each claims, ends and gives turns; what ran of a key ran in the order of ids."""
    number = 12
    ids = {key: [ordered(kit, key) for _ in range(number)] for key in ("a", "b", "c")}
    done: list[tuple[str, int]] = []

    def work() -> None:
        worker = kit.another()
        idle = 0
        while len(done) < 3 * number and idle < 3000:
            turns_of_orders.give(worker.books)
            claims = worker.claim(1)
            idle = 0 if claims else idle + 1
            for claim in claims:
                assert claim.concurrency_key is not None
                done.append((claim.concurrency_key, claim.id))
                worker.finish(claim)
        worker.books.close()

    in_threads(*[work] * 4)
    for key, of_key in ids.items():
        assert [run for name, run in done if name == key] == of_key
