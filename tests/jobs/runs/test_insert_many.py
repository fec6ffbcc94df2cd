"""Many runs with idempotency keys, while other transactions insert the same keys."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from flask_cronjobs.jobs.runs import insert_many
from flask_cronjobs.jobs.runs.insert_many import Inserted, NewRow, insert_keyed_runs
from tests.jobs.runs.test_insert import SHARED
from tests.kit import Kit, in_threads

pytestmark = pytest.mark.usefixtures("writers")


def keyed(*keys: str | None) -> list[NewRow]:
    return [NewRow(f'{{"place": {n}}}', idempotency_key=key) for n, key in enumerate(keys)]


def test_transactions_with_the_same_keys_do_not_deadlock(
    kit: Kit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(insert_many, "CHUNK", 5)
    start = threading.Barrier(4)
    found: dict[str, set[int]] = {f"{n:02}": set() for n in range(40)}
    new: list[str] = []
    errors: list[BaseException] = []

    def insert(seed: int) -> None:
        keys = list(found)
        random.Random(seed).shuffle(keys)
        start.wait()
        try:
            for _ in range(3):
                with Session(kit.engine) as session:
                    made = insert_keyed_runs(session, SHARED, keyed(*keys[:30], None))
                    session.commit()
                for key, one in zip(keys[:30], made[:30], strict=True):
                    found[key].add(one.id)
                    new.extend([key] if one.holder is None else [])
        except BaseException as error:
            errors.append(error)

    in_threads(*(lambda seed=seed: insert(seed) for seed in range(4)))
    assert errors == []
    assert all(len(ids) <= 1 for ids in found.values())
    assert sorted(new) == sorted(key for key, ids in found.items() if ids)
    rows = kit.all_rows()
    assert sorted(row.idempotency_key for row in rows if row.idempotency_key) == sorted(new)
    assert len(rows) == len(new) + 4 * 3


def test_call_waits_for_the_transaction_that_has_a_key_and_takes_its_run(kit: Kit) -> None:
    first, second = race(kit, keyed("b", "a"), keyed("c", None, "a"), Session.commit)
    assert second[2].id == first[1].id
    assert [one.holder is None for one in second] == [True, True, False]
    assert len(kit.all_rows()) == 4


def test_call_makes_its_own_run_when_the_other_transaction_rolls_back(kit: Kit) -> None:
    _, second = race(kit, keyed("b", "a"), keyed("c", None, "a"), Session.rollback)
    assert [one.holder for one in second] == [None] * 3
    assert [one.id for one in second] == sorted(row.id for row in kit.all_rows())


def race(
    kit: Kit,
    rows: list[NewRow],
    others: list[NewRow],
    end: Callable[[Session], Any],
) -> tuple[list[Inserted], list[Inserted]]:
    """Insert *rows*, and *others* in another transaction before *end* ends the first one."""
    inserted, go_on = threading.Event(), threading.Event()
    made: dict[str, list[Inserted]] = {}

    def first() -> None:
        with Session(kit.engine) as session:
            made["first"] = insert_keyed_runs(session, SHARED, rows)
            inserted.set()
            go_on.wait(30)
            end(session)

    def second() -> None:
        inserted.wait(30)
        threading.Timer(0.2, go_on.set).start()
        with Session(kit.engine) as session:
            made["second"] = insert_keyed_runs(session, SHARED, others)
            session.commit()

    in_threads(first, second)
    return made["first"], made["second"]


def test_runs_are_told_apart_without_a_sequence_to_reserve_ids_from(kit: Kit) -> None:
    """Somebody gave the column another default; then the order of the ids is that of the keys."""
    if kit.engine.dialect.name == "postgresql":
        kit.sql("ALTER SEQUENCE job_runs_id_seq OWNED BY NONE")
    with Session(kit.engine) as session:
        made = insert_keyed_runs(session, SHARED, keyed("b", "a", None))
        session.commit()
    keys = {row.id: row.idempotency_key for row in kit.all_rows()}
    assert [keys[one.id] for one in made] == ["b", "a", None]
