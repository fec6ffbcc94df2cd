"""Enqueue in the user's own transaction: keys that race."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from flask_cronjobs.jobs.runs.insert import GIVEN, insert_run
from flask_cronjobs.types import JSON
from tests.kit import Kit, in_threads

#: What the new runs of one call share.
SHARED: dict[str, Any] = dict.fromkeys(GIVEN) | {
    "run_at": None, "delay": 0.0,
    "job_type": "task", "queue": "default", "priority": 0, "max_attempts": 10,
}  # fmt: skip


def values(key: str, payload: JSON = None) -> dict[str, Any]:
    return SHARED | {"idempotency_key": key, "payload": json.dumps(payload or {})}


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


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_enqueue_waits_for_the_transaction_that_has_the_key(kit: Kit, end: str) -> None:
    """If that commits, it takes its run; else it makes its own."""
    inserted, go_on = threading.Event(), threading.Event()
    found: dict[str, int] = {}

    def enqueue(name: str, end: str) -> None:
        with Session(kit.engine) as session:
            found[name] = insert_run(session, values("key", payload={"by": name}))[0].id
            inserted.set()
            assert go_on.wait(30)
            getattr(session, end)()

    def second() -> None:
        assert inserted.wait(30)
        threading.Timer(0.2, go_on.set).start()
        enqueue("second", "commit")

    in_threads(partial(enqueue, "first", end), second)
    (row,) = kit.all_rows()
    assert row.id == found["second"]
    assert row.payload == {"by": "first" if end == "commit" else "second"}
