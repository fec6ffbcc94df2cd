"""Enqueue in the user's own transaction: keys that race, and many at once."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from flask_cronjobs.jobs.runs import insert_many
from flask_cronjobs.jobs.runs.insert import insert_run
from flask_cronjobs.jobs.runs.insert_many import NewRow, insert_runs
from flask_cronjobs.types import JSON
from tests.kit import Kit, in_threads

SHARED: dict[str, Any] = {
    "job_type": "task", "queue": "default", "priority": 0, "max_attempts": 10,
    "concurrency_limit": None, "unique_while": None, "batch_id": None,
    "on_dead": None, "run_at": None, "delay": 0.0,
}  # fmt: skip


def values(key: str | None = None, payload: JSON = None) -> dict[str, Any]:
    text = json.dumps(payload or {})
    return {**SHARED, "payload": text, "idempotency_key": key, "concurrency_key": None}


def row(payload: dict[str, JSON], key: str | None = None) -> NewRow:
    return NewRow(json.dumps(payload), concurrency_key=key)


pytestmark = pytest.mark.usefixtures("writers")


def test_racing_enqueues_of_one_key_are_one_run_and_break_no_transaction(kit: Kit) -> None:
    kit.sql("CREATE TABLE entries (name VARCHAR)")
    start = threading.Barrier(4)
    found: list[int] = []

    def order(name: str) -> None:
        start.wait()
        with Session(kit.engine) as session:
            session.execute(text("INSERT INTO entries VALUES (:name)"), {"name": name})
            run = insert_run(session, values("key")).run
            session.execute(text("INSERT INTO entries VALUES (:name)"), {"name": name})
            found.append(run.id)
            session.commit()

    in_threads(*(lambda name=name: order(name) for name in "abcd"))
    (row,) = kit.all_rows()
    assert found == [row.id] * 4
    entries = kit.sql("SELECT name FROM entries ORDER BY name")
    assert [entry.name for entry in entries] == list("aabbccdd")


def test_enqueue_waits_for_the_transaction_that_has_the_key_and_takes_its_run(kit: Kit) -> None:
    inserted, committed = threading.Event(), threading.Event()
    found: list[int] = []

    def first() -> None:
        with Session(kit.engine) as session:
            found.append(insert_run(session, values("key"))[0].id)
            inserted.set()
            committed.wait(30)
            session.commit()

    def second() -> None:
        inserted.wait(30)
        threading.Timer(0.2, committed.set).start()
        with Session(kit.engine) as session:
            found.append(insert_run(session, values("key"))[0].id)
            session.commit()

    in_threads(first, second)
    assert found[0] == found[1]
    assert len(kit.all_rows()) == 1


def test_enqueue_makes_its_own_run_when_the_other_transaction_rolls_back(kit: Kit) -> None:
    inserted, go_on = threading.Event(), threading.Event()
    found: list[int] = []

    def first() -> None:
        with Session(kit.engine) as session:
            insert_run(session, values("key", payload={"by": "first"}))
            inserted.set()
            go_on.wait(30)
            session.rollback()

    def second() -> None:
        inserted.wait(30)
        threading.Timer(0.2, go_on.set).start()
        with Session(kit.engine) as session:
            found.append(insert_run(session, values("key", payload={"by": "second"}))[0].id)
            session.commit()

    in_threads(first, second)
    (row,) = kit.all_rows()
    assert (row.id, row.payload) == (found[0], {"by": "second"})


class TestMany:
    def test_ids_come_in_the_order_of_the_rows(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(insert_many, "CHUNK", 7)
        with Session(kit.engine) as session:
            rows = [row({"number": number}) for number in range(30)]
            ids = insert_runs(session, SHARED, rows)
            session.commit()
        assert [kit.row(run).payload for run in ids] == [{"number": n} for n in range(30)]

    def test_all_columns_are_those_that_were_given(self, kit: Kit) -> None:
        shared = {**SHARED, "queue": "mail", "priority": 4, "max_attempts": 2}
        shared["concurrency_limit"] = 3
        payload: dict[str, JSON] = {
            "text": "é\"'\n",
            "number": 1.5,
            "big": 2**60,
            "null": None,
            "list": [{}],
        }
        with Session(kit.engine) as session:
            (run,) = insert_runs(session, shared, [row(payload, "user:1")])
            session.commit()
        kept = kit.row(run)
        assert (kept.status, kept.attempts) == ("queued", 0)
        assert (kept.queue, kept.priority, kept.max_attempts) == ("mail", 4, 2)
        assert (kept.concurrency_key, kept.concurrency_limit) == ("user:1", 3)
        assert kept.payload == payload
        assert abs(kept.run_at - kept.scheduled_for) < timedelta(seconds=1)
