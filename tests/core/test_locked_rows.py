"""FAULTS: an open transaction on one run's or one definition's row delays only that row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partialmethod
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, make_url, select, update

from flask_cronjobs import CronJobs, Retry, StateConflict, current_run
from flask_cronjobs.core import leases, ticks
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.leases import progress, renew
from flask_cronjobs.core.worker.work_options import WorkOptions
from flask_cronjobs.core.worker.worker import work
from flask_cronjobs.db import errors
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.insights import run_actions
from flask_cronjobs.insights.run_actions import RETRY
from flask_cronjobs.models import JobDefinition
from tests.kit import Kit, outcome
from tests.marks import on_postgresql
from tests.process.support import wait_until
from tests.resident import stop_keepers
from tests.rows import Rows, ago, new_year

pytestmark = on_postgresql


def connect(url: str) -> psycopg.Connection:
    plain = make_url(url).set(drivername="postgresql").render_as_string(False)
    return psycopg.connect(plain)


@contextmanager
def locked(url: str, table: str, row_id: int) -> Iterator[None]:
    """Another client's open transaction, with an UPDATE of one row."""
    with connect(url) as connection:
        connection.execute(f"UPDATE {table} SET updated_at = updated_at WHERE id = {row_id}")
        yield
        connection.rollback()


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The job tables in an empty database."""
    kit = Kit.on(database_url)
    yield kit
    kit.close()


VERBS: dict[str, Callable[[CronJobs, int], object]] = {
    "retry": lambda jobs, run_id: jobs.retry(run_id),
    "cancel": lambda jobs, run_id: jobs.cancel(run_id),
    "pause": lambda jobs, _: jobs.pause("own"),
    "resume": lambda jobs, _: jobs.resume("own"),
    "remove": lambda jobs, _: jobs.remove_definition("own"),
    "add": lambda jobs, _: jobs.add_definition("own", "it", schedule="5 * * * *"),
}


class TestStore:
    def test_outcome_of_a_locked_row_holds_up_no_other(self, kit: Kit, database_url: str) -> None:
        kit.runs(3)
        first, two, three = kit.claim()
        with locked(database_url, "job_runs", two.id):
            outcomes = [outcome(claim, "succeeded") for claim in (first, two, three)]
            answer = kit.claims.record_and_claim(outcomes, None)
            assert (set(answer.recorded), set(answer.unrecorded)) == (
                {first.id, three.id},
                {two.id},
            )
        assert kit.finish(two)

    def test_locked_row_holds_up_no_heartbeat_and_is_not_lost(
        self, kit: Kit, database_url: str
    ) -> None:
        kit.runs(2)
        first, two = kit.claim()
        before = kit.get(two.id).locked_until
        with locked(database_url, "job_runs", two.id):
            renewal = renew(kit.books, [first, two], 600)
            assert (set(renewal.held), set(renewal.blocked)) == ({first.id, two.id}, {two.id})
            assert kit.get(two.id).locked_until == before
            assert not progress(kit.books, two, 0.5, None)
        renewal = renew(kit.books, [first, two], 600)
        assert (set(renewal.held), set(renewal.blocked)) == ({first.id, two.id}, set())
        assert progress(kit.books, two, 0.5, None)

    def test_locked_row_of_a_tick_holds_up_no_heartbeat(self, kit: Kit, database_url: str) -> None:
        """The keeper writes to that row: that its tick is alive, and what its workers did."""
        tick_id = ticks.begin(kit.books, "w", "host", 1, resident=True).id
        with connect(database_url) as locker, Bookkeeping(kit.engine, limit=0.5) as books:
            locker.execute("SELECT 1 FROM job_ticks FOR UPDATE")
            with books.trying_once():
                ticks.seen(books, tick_id)
                assert not ticks.add(books, "host", {"succeeded": 1})
            locker.rollback()
            assert ticks.add(books, "host", {"succeeded": 1})

    def test_reference_to_a_run_is_no_lock(self, kit: Kit, database_url: str) -> None:
        """A foreign key of the app's own locks only the row's key."""
        run_id = kit.run()
        with connect(database_url) as locker:
            locker.execute("SELECT 1 FROM job_runs FOR KEY SHARE")
            claim = kit.claim_one()
            assert claim.id == run_id
            assert renew(kit.books, [claim], 60).blocked == set()
            assert kit.finish(claim)


def definition(db: SQLAlchemy, name: str) -> JobDefinition:
    db.session.rollback()
    return db.session.scalars(select(JobDefinition).filter_by(name=name)).one()


@pytest.mark.usefixtures("context")
class TestTick:
    def test_locked_expired_run_and_locked_due_definition_hold_up_no_tick(
        self, jobs: CronJobs, db: SQLAlchemy, rows: Rows, database_url: str
    ) -> None:
        for name in ("it", "late"):
            jobs.task(name=name, schedule="@yearly", retry=Retry(base=600))(lambda: None)
        jobs.tick()
        stuck, expired = (
            rows.run("running", job_type="it", locked_until=ago(5), max_attempts=3)
            for _ in range(2)
        )
        db.session.execute(update(JobDefinition).values(next_run_at=new_year()))
        db.session.commit()
        late = definition(db, "late").id
        with (
            locked(database_url, "job_runs", stuck),
            locked(database_url, "job_definitions", late),
        ):
            report = jobs.tick()
        assert (report.reclaimed, report.recorded) == (1, 1)
        assert (rows.get(stuck).status, rows.get(expired).status) == ("running", "failed")
        report = jobs.tick()
        assert (report.reclaimed, report.recorded) == (1, 1)

    def test_locked_expired_runs_hold_up_no_other_however_many_they_are(
        self, jobs: CronJobs, rows: Rows, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The locked runs come first, and are as many as one round reclaims."""
        monkeypatch.setattr(leases, "TAKEN_AT_ONCE", 2)
        jobs.task(name="it", retry=Retry(base=600))(lambda: None)
        *stuck, expired = (
            rows.run("running", job_type="it", locked_until=ago(9 - number), max_attempts=3)
            for number in range(3)
        )
        with locked(database_url, "job_runs", stuck[0]), locked(database_url, "job_runs", stuck[1]):
            assert jobs.tick().reclaimed == 1
        assert rows.get(expired).status == "failed"
        assert jobs.tick().reclaimed == 2

    @pytest.fixture
    def locks_its_row(
        self, jobs: CronJobs, database_url: str
    ) -> Iterator[list[psycopg.Connection]]:
        """The connection that locks the row of the enqueued run, once its handler has begun."""
        holders: list[psycopg.Connection] = []

        @jobs.task
        def it() -> None:
            holders.append(connect(database_url))
            holders[0].execute(f"SELECT 1 FROM job_runs WHERE id = {current_run.id} FOR UPDATE")

        it.using(commit=True).enqueue()
        yield holders
        holders[0].close()

    def test_resident_worker_of_a_pool_waits_for_a_locked_row_beyond_its_lease(
        self, state: State, rows: Rows, locks_its_row: list[psycopg.Connection]
    ) -> None:
        """Only the first worker of a pool does the minute work; the others stay as well."""
        state = replace(state, settings=replace(state.settings, lease=2.0))

        def let_go_and_stop() -> None:
            try:
                wait_until(lambda: locks_its_row)
                time.sleep(3)  # This is longer than the lease.
                locks_its_row[0].rollback()
                wait_until(lambda: rows.get(1).status == "succeeded")
            finally:
                stop_keepers()

        thread = threading.Thread(target=let_go_and_stop)
        thread.start()
        counts = work(state, WorkOptions("host:1", resident=True))
        thread.join()
        assert (counts["succeeded"], counts["lost"]) == (1, 0)

    @pytest.mark.parametrize("verb", VERBS)
    def test_operator_s_verb_on_a_locked_row_answers_soon(
        self, jobs: CronJobs, db: SQLAlchemy, rows: Rows, database_url: str, verb: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(errors, "LOCK_WAIT_SECONDS", 0.2)
        jobs.task(name="it")(lambda: None)
        jobs.add_definition("own", "it", schedule="@hourly")
        if verb == "resume":
            jobs.pause("own")
        run_id = rows.run("failed")
        of_run = verb in ("retry", "cancel")
        table, row_id = ("runs", run_id) if of_run else ("definitions", definition(db, "own").id)
        with (
            locked(database_url, f"job_{table}", row_id),
            pytest.raises(StateConflict, match=r"(Run \d+|The definition 'own') is locked"),
        ):
            VERBS[verb](jobs, run_id)
        VERBS[verb](jobs, run_id)

    def test_locked_definition_that_code_declares_again_holds_up_no_tick(
        self, jobs: CronJobs, db: SQLAlchemy, database_url: str
    ) -> None:
        jobs.task(name="it", schedule="@yearly")(lambda: None)
        jobs.tick()
        db.session.execute(update(JobDefinition).values(undeclared_since=ago(60)))
        jobs.get("it").using(commit=True).enqueue()
        with locked(database_url, "job_definitions", definition(db, "it").id):
            assert jobs.tick().succeeded == 1
        assert definition(db, "it").undeclared_since is not None
        jobs.tick()
        assert definition(db, "it").undeclared_since is None

    def test_tick_under_a_migration_s_table_lock_ends_with_one_line(
        self, app: Flask, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each limit is shortened here, since together they are half a minute."""
        impatient = partialmethod(Bookkeeping.__init__, patience=0.1, limit=0.3)
        monkeypatch.setattr(Bookkeeping, "__init__", impatient)
        with connect(database_url) as migration:
            migration.execute("LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE")
            result = app.test_cli_runner().invoke(args=["jobs", "tick"])
            migration.rollback()
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert "The database cannot be used: canceling statement" in line


def test_bulk_action_waits_for_a_locked_row_however_long_it_has_worked(
    state: State, rows: Rows, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "LOCK_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(run_actions, "CHANGED_AT_ONCE", 1)
    dead = [rows.run("dead") for _ in range(2)]
    with connect(database_url) as holder:
        holder.execute(f"SELECT 1 FROM job_runs WHERE id = {dead[1]} FOR UPDATE")

        @event.listens_for(state.engine, "after_cursor_execute")
        def let_go(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if statement.startswith("SELECT id FROM job_runs"):  # The first try has failed.
                holder.rollback()

        result = RETRY.many(state, dead, progress=lambda _: time.sleep(0.3))
    assert (result.changed, result.left) == (2, 0)


def test_locked_first_run_of_a_key_keeps_no_other_of_it(
    context: None, jobs: CronJobs, database_url: str, rows: Rows
) -> None:
    jobs.task(name="it")(lambda: None)
    keyed: dict[str, Any] = {"job_type": "it", "concurrency_key": "key", "concurrency_limit": 3}
    first, *behind = (rows.run("queued", **keyed) for _ in range(4))
    with locked(database_url, "job_runs", first):
        assert jobs.tick(budget=5).succeeded == 3
    assert {rows.get(run_id).status for run_id in behind} == {"succeeded"}
    assert jobs.tick(budget=5).succeeded == 1


def test_locked_runs_at_the_front_of_a_group_keep_no_other_of_it(
    context: None, jobs: CronJobs, db: SQLAlchemy, database_url: str
) -> None:
    """The first rows are of a queue that this worker does not serve, and fill a round."""
    far = jobs.task(name="far", queue="far", priority=5)(lambda: None)
    near = jobs.task(name="near")(lambda: None)
    far.using(commit=True).enqueue_many([{}] * 130)
    ids = sorted(near.using(commit=True).enqueue_many([{}] * 40))
    with connect(database_url) as locker:
        locker.execute(f"UPDATE job_runs SET priority = 0 WHERE id BETWEEN {ids[0]} AND {ids[24]}")
        assert jobs.tick(budget=5, queues=["default"]).succeeded == 15
        locker.rollback()
    assert jobs.tick(budget=5, queues=["default"]).succeeded == 25
