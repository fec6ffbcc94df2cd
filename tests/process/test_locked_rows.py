"""FAULTS: an open transaction on one run's or one definition's row: only that row waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partialmethod

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import make_url, select, text

from flask_cronjobs import CronJobs, StateConflict, TickReport, current_run
from flask_cronjobs.db import errors
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.worker import held_runs
from flask_cronjobs.engine.worker.options import WorkOptions
from flask_cronjobs.engine.worker.worker import work
from flask_cronjobs.jobs.runs import changes
from flask_cronjobs.jobs.runs.exchange import Claims
from flask_cronjobs.jobs.runs.leases import progress, renew
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobDefinition
from tests.kit import Kit, plan, spec
from tests.kit import outcome as outcome_of
from tests.marks import on_postgresql
from tests.process.support import Site
from tests.rows import Rows, ago

Tick = Callable[[], TickReport]
pytestmark = on_postgresql


@contextmanager
def locked(url: str, table: str, row_id: int) -> Iterator[psycopg.Connection]:
    """Somebody's open transaction, with an UPDATE of one row."""
    with psycopg.connect(psycopg_url(url)) as connection:
        connection.execute(f"UPDATE {table} SET updated_at = updated_at WHERE id = {row_id}")
        yield connection
        connection.rollback()


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The store on an empty database."""
    made = Kit.on(database_url)
    yield made
    made.close()


class TestStore:
    def test_outcome_of_a_locked_row_holds_up_no_other(self, kit: Kit, database_url: str) -> None:
        kit.runs(3)
        one, two, three = kit.claim()
        with locked(database_url, "job_runs", two.id):
            outcomes = [outcome_of(claim, "succeeded") for claim in (one, two, three)]
            exchange = kit.claims.exchange(outcomes, None)
            assert (set(exchange.recorded), set(exchange.locked)) == ({one.id, three.id}, {two.id})
        assert kit.finish(two)

    def test_lost_outcome_of_a_locked_row_is_lost(self, kit: Kit, database_url: str) -> None:
        kit.run()
        claim = kit.claim_one()
        kit.sql("UPDATE job_runs SET locked_by = 'other:1:token'")
        with locked(database_url, "job_runs", claim.id):
            exchange = kit.claims.exchange([outcome_of(claim, "succeeded")], None)
        assert (set(exchange.recorded), set(exchange.locked)) == (set(), set())

    def test_locked_row_holds_up_no_heartbeat_and_is_not_lost(
        self, kit: Kit, database_url: str
    ) -> None:
        kit.runs(2)
        one, two = kit.claim()
        before = kit.row(two.id).locked_until
        with locked(database_url, "job_runs", two.id):
            renewal = renew(kit.books, [one, two], 600)
            assert (set(renewal.held), set(renewal.locked)) == ({one.id, two.id}, {two.id})
            assert kit.row(two.id).locked_until == before
        renewal = renew(kit.books, [one, two], 600)
        assert (set(renewal.held), set(renewal.locked)) == ({one.id, two.id}, set())

    def test_progress_of_a_locked_row_is_left_out(self, kit: Kit, database_url: str) -> None:
        kit.run()
        claim = kit.claim_one()
        with locked(database_url, "job_runs", claim.id):
            assert not progress(kit.books, claim, 0.5, None)
        assert progress(kit.books, claim, 0.5, None)

    def test_reference_to_a_run_is_no_lock(self, kit: Kit, database_url: str) -> None:
        """A foreign key of the app's own locks the key of the row only."""
        run_id = kit.run()
        with psycopg.connect(psycopg_url(database_url)) as other:
            other.execute("SELECT 1 FROM job_runs FOR KEY SHARE")
            claim = kit.claim_one()
            assert claim.id == run_id
            assert renew(kit.books, [claim], 60).locked == set()
            assert kit.finish(claim)

    def test_locked_definition_holds_up_no_other(self, kit: Kit, database_url: str) -> None:
        due = ago(minutes=1)
        one, two = kit.define("one", due), kit.define("two", due)
        with locked(database_url, "job_definitions", one):
            recorded = kit.slots.record_slots([plan(one, due), plan(two, due)])
            assert [slot.definition_id for slot in recorded] == [two]
            (row,) = [row for row in kit.definitions.read(["one"], []) if row.id == one]
            assert not kit.definitions.change(row, spec("one", queue="other"), None)
        recorded = kit.slots.record_slots([plan(one, due), plan(two, due)])
        assert [slot.definition_id for slot in recorded] == [one]


