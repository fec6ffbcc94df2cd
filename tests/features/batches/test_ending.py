"""A batch ends once, when its last member has ended, even if several finish at the same time."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import text

from flask_cronjobs.features.batches.batch_rows import NewBatch, open_batch
from flask_cronjobs.features.batches.ending import end_batch, end_batches
from flask_cronjobs.types import Claim
from tests.kit import Kit, in_threads

THEN = {"queue": "default", "priority": 0, "max_attempts": 3, "strict": False}


def make_batch(kit: Kit, key: str = "b", closed: bool = True, **values: object) -> int:
    """Open a batch with `then` and without runs; return its id."""
    with kit.engine.begin() as connection:
        new_batch = NewBatch(key, then_task="then", then_payload="{}", then_columns=THEN)
        batch, _ = open_batch(connection, kit.books.dialect, new_batch)
        values |= {"closed_at": "2026-01-01 00:00:00.000000"} if closed else {}
        for name, value in values.items():
            sql = f"UPDATE job_batches SET {name} = :value WHERE id = :id"
            if name == "closed_at" and kit.engine.dialect.name == "postgresql":
                sql = sql.replace(":value", "CAST(CAST(:value AS text) AS timestamptz)")
            connection.execute(text(sql), {"value": value, "id": batch})
    return batch


def thens(kit: Kit) -> int:
    """Return how many runs of `then` there are."""
    return int(kit.sql("SELECT count(*) FROM job_runs WHERE job_type = 'then'")[0][0])


def finish(worker: Kit, claim: Claim, batch: int) -> None:
    """Record a success, and end the batch if it can end."""
    assert worker.finish(claim)
    end_batches(worker.books, [batch])


def test_many_workers_that_finish_at_once_enqueue_one_then(kit: Kit) -> None:
    for round_ in range(5):
        batch = make_batch(kit, f"batch {round_}")
        kit.runs(4, batch_id=batch)
        workers = [kit.another() for _ in range(4)]
        claims = [worker.claim(limit=1)[0] for worker in workers]

        in_threads(*(partial(finish, *pair, batch) for pair in zip(workers, claims, strict=True)))
        for worker in workers:
            worker.books.close()
        assert thens(kit) == round_ + 1


def test_run_whose_end_is_not_committed_is_live(kit: Kit) -> None:
    if kit.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    batch = make_batch(kit)
    first, second = (kit.run(batch_id=batch) for _ in range(2))
    claims = {claim.id: claim for claim in kit.claim()}
    finish_run = "UPDATE job_runs SET status = 'succeeded', finished_at = now(), locked_by = NULL,"
    with kit.engine.connect() as slow:
        slow.execute(text(f"{finish_run} locked_until = NULL WHERE id = {first}"))
        assert kit.finish(claims[second])
        assert not end_batches(kit.books, [batch])
        slow.commit()
    assert end_batches(kit.books) == 1
    assert end_batches(kit.books) == 0


def test_batch_that_is_being_filled_is_neither_ended_nor_waited_for(kit: Kit) -> None:
    if kit.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    batch = make_batch(kit)
    with kit.engine.connect() as locker:
        locker.execute(text(f"SELECT id FROM job_batches WHERE id = {batch} FOR SHARE"))
        assert kit.books.transaction(lambda c: end_batch(c, kit.books.dialect, batch)) is None
        assert end_batches(kit.books) == 0
    assert end_batches(kit.books) == 1
