"""`Exchanger`: which statements a worker sends when it looks for runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.tick import TickOptions, tick
from flask_cronjobs.engine.worker.exchanger import Exchanger
from flask_cronjobs.engine.worker.options import WorkOptions
from flask_cronjobs.jobs.runs.exchange import Claims
from flask_cronjobs.jobs.state import State
from tests.marks import on_postgresql
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def books(state: State) -> Iterator[Bookkeeping]:
    with Bookkeeping(state.engine) as books:
        yield books


@pytest.fixture
def exchanger(jobs: CronJobs, state: State, books: Bookkeeping) -> Exchanger:
    """One that has found nothing, so that its worker is idle."""
    jobs.task(name="it")(lambda: None)
    exchanger = Exchanger(Claims(books), state, WorkOptions("host:1"))
    exchanger.exchange([], 1, idle=True)
    assert exchanger.exhausted
    return exchanger


@pytest.fixture
def sent(db: SQLAlchemy, exchanger: Exchanger) -> list[str]:
    """Each statement from now on, by its first word."""
    statements: list[str] = []

    @event.listens_for(db.engine, "before_cursor_execute")
    def keep(connection: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement.split()[0])

    return statements


def test_idle_worker_looks_and_claims_nothing(exchanger: Exchanger, sent: list[str]) -> None:
    assert not exchanger.exchange([], 1, idle=True, look_first=True).claims
    assert sent == ["SELECT"]
    assert exchanger.exhausted


def test_idle_worker_claims_what_it_sees(
    app: Flask, db: SQLAlchemy, exchanger: Exchanger, sent: list[str]
) -> None:
    run_id = Rows(app, db).run("queued", job_type="it")
    sent.clear()
    (claim,) = exchanger.exchange([], 1, idle=True, look_first=True).claims
    assert claim.id == run_id
    assert sent == ["SELECT", "WITH"]


def test_worker_that_is_woken_claims_by_one_statement(
    app: Flask, db: SQLAlchemy, exchanger: Exchanger, sent: list[str]
) -> None:
    run_id = Rows(app, db).run("queued", job_type="it")
    sent.clear()
    (claim,) = exchanger.exchange([], 1, idle=True).claims
    assert claim.id == run_id
    assert sent == ["WITH"]


def test_pause_holds_from_its_commit_on(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, exchanger: Exchanger
) -> None:
    rows = Rows(app, db)
    first, second = rows.run("queued", job_type="it"), rows.run("queued", job_type="it")
    assert [claim.id for claim in exchanger.exchange([], 1, idle=True).claims] == [first]
    jobs.pause(task="it")
    assert not exchanger.exchange([], 1, idle=True).claims
    jobs.resume(task="it")
    jobs.pause(queue="default")
    assert not exchanger.exchange([], 1, idle=True).claims
    assert exchanger.first() is None
    jobs.resume(queue="default")
    assert exchanger.first() == ("it", False)
    assert [claim.id for claim in exchanger.exchange([], 1, idle=True).claims] == [second]


@on_postgresql
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_in_the_ticks_own_process_takes_its_connection(
    jobs: CronJobs, db: SQLAlchemy, state: State, workers: int
) -> None:
    connected: list[int] = []

    @event.listens_for(db.engine, "connect")
    def note(driver: Any, record: object) -> None:
        connected.append(driver.info.backend_pid)

    seen: list[set[int]] = []

    @jobs.task
    def look() -> None:
        seen.append(set(connected))

    look.using(commit=True).enqueue_many([{}] * 3)
    connected.clear()
    options = TickOptions(workers=workers, own_process=workers > 1)
    assert tick(state, options).succeeded == 3
    # The workers of a pool are processes of their own, which nobody hears of here; the tick closes
    # its connection while they work, and opens another.
    assert len(connected) == workers
    assert seen == ([set(connected)] * 3 if workers == 1 else [])