class TestTick:
    def test_locked_expired_run_and_locked_due_definition_hold_up_no_tick(
        self, app: Flask, jobs: CronJobs, tick: Tick, database_url: str
    ) -> None:
        jobs.task(name="it", schedule="* * * * *")(lambda: None)
        jobs.task(name="late", schedule="* * * * *")(lambda: None)
        tick()
        rows = Rows(app, app.extensions["sqlalchemy"])
        stuck, lost = (
            rows.run("running", job_type="it", locked_until=ago(5), max_attempts=3)
            for _ in range(2)
        )
        ids = {row.name: row.id for row in definitions(app)}
        make_due(app)
        with (
            locked(database_url, "job_runs", stuck),
            locked(database_url, "job_definitions", ids["late"]),
        ):
            began = time.monotonic()
            report = tick()
            assert time.monotonic() - began < 25
        assert (report.reclaimed, report.recorded) == (1, 1)
        assert (rows.get(stuck).status, rows.get(lost).status) == ("running", "failed")
        report = tick()
        assert (report.reclaimed, report.recorded) == (1, 1)

    def test_outcome_of_a_locked_row_is_recorded_when_it_is_free(
        self,
        app: Flask,
        db: SQLAlchemy,
        jobs: CronJobs,
        tick: Tick,
        database_url: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(held_runs, "LOCKED_RETRY", 0.05)
        holders: list[psycopg.Connection] = []
        exchange = Claims.exchange

        def look(self: Claims, *args: object, **kwargs: object) -> object:
            answer = exchange(self, *args, **kwargs)  # type: ignore[arg-type]
            if answer.locked:
                holders[0].rollback()
            return answer

        monkeypatch.setattr(Claims, "exchange", look)

        @jobs.task
        def it() -> None:
            holders.append(psycopg.connect(psycopg_url(database_url)))
            holders[0].execute(f"SELECT 1 FROM job_runs WHERE id = {current_run.id} FOR UPDATE")

        with app.app_context():
            it.using(commit=True).enqueue()
        report = tick()
        holders[0].close()
        assert (report.succeeded, report.lost) == (1, 0)

    def test_resident_worker_of_a_pool_waits_for_a_locked_row_beyond_its_lease(
        self, app: Flask, jobs: CronJobs, state: State, rows: Rows, database_url: str
    ) -> None:
        """Only the first worker of a pool does the minute work; the others stay, too."""
        state = replace(state, settings=replace(state.settings, lease=2.0))
        holders: list[psycopg.Connection] = []

        @jobs.task
        def it() -> None:
            holders.append(psycopg.connect(psycopg_url(database_url)))
            holders[0].execute(f"SELECT 1 FROM job_runs WHERE id = {current_run.id} FOR UPDATE")
            threading.Timer(3, holders[0].rollback).start()

        with app.app_context():
            run_id = it.using(commit=True).enqueue().id
            until = time.monotonic() + 5
            counts = work(state, WorkOptions("host:1", until, resident=True))
        holders[0].close()
        assert (counts["succeeded"], counts["lost"]) == (1, 0)
        assert (rows.get(run_id).status, rows.get(run_id).attempts) == ("succeeded", 1)

    def test_handler_that_locks_its_own_row_is_interrupted_when_its_lease_ends(
        self, site: Site
    ) -> None:
        """Its lease cannot be renewed; others' can."""
        run_id = site.enqueue("locks_its_own_row")
        done = site.run_tick()
        assert done.returncode == 0, done.stderr
        assert len(site.trace("interrupted")) == 1
        assert site.failures(run_id) == ["LeaseLost"]
        assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)

    @pytest.mark.parametrize("verb", ["retry", "cancel"])
    def test_operator_s_verb_on_a_locked_row_answers_soon(
        self,
        app: Flask,
        jobs: CronJobs,
        database_url: str,
        verb: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(changes, "LOCK_WAIT", 0.2)
        rows = Rows(app, app.extensions["sqlalchemy"])
        run_id = rows.run("failed")
        with app.app_context():
            with (
                locked(database_url, "job_runs", run_id),
                pytest.raises(StateConflict, match=r"Run \d+ is locked"),
            ):
                getattr(jobs, verb)(run_id)
            getattr(jobs, verb)(run_id)

    @pytest.mark.parametrize("verb", ["pause", "resume", "remove", "add"])
    def test_operator_s_verb_on_a_locked_definition_answers_soon(
        self,
        app: Flask,
        jobs: CronJobs,
        database_url: str,
        verb: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(errors, "LOCK_WAIT", 0.2)
        jobs.task(name="it")(lambda: None)
        verbs: dict[str, Callable[[], object]] = {
            "pause": lambda: jobs.pause("own"),
            "resume": lambda: jobs.resume("own"),
            "remove": lambda: jobs.remove_definition("own"),
            "add": lambda: jobs.add_definition("own", "it", schedule="5 * * * *"),
        }
        with app.app_context():
            jobs.add_definition("own", "it", schedule="@hourly")
            if verb == "resume":
                jobs.pause("own")
            (row,) = definitions(app)
            with (
                locked(database_url, "job_definitions", row.id),
                pytest.raises(StateConflict, match="The definition 'own' is locked"),
            ):
                verbs[verb]()
            verbs[verb]()

    def test_locked_definition_that_code_declares_again_holds_up_no_tick(
        self, app: Flask, jobs: CronJobs, tick: Tick, database_url: str
    ) -> None:
        jobs.task(name="it", schedule="@yearly")(lambda: None)
        tick()
        (row,) = definitions(app)
        with app.app_context():
            db = app.extensions["sqlalchemy"]
            db.session.execute(text("UPDATE job_definitions SET undeclared_since = created_at"))
            db.session.commit()
            jobs.get("it").using(commit=True).enqueue()
        with locked(database_url, "job_definitions", row.id):
            assert tick().succeeded == 1
        tick()
        (row,) = definitions(app)
        assert row.undeclared_since is None

    def test_tick_under_a_migration_s_table_lock_ends_with_one_line(
        self, app: Flask, jobs: CronJobs, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waits for its limits, which are half a minute in all: so make them short here."""
        impatient = partialmethod(Bookkeeping.__init__, patience=0.1, limit=0.3)
        monkeypatch.setattr(Bookkeeping, "__init__", impatient)
        with psycopg.connect(psycopg_url(database_url)) as migration:
            migration.execute("LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            done = app.test_cli_runner().invoke(args=["jobs", "tick"])
            assert time.monotonic() - began < 25
            migration.rollback()
        assert done.exit_code == 1
        (line,) = done.stderr.splitlines()
        assert "The database cannot be used: canceling statement" in line


def psycopg_url(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(False)


def definitions(app: Flask) -> list[JobDefinition]:
    with app.app_context():
        db = app.extensions["sqlalchemy"]
        return list(db.session.scalars(select(JobDefinition)))


def make_due(app: Flask) -> None:
    with app.app_context():
        db = app.extensions["sqlalchemy"]
        db.session.execute(
            text("UPDATE job_definitions SET next_run_at = next_run_at - interval '1 minute'")
        )
        db.session.commit()
