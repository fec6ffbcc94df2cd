"""`enqueue_many` with a key, a time and a priority for each run, from any iterable."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, KeyConflict, NewRun, PayloadError, RunIds, Task, TaskError
from flask_cronjobs.jobs.runs import enqueue as enqueue_module
from flask_cronjobs.models import JobRun
from tests.kit import statements
from tests.marks import on_both
from tests.rows import runs

pytestmark = pytest.mark.usefixtures("context")
Greet = Task[[int, str], None]
WHEN = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
NAIVE = datetime(2030, 1, 1)


@pytest.fixture
def greet(jobs: CronJobs) -> Any:
    """A task of two arguments."""

    @jobs.task(priority=2)
    def greet(user_id: int, week: str = "now") -> None: ...

    return greet


def by_id(db: SQLAlchemy) -> dict[int, JobRun]:
    return {run.id: run for run in runs(db)}


def keyed(user_id: int, key: str | None, **options: Any) -> NewRun:
    return NewRun({"user_id": user_id}, idempotency_key=key, **options)


class TestOptions:
    @on_both
    def test_each_run_has_its_own(self, db: SQLAlchemy, greet: Greet) -> None:
        ids = greet.enqueue_many(
            [
                {"user_id": 0, "week": "é\"'\n"},
                keyed(1, "one"),
                NewRun({"user_id": 2}, run_at=WHEN),
                NewRun({"user_id": 3}, delay=timedelta(minutes=5), priority=0),
                NewRun({"user_id": 4}, delay=0, priority=-7),
            ]
        )
        db.session.commit()
        found = [by_id(db)[run] for run in ids]
        assert [run.payload["user_id"] for run in found] == [*range(5)]
        assert found[0].payload["week"] == "é\"'\n"
        assert [run.priority for run in found] == [2, 2, 2, 0, -7]
        assert [run.idempotency_key for run in found] == [None, "one", None, None, None]
        due = [(run.run_at - run.created_at).total_seconds() for run in found]
        assert found[2].run_at == found[2].scheduled_for == WHEN
        assert [due[0], due[1], due[3], due[4]] == pytest.approx([0, 0, 300, 0], abs=0.1)
        assert ids.is_new == [True] * 5

    def test_they_come_before_those_of_using(self, db: SQLAlchemy, greet: Greet) -> None:
        entries: list[Any] = [
            {"user_id": 0},
            NewRun({"user_id": 1}, delay=60),
            keyed(2, "k", run_at=WHEN),
        ]
        later = WHEN + timedelta(days=1)
        ids = greet.using(priority=9, run_at=later).enqueue_many(entries)
        ids += greet.using(priority=9, delay=3600).enqueue_many(entries)
        db.session.commit()
        found = [by_id(db)[run] for run in ids]
        assert [run.run_at for run in found[:3:2]] == [later, WHEN]
        delays = [(found[n].run_at - found[n].created_at).total_seconds() for n in (1, 3, 4)]
        assert delays == pytest.approx([60, 3600, 60], abs=0.1)
        assert {run.priority for run in found} == {9}

    @pytest.mark.parametrize(
        ("wrong", "error", "message"),
        [
            ({"user": 1}, TypeError, r"greet\(\) missing .*'user_id'"),
            (1, PayloadError, "The payload is of type int. Give a dict"),
            ({"user_id": b"x"}, PayloadError, "user_id: expected a whole number, got a value of"),
            (keyed(1, ""), TaskError, "idempotency_key is ''"),
            (NewRun({"user_id": 1}, delay=-1), TaskError, "delay is -1"),
            (NewRun({"user_id": 1}, delay=1, run_at=WHEN), TaskError, "run_at and delay"),
            (NewRun({"user_id": 1}, priority=99999), TaskError, "priority is 99999"),
            (NewRun({"user_id": 1}, run_at=NAIVE), TaskError, "run_at is .*Give an aware"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_named_by_its_place_and_nothing_is_enqueued(
        self, db: SQLAlchemy, greet: Greet, monkeypatch: Any, wrong: Any, error: Any, message: str
    ) -> None:
        greet.enqueue(7, "before")
        for chunk in (1, 1000):
            monkeypatch.setattr(enqueue_module, "INSERTED_AT_ONCE", chunk)
            with pytest.raises(error, match=rf"^payloads\[2\]: {message}"):
                greet.enqueue_many([{"user_id": 1}, {"user_id": 2}, wrong, {"user_id": 3}])
        db.session.commit()
        assert [run.payload["user_id"] for run in runs(db)] == [7]


class TestKeys:
    @on_both
    def test_keys_that_are_the_same_in_one_call_are_one_run(
        self, db: SQLAlchemy, greet: Greet, caplog: pytest.LogCaptureFixture
    ) -> None:
        ids = greet.enqueue_many([keyed(1, "b"), keyed(2, "a"), keyed(1, "b"), keyed(2, "a")])
        assert ids == [ids[0], ids[1], ids[0], ids[1]]
        assert ids.is_new == [True, True, False, False]
        greet.enqueue_many([keyed(5, "c"), keyed(6, "c")])
        assert caplog.records == []

    @on_both
    @pytest.mark.parametrize("seed", range(8))
    def test_it_does_what_single_enqueues_would(
        self, db: SQLAlchemy, greet: Greet, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        monkeypatch.setattr("flask_cronjobs.jobs.runs.insert_many.INSERTED_AT_ONCE", 4)
        monkeypatch.setattr(enqueue_module, "INSERTED_AT_ONCE", 3)
        chosen = random.Random(seed)
        model: dict[str, int] = {}
        for _ in range(4):
            keys = [chosen.choice([None, *"abcdefgh"]) for _ in range(chosen.randrange(14))]
            given = (keyed(n, key) if key else {"user_id": n} for n, key in enumerate(keys))
            ids = greet.enqueue_many(given)
            for key, run, is_new in zip(keys, ids, ids.is_new, strict=True):
                assert is_new == (key is None or key not in model)
                assert key is None or model.setdefault(key, run) == run
            # So runs of one concurrency key begin in the order given, whatever the keys.
            assert ids.new == sorted(ids.new)
            if is_lost := chosen.random() < 0.3:
                db.session.rollback()
            else:
                db.session.commit()
            found = by_id(db)
            kept = {run.idempotency_key: run.id for run in found.values() if run.idempotency_key}
            if is_lost:
                model = kept
                continue
            assert kept == model
            for n, (key, run) in enumerate(zip(keys, ids, strict=True)):
                if run in ids.new and (key is None or keys.index(key) == n):
                    assert found[run].payload["user_id"] == n

    @on_both
    def test_a_key_of_another_task_is_refused_and_nothing_is_enqueued(
        self, db: SQLAlchemy, jobs: CronJobs, greet: Greet
    ) -> None:
        @jobs.task
        def charge(user_id: int) -> None: ...

        held = charge.using(idempotency_key="m", commit=True).enqueue(1).id
        expected = rf"^payloads\[2\]: .*is held by run {held} of the task charge"
        with pytest.raises(KeyConflict, match=expected):
            greet.enqueue_many([{"user_id": 0}, keyed(1, "z"), keyed(2, "m"), keyed(3, "a")])
        greet.enqueue(9, "after")  # The transaction is as good as before.
        db.session.commit()
        assert [run.job_type for run in runs(db)] == ["charge", "greet"]

    @on_both
    def test_a_run_that_is_deleted_meanwhile_is_inserted(
        self, db: SQLAlchemy, greet: Greet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flask_cronjobs.jobs.runs import insert_many as store

        greet.using(idempotency_key="b", commit=True).enqueue(1, "now")
        find = store._holders

        def deleted_first(connection: Any, keys: Any) -> Any:
            monkeypatch.setattr(store, "_holders", find)
            connection.exec_driver_sql("DELETE FROM job_runs WHERE idempotency_key = 'b'")
            return find(connection, keys)

        monkeypatch.setattr(store, "_holders", deleted_first)
        ids = greet.enqueue_many([keyed(1, "a"), {"user_id": 0}, keyed(2, "b")])
        db.session.commit()
        assert ids.is_new == [True, True, True]
        assert [by_id(db)[run].payload["user_id"] for run in ids] == [1, 0, 2]


class TestGenerators:
    def counted(self, total: int, sent: list[str], seen: list[int]) -> Iterator[Any]:
        for n in range(total):
            seen.append(len(sent))
            yield {"user_id": n}

    @on_both
    def test_are_read_in_parts(
        self, db: SQLAlchemy, greet: Greet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enqueue_module, "INSERTED_AT_ONCE", 10)
        sent, seen = statements(db.engine, "INSERT INTO job_runs"), list[int]()
        ids = greet.enqueue_many(self.counted(35, sent, seen))
        assert len(ids) == len(sent) * 10 - 5 == 35
        assert seen == [n // 10 for n in range(35)]

    def test_that_raise_leave_nothing(
        self, db: SQLAlchemy, greet: Greet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enqueue_module, "INSERTED_AT_ONCE", 2)

        def broken() -> Iterator[Mapping[str, object]]:
            yield from ({"user_id": n} for n in range(5))
            raise ZeroDivisionError

        greet.enqueue(7, "before")
        with pytest.raises(ZeroDivisionError):
            greet.enqueue_many(broken())
        db.session.commit()
        assert [run.payload["user_id"] for run in runs(db)] == [7]

    @on_both
    def test_error_of_their_own_statement_is_not_about_the_job_tables(
        self, db: SQLAlchemy, greet: Greet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        monkeypatch.setattr(enqueue_module, "INSERTED_AT_ONCE", 2)

        def broken() -> Iterator[NewRun]:
            yield from (keyed(n, str(n)) for n in range(3))
            db.session.execute(text("SELECT 1 FROM no_such_table"))

        with pytest.raises(DBAPIError, match="no_such_table"):
            greet.enqueue_many(broken())
        assert runs(db) == []


def test_ids_are_a_list(greet: Greet) -> None:
    ids = greet.enqueue_many([keyed(1, "a"), keyed(1, "a")])
    assert isinstance(ids, RunIds)
    assert ids == list(ids)
    assert json.dumps(ids) == f"[{ids[0]}, {ids[0]}]"
    assert ids.new == ids[:1]
