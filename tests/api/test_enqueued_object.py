"""The `JobRun` that `enqueue` returns belongs to the session, as if its row had been loaded."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.session import Session as FlaskSession
from sqlalchemy import Delete, Update, create_engine, event, inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import ObjectDeletedError

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobDefinition, JobRun
from tests.kit import statements
from tests.marks import on_both

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def greet(jobs: CronJobs) -> Any:
    """A task with a limit, so that its runs have values in all columns."""

    @jobs.task(queue="mail", priority=2, concurrency=3, concurrency_key="user:{user_id}")
    def greet(user_id: int, week: object = "now") -> None: ...

    return greet


def columns(run: JobRun) -> dict[str, object]:
    return {column.key: getattr(run, column.key) for column in inspect(JobRun).columns}


WHEN = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "options",
    [{}, {"delay": 12.3456789}, {"run_at": WHEN}, {"idempotency_key": "key", "max_attempts": 3}],
    ids=str,
)
@on_both
def test_attributes_are_those_of_the_row_without_a_query(
    db: SQLAlchemy, greet: Any, options: dict[str, Any]
) -> None:
    week = ["x", "é\"'\n\t\\", "😀", 2**64, 1.5, None, True, [1, (2, {"a": []})]]
    log = statements(db.engine)
    run = greet.using(**options).enqueue(7, week)
    values = columns(run)
    assert sum("INSERT INTO job_runs" in statement for statement in log) == 1
    assert not any(statement.startswith("SELECT job_runs") for statement in log)
    assert inspect(run).persistent
    assert run not in db.session.dirty
    db.session.commit()
    with Session(db.engine) as session:
        loaded = session.get_one(JobRun, run.id)
        assert columns(loaded) == values
        assert type(loaded.run_at) is type(values["run_at"])
    assert columns(run) == values  # After the commit, the session reads the row again.


def test_it_is_the_one_that_a_query_finds(db: SQLAlchemy, greet: Any) -> None:
    run: JobRun = greet.enqueue(1)
    assert db.session.get(JobRun, run.id) is run
    assert db.session.scalars(select(JobRun)).all() == [run]
    run.priority = 9
    assert run in db.session.dirty
    db.session.commit()
    assert db.session.scalars(select(JobRun.priority)).all() == [9]
    db.session.delete(run)
    db.session.commit()
    assert db.session.scalars(select(JobRun)).all() == []


@on_both
def test_a_run_with_the_id_of_one_that_was_rolled_back_has_its_own_values(
    db: SQLAlchemy, greet: Any
) -> None:
    """SQLite reuses the id while the session still has the first object."""
    first = greet.enqueue(1)
    db.session.rollback()
    with pytest.raises(ObjectDeletedError):
        _ = first.status
    second = greet.enqueue(2)
    assert second.payload == {"user_id": 2}
    assert second.is_new
    db.session.commit()
    if first is second:
        assert db.engine.dialect.name == "sqlite"
    assert [run.payload for run in db.session.scalars(select(JobRun))] == [{"user_id": 2}]


@on_both
def test_after_a_savepoint_that_was_rolled_back_the_session_goes_on(
    db: SQLAlchemy, greet: Any
) -> None:
    third = greet.enqueue(1)
    savepoint = db.session.begin_nested()
    dropped = greet.enqueue(2).id
    savepoint.rollback()
    assert greet.enqueue(3).payload == {"user_id": 3}
    db.session.commit()
    ids = {run.payload["user_id"]: run.id for run in db.session.scalars(select(JobRun))}
    assert set(ids) == {1, 3}
    assert ids[1] == third.id
    assert db.engine.dialect.name == "sqlite" or dropped not in ids.values()


def definition(name: str | None) -> JobDefinition:
    return JobDefinition(name=name, job_type="greet", schedule="@daily")


@on_both
@pytest.mark.parametrize("many", [False, True])
def test_pending_objects_are_flushed_first(db: SQLAlchemy, greet: Any, many: bool) -> None:
    """A session flushes before each statement, and a handler may rely on the order of locks."""
    db.session.add(definition("first"))
    enqueue(greet, many)
    assert not db.session.new
    db.session.commit()
    db.session.add(definition(None))
    with pytest.raises(IntegrityError, match="name"):
        enqueue(greet, many)
    db.session.rollback()
    with db.session.no_autoflush:
        db.session.add(definition("second"))
        enqueue(greet, many)
        assert len(db.session.new) == 1


def enqueue(greet: Any, many: bool) -> None:
    if many:
        greet.enqueue_many([{"user_id": 1}])
    else:
        greet.enqueue(1)


@on_both
@pytest.mark.parametrize("flushes", [True, False])
def test_hook_of_a_mapper_may_enqueue(db: SQLAlchemy, greet: Any, flushes: bool) -> None:
    """For example, a hook may run after the INSERT of an order, in the middle of the flush."""
    twice: list[JobRun] = []

    def hook(*_: object) -> None:
        with nullcontext() if flushes else db.session.no_autoflush:
            twice.append(greet.enqueue(1))
            greet.enqueue_many([{"user_id": 2}])

    with listening(JobDefinition, "after_insert", hook):
        db.session.add(definition("it"))
        db.session.commit()
    runs = db.session.scalars(select(JobRun).order_by(JobRun.id)).all()
    assert [run.payload["user_id"] for run in runs] == [1, 2]
    assert runs[0] is twice[0]


@contextmanager
def listening(target: Any, name: str, hook: Callable[..., None]) -> Generator[None]:
    event.listen(target, name, hook)
    try:
        yield
    finally:
        event.remove(target, name, hook)


class TestSessionThatReadsFromReplicas:
    """SQLAlchemy's recipe sends reads to another engine, which may not have the row yet."""

    @pytest.fixture
    def db(self) -> SQLAlchemy:
        replica = create_engine("sqlite://")  # This database has no tables.

        class Routing(FlaskSession):
            def get_bind(
                self, mapper: Any = None, clause: Any = None, bind: Any = None, **more: Any
            ) -> Any:
                writes = self._flushing or isinstance(clause, (Update, Delete))
                return super().get_bind(mapper, clause, bind, **more) if writes else replica

        return SQLAlchemy(session_options={"class_": Routing})

    def test_run_that_has_the_key_is_found(self, db: SQLAlchemy, greet: Any) -> None:
        keyed = greet.using(idempotency_key="k")
        assert keyed.enqueue(1).is_new
        assert not keyed.enqueue(1).is_new
        replacing = greet.using(idempotency_key="r", replace=True)
        replacing.enqueue(1)
        assert replacing.enqueue(2).payload == {"user_id": 2}
        db.session.commit()


class TestSessionThatKeepsItsObjects:
    @pytest.fixture
    def db(self) -> SQLAlchemy:
        return SQLAlchemy(session_options={"expire_on_commit": False})

    def test_run_that_has_the_key_is_as_its_row(self, db: SQLAlchemy, jobs: CronJobs) -> None:
        @jobs.task(retry=False)
        def bad() -> None:
            raise ValueError

        keyed = bad.using(idempotency_key="k", commit=True)
        assert keyed.enqueue().status == "queued"
        jobs.tick()
        assert keyed.enqueue().status == "dead"
