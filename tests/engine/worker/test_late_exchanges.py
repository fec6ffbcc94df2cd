"""A connection breaks in an exchange, and the server goes on with it and commits it later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.deadlines import cut
from flask_cronjobs.engine.worker.exchanger import Exchanger
from flask_cronjobs.engine.worker.options import WorkOptions
from flask_cronjobs.errors import DatabaseTrouble
from flask_cronjobs.jobs.runs.claim import Exchange
from flask_cronjobs.jobs.runs.exchange import Claims
from flask_cronjobs.jobs.state import State
from flask_cronjobs.types import Outcome
from tests.marks import on_postgresql
from tests.process.support import wait_until
from tests.rows import Rows

pytestmark = [on_postgresql, pytest.mark.usefixtures("context")]

HANG = """
CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$;
CREATE TRIGGER hang BEFORE UPDATE ON job_runs FOR EACH ROW EXECUTE FUNCTION hang();
"""
HANGING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def books(state: State) -> Iterator[Bookkeeping]:
    with Bookkeeping(state.engine, patience=0) as books:
        yield books


@pytest.fixture
def exchanger(jobs: CronJobs, state: State, books: Bookkeeping) -> Exchanger:
    jobs.task(name="it")(lambda: None)
    return Exchanger(Claims(books), state, WorkOptions("host:1"))


@contextmanager
def broken_off(
    db: SQLAlchemy, books: Bookkeeping, exchange: Callable[[], Exchange]
) -> Iterator[None]:
    """Break the connection in *exchange*, with which the server goes on until the block ends."""
    with db.engine.begin() as connection:
        connection.execute(text(HANG))
    troubles: list[DatabaseTrouble] = []

    def begin() -> None:
        try:
            exchange()
        except DatabaseTrouble as trouble:
            troubles.append(trouble)

    # Not from the pool, which is emptied when a connection breaks.
    url = db.engine.url.set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=begin)
        thread.start()
        wait_until(lambda: seen(db, HANGING))
        cut(books._raw)
        thread.join()
        assert len(troubles) == 1
        yield
        holder.execute("SELECT pg_advisory_unlock(7)")
    wait_until(lambda: not seen(db, HANGING))


def seen(db: SQLAlchemy, sql: str) -> Sequence[object]:
    with db.engine.connect() as connection:
        return connection.execute(text(sql)).all()


def test_runs_claimed_late_are_given_back(
    app: Flask, db: SQLAlchemy, books: Bookkeeping, exchanger: Exchanger
) -> None:
    rows = Rows(app, db)
    run_id = rows.run("queued", job_type="it")
    with broken_off(db, books, lambda: exchanger.exchange([], 1, idle=True)):
        assert exchanger.exchange([], 0, idle=True) == Exchange()
        assert not exchanger.unconfirmed
    wait_until(lambda: rows.get(run_id).status == "running")
    exchanger.release_late(now=True)
    run = rows.get(run_id)
    assert (run.status, run.attempts, run.locked_by) == ("queued", 0, None)


def test_outcome_recorded_late_is_not_lost(
    app: Flask, db: SQLAlchemy, books: Bookkeeping, exchanger: Exchanger
) -> None:
    rows = Rows(app, db)
    run_id = rows.run("running", job_type="it", locked_by="host:1:token")
    outcomes = [Outcome(run_id, "host:1:token", "succeeded", 1, "it")]
    with broken_off(db, books, lambda: exchanger.exchange(outcomes, 0, idle=True)):
        exchange = exchanger.exchange(outcomes, 0, idle=True)
        assert (set(exchange.recorded), set(exchange.locked)) == (set(), {run_id})
    wait_until(lambda: rows.get(run_id).status == "succeeded")
    assert exchanger.exchange(outcomes, 0, idle=True).recorded == {run_id}
