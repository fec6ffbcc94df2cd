"""Enqueues in the user's own transaction, with keys that race."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from flask_cronjobs.core import insert_many
from flask_cronjobs.core.insert import insert_or_find
from flask_cronjobs.core.insert_many import insert_runs
from flask_cronjobs.core.new_run import NewRun
from flask_cronjobs.types import JSON
from tests.kit import Kit, in_threads


def new(idempotency_key: str, payload: JSON = None, **values: Any) -> NewRun:
    """Return a new run with a key."""
    text = json.dumps(payload or {})
    return NewRun(job_type="task", payload=text, idempotency_key=idempotency_key, **values)


pytestmark = pytest.mark.usefixtures("writers")


def test_racing_enqueues_of_one_key_are_one_run_and_break_no_transaction(kit: Kit) -> None:
    kit.sql("CREATE TABLE entries (name VARCHAR)")
    start = threading.Barrier(4)
    ids: list[int] = []

    def order(name: str) -> None:
        start.wait()
        with Session(kit.engine) as session:
            session.execute(text("INSERT INTO entries VALUES (:name)"), {"name": name})
            run = insert_or_find(session, new("key")).run
            session.execute(text("INSERT INTO entries VALUES (:name)"), {"name": name})
            ids.append(run.id)
            session.commit()

    in_threads(*(lambda name=name: order(name) for name in "abcd"))
    (row,) = kit.all_rows()
    assert ids == [row.id] * 4
    entries = kit.sql("SELECT name FROM entries ORDER BY name")
    assert [entry.name for entry in entries] == list("aabbccdd")


def enqueue_one(session: Session, by: str) -> int:
    return insert_or_find(session, new("key", {"by": by})).run.id


def enqueue_many(session: Session, by: str) -> int:
    return insert_runs(session, [new("a"), new("key", {"by": by})])[1].id


@pytest.mark.parametrize("enqueue", [enqueue_one, enqueue_many])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_enqueue_waits_for_the_transaction_that_has_the_key(
    kit: Kit, enqueue: Callable[[Session, str], int], end: str
) -> None:
    """If that transaction commits, the enqueue gets its run; otherwise it inserts its own."""
    inserted, go_on = threading.Event(), threading.Event()
    ids: dict[str, int] = {}

    def call(name: str, end: str) -> None:
        with Session(kit.engine) as session:
            ids[name] = enqueue(session, name)
            inserted.set()
            assert go_on.wait(30)
            getattr(session, end)()

    def second() -> None:
        assert inserted.wait(30)
        threading.Timer(0.2, go_on.set).start()
        call("second", "commit")

    in_threads(partial(call, "first", end), second)
    (row,) = [row for row in kit.all_rows() if row.idempotency_key == "key"]
    assert row.id == ids["second"]
    assert row.payload == {"by": "first" if end == "commit" else "second"}


# Many at once


def keyed(*keys: str) -> list[NewRun]:
    return [new(key, {"place": place}) for place, key in enumerate(keys)]


def test_transactions_with_the_same_keys_do_not_deadlock(
    kit: Kit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(insert_many, "INSERTED_AT_ONCE", 5)
    start = threading.Barrier(4)
    ids_by_key: dict[str, set[int]] = {f"{n:02}": set() for n in range(40)}
    made_new: list[str] = []

    def insert(seed: int) -> None:
        keys = list(ids_by_key)
        random.Random(seed).shuffle(keys)
        start.wait()
        for _ in range(3):
            with Session(kit.engine) as session:
                runs = insert_runs(session, keyed(*keys[:30]))
                session.commit()
            for key, run in zip(keys[:30], runs, strict=True):
                ids_by_key[key].add(run.id)
                made_new.extend([key] if run.holder is None else [])

    in_threads(*(lambda seed=seed: insert(seed) for seed in range(4)))
    assert all(len(ids) <= 1 for ids in ids_by_key.values())
    assert sorted(made_new) == sorted(key for key, ids in ids_by_key.items() if ids)
    rows = kit.all_rows()
    assert sorted(row.idempotency_key or "" for row in rows) == sorted(made_new)


def test_runs_are_matched_to_their_rows_without_a_sequence_of_ids(kit: Kit) -> None:
    """If the column's default was changed, the ids are in the order of the keys."""
    if kit.engine.dialect.name == "postgresql":
        kit.sql("ALTER SEQUENCE job_runs_id_seq OWNED BY NONE")
    with Session(kit.engine) as session:
        runs = insert_runs(session, keyed("b", "a"))
        session.commit()
    keys = {row.id: row.idempotency_key for row in kit.all_rows()}
    assert [keys[run.id] for run in runs] == ["b", "a"]
