"""`enqueue_many` with one set of options and keys by ``unique``, from any iterable."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, KeyConflict, PayloadError, Task, TaskError
from flask_cronjobs.core import enqueue as enqueue_module
from flask_cronjobs.models import JobRun
from tests.kit import statements
from tests.marks import on_both
from tests.rows import runs

pytestmark = pytest.mark.usefixtures("context")
Greet = Task[[int, str], None]
WHEN = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


@pytest.fixture
def greet(jobs: CronJobs) -> Any:
    """A task with two arguments."""

    @jobs.task(priority=2)
    def greet(user_id: int, week: str = "now") -> None: ...

    return greet


def by_id(db: SQLAlchemy) -> dict[int, JobRun]:
    return {run.id: run for run in runs(db)}


@pytest.fixture
def once(jobs: CronJobs) -> Any:
    """A task that has one run per key."""

    @jobs.task(unique="{key}")
    def once(user_id: int, key: str) -> None: ...

    return once


def keyed(user_id: int, key: str) -> dict[str, object]:
    return {"user_id": user_id, "key": key}


class TestOptions:
    @on_both
    def test_all_runs_have_those_of_the_call_and_the_task(
        self, db: SQLAlchemy, greet: Greet
    ) -> None:
        plain = greet.enqueue_many([{"user_id": 0, "week": "é\"'\n"}, {"user_id": 1}])
        timed = greet.using(priority=9, run_at=WHEN).enqueue_many([{"user_id": 2}] * 2)
        delayed = greet.using(delay=timedelta(minutes=5)).enqueue_many([{"user_id": 3}] * 2)
        db.session.commit()
        rows = by_id(db)
        assert [rows[run].payload["user_id"] for run in plain] == [0, 1]
        assert rows[plain[0]].payload["week"] == "é\"'\n"
        for ids, priority, delay in ((plain, 2, 0), (delayed, 2, 300)):
            assert {rows[run].priority for run in ids} == {priority}
            due = [(rows[run].run_at - rows[run].created_at).total_seconds() for run in ids]
            assert due == pytest.approx([delay] * 2, abs=0.1)
        assert {(rows[run].priority, rows[run].run_at) for run in timed} == {(9, WHEN)}
        assert {rows[run].scheduled_for for run in timed} == {WHEN}
        assert plain.is_new == [True, True]

    def test_one_key_for_many_runs_is_refused(self, greet: Greet) -> None:
        with pytest.raises(TaskError, match=r"Declare the task with unique=…, such as unique='gr"):
            greet.using(idempotency_key="k").enqueue_many([{"user_id": 1}])

    @pytest.mark.parametrize(
        ("wrong", "error", "message"),
        [
            ({"user": 1}, TypeError, r"greet\(\) missing .*'user_id'"),
            (1, PayloadError, "The payload is of type int. Give a dict"),
            ({"user_id": b"x"}, PayloadError, "user_id: expected a whole number, got a value of"),
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
        self, db: SQLAlchemy, once: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        ids = once.enqueue_many([keyed(1, "b"), keyed(2, "a"), keyed(1, "b"), keyed(2, "a")])
        assert ids == [ids[0], ids[1], ids[0], ids[1]]
        assert ids.is_new == [True, True, False, False]
        once.enqueue_many([keyed(5, "c"), keyed(6, "c")])
        assert caplog.records == []

    @on_both
    @pytest.mark.parametrize("seed", range(8))
    def test_it_does_what_single_enqueues_would(
        self, db: SQLAlchemy, once: Any, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        monkeypatch.setattr("flask_cronjobs.core.insert_many.INSERTED_AT_ONCE", 4)
        monkeypatch.setattr(enqueue_module, "INSERTED_AT_ONCE", 3)
        chosen = random.Random(seed)
        model: dict[str, int] = {}
        for _ in range(4):
            keys = [chosen.choice("abcdefgh") for _ in range(chosen.randrange(14))]
            ids = once.enqueue_many(keyed(n, key) for n, key in enumerate(keys))
            for key, run, is_new in zip(keys, ids, ids.is_new, strict=True):
                assert is_new == (key not in model)
                assert model.setdefault(key, run) == run
            # Otherwise the runs of one concurrency key would not begin in the given order.
            assert ids.new == sorted(ids.new)
            if is_lost := chosen.random() < 0.3:
                db.session.rollback()
            else:
                db.session.commit()
            rows = by_id(db)
            ids_by_key = {run.idempotency_key or "": run.id for run in rows.values()}
            if is_lost:
                model = ids_by_key
                continue
            assert ids_by_key == model
            for n, (key, run) in enumerate(zip(keys, ids, strict=True)):
                if run in ids.new and keys.index(key) == n:
                    assert rows[run].payload["user_id"] == n

    @on_both
    def test_a_key_of_another_task_is_refused_and_nothing_is_enqueued(
        self, db: SQLAlchemy, jobs: CronJobs, once: Any
    ) -> None:
        @jobs.task
        def charge(user_id: int) -> None: ...

        holder = charge.using(idempotency_key="m", commit=True).enqueue(1).id
        expected = rf"^payloads\[2\]: .*is held by run {holder} of the task charge"
        with pytest.raises(KeyConflict, match=expected):
            once.enqueue_many([keyed(0, "b"), keyed(1, "z"), keyed(2, "m"), keyed(3, "a")])
        once.enqueue(9, "after")  # The transaction is still usable.
        db.session.commit()
        assert [run.job_type for run in runs(db)] == ["charge", "once"]

    @on_both
    def test_a_run_that_is_deleted_meanwhile_is_inserted(
        self, db: SQLAlchemy, once: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flask_cronjobs.core import insert_many as store

        once.using(commit=True).enqueue(1, "b")
        find = store._holders

        def deleted_first(connection: Any, keys: Any) -> Any:
            monkeypatch.setattr(store, "_holders", find)
            connection.exec_driver_sql("DELETE FROM job_runs WHERE idempotency_key = 'b'")
            return find(connection, keys)

        monkeypatch.setattr(store, "_holders", deleted_first)
        while_kept = once.using(unique_while="kept")
        ids = while_kept.enqueue_many([keyed(1, "a"), keyed(0, "c"), keyed(2, "b")])
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
        inserts, counts = statements(db.engine, "INSERT INTO job_runs"), list[int]()
        ids = greet.enqueue_many(self.counted(35, inserts, counts))
        assert len(ids) == len(inserts) * 10 - 5 == 35
        assert counts == [n // 10 for n in range(35)]

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

        def broken() -> Iterator[Mapping[str, object]]:
            yield from ({"user_id": n} for n in range(3))
            db.session.execute(text("SELECT 1 FROM no_such_table"))

        with pytest.raises(DBAPIError, match="no_such_table"):
            greet.enqueue_many(broken())
        assert runs(db) == []
