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
from sqlalchemy import make_url

from flask_cronjobs import CronJobs, StateConflict, TickReport, current_run
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.worker.options import WorkOptions
from flask_cronjobs.engine.worker.worker import work
from flask_cronjobs.jobs.definitions import actions as definition_operations
from flask_cronjobs.jobs.definitions import rows as store_definitions
from flask_cronjobs.jobs.runs import changes
from flask_cronjobs.jobs.runs.leases import progress, renew
from flask_cronjobs.jobs.state import State
from tests.kit import Kit
from tests.kit import outcome as outcome_of
from tests.marks import on_postgresql
from tests.process.support import Site
from tests.rows import Rows, ago

Tick = Callable[[], TickReport]
pytestmark = on_postgresql


@contextmanager
def locked(url: str, table: str, row: int | str) -> Iterator[psycopg.Connection]:
    """Somebody's open transaction, with an UPDATE of one row, or of those of a condition."""
    condition = row if isinstance(row, str) else f"id = {row}"
    with psycopg.connect(psycopg_url(url)) as connection:
        connection.execute(f"UPDATE {table} SET updated_at = updated_at WHERE {condition}")
        yield connection
        connection.rollback()


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The store on an empty database."""
    made = Kit.on(database_url)
    yield made
    made.close()


def test_outcome_of_a_locked_row_holds_up_no_other(kit: Kit, database_url: str) -> None:
    kit.runs(3)
    one, two, three = kit.claim()
    with locked(database_url, "job_runs", two.id):
        outcomes = [outcome_of(claim, "succeeded") for claim in (one, two, three)]
        exchange = kit.claims.exchange(outcomes, None)
        assert (set(exchange.recorded), set(exchange.locked)) == ({one.id, three.id}, {two.id})
    assert kit.finish(two)


def test_lost_outcome_of_a_locked_row_is_lost(kit: Kit, database_url: str) -> None:
    kit.run()
    claim = kit.claim_one()
    kit.sql("UPDATE job_runs SET locked_by = 'other:1:token'")
    with locked(database_url, "job_runs", claim.id):
        exchange = kit.claims.exchange([outcome_of(claim, "succeeded")], None)
    assert (set(exchange.recorded), set(exchange.locked)) == (set(), set())


def test_locked_row_holds_up_no_heartbeat_and_is_not_lost(kit: Kit, database_url: str) -> None:
    kit.runs(2)
    one, two = kit.claim()
    before = kit.row(two.id).locked_until
    with locked(database_url, "job_runs", two.id):
        renewal = renew(kit.books, [one, two], 600)
        assert (set(renewal.held), set(renewal.locked)) == ({one.id, two.id}, {two.id})
        assert kit.row(two.id).locked_until == before
    renewal = renew(kit.books, [one, two], 600)
    assert (set(renewal.held), set(renewal.locked)) == ({one.id, two.id}, set())


def test_progress_of_a_locked_row_is_left_out(kit: Kit, database_url: str) -> None:
    kit.run()
    claim = kit.claim_one()
    with locked(database_url, "job_runs", claim.id):
        assert not progress(kit.books, claim, 0.5, None)
    assert progress(kit.books, claim, 0.5, None)


def test_reference_to_a_run_is_no_lock(kit: Kit, database_url: str) -> None:
    """A foreign key of the app's own locks the key of the row only."""
    run_id = kit.run()
    with psycopg.connect(psycopg_url(database_url)) as other:
        other.execute("SELECT 1 FROM job_runs FOR KEY SHARE")
        claim = kit.claim_one()
        assert claim.id == run_id
        assert renew(kit.books, [claim], 60).locked == set()
        assert kit.finish(claim)


def test_locked_expired_run_and_locked_due_definition_hold_up_no_tick(
    jobs: CronJobs, tick: Tick, rows: Rows, database_url: str
) -> None:
    jobs.task(name="it", schedule="* * * * *")(lambda: None)
    jobs.task(name="late", schedule="* * * * *")(lambda: None)
    tick()
    stuck, lost = (
        rows.run("running", job_type="it", locked_until=ago(5), max_attempts=3) for _ in range(2)
    )
    change(database_url, "job_definitions SET next_run_at = next_run_at - interval '1 minute'")
    with (
        locked(database_url, "job_runs", stuck),
        locked(database_url, "job_definitions", "name = 'late'"),
    ):
        began = time.monotonic()
        report = tick()
        assert time.monotonic() - began < 25
    assert (report.reclaimed, report.recorded) == (1, 1)
    assert (rows.get(stuck).status, rows.get(lost).status) == ("running", "failed")
    report = tick()
    assert (report.reclaimed, report.recorded) == (1, 1)


@pytest.mark.parametrize("resident", [False, True])
def test_outcome_of_a_locked_row_is_recorded_when_it_is_free(
    app: Flask, jobs: CronJobs, state: State, rows: Rows, database_url: str, resident: bool
) -> None:
    """Resident workers wait beyond the lease, also those of a pool that do no minute work."""
    state = replace(state, settings=replace(state.settings, lease=2.0))
    holders: list[psycopg.Connection] = []

    @jobs.task
    def it() -> None:
        holders.append(psycopg.connect(psycopg_url(database_url)))
        holders[0].execute(f"SELECT 1 FROM job_runs WHERE id = {current_run.id} FOR UPDATE")
        threading.Timer(3 if resident else 0.3, holders[0].rollback).start()

    with app.app_context():
        run_id = it.using(commit=True).enqueue().id
        counts = work(state, WorkOptions("host:1", time.monotonic() + 5, resident=resident))
    holders[0].close()
    assert (counts["succeeded"], counts["lost"]) == (1, 0)
    assert (rows.get(run_id).status, rows.get(run_id).attempts) == ("succeeded", 1)


def test_handler_that_locks_its_own_row_is_interrupted_when_its_lease_ends(site: Site) -> None:
    """Its lease cannot be renewed; others' can."""
    run_id = site.enqueue("locks_its_own_row")
    done = site.run_tick()
    assert done.returncode == 0, done.stderr
    assert len(site.trace("interrupted")) == 1
    assert site.failures(run_id) == ["LeaseLost"]
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)


VERBS: dict[str, tuple[str, Callable[[CronJobs, int], object]]] = {
    "retry": ("job_runs", lambda jobs, run: jobs.retry(run)),
    "cancel": ("job_runs", lambda jobs, run: jobs.cancel(run)),
    "pause": ("job_definitions", lambda jobs, run: jobs.pause("own")),
    "resume": ("job_definitions", lambda jobs, run: jobs.resume("paused")),
    "remove": ("job_definitions", lambda jobs, run: jobs.remove_definition("own")),
    "add": (
        "job_definitions",
        lambda jobs, run: jobs.add_definition("own", "it", schedule="5 * * * *"),
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_operator_s_verb_on_a_locked_row_answers_soon(
    app: Flask,
    jobs: CronJobs,
    rows: Rows,
    database_url: str,
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (changes, store_definitions, definition_operations):
        monkeypatch.setattr(module, "LOCK_WAIT", 0.2)
    table, call = VERBS[verb]
    run_id = rows.run("failed")
    jobs.task(name="it")(lambda: None)
    with app.app_context():
        for name in ("own", "paused"):
            jobs.add_definition(name, "it", schedule="@hourly")
        jobs.pause("paused")
        with (
            locked(database_url, table, "true"),
            pytest.raises(StateConflict, match=r"^(Run \d+|The definition '\w+') is locked"),
        ):
            call(jobs, run_id)
        call(jobs, run_id)


def test_locked_definition_that_code_declares_again_holds_up_no_tick(
    app: Flask, jobs: CronJobs, tick: Tick, database_url: str
) -> None:
    jobs.task(name="it", schedule="@yearly")(lambda: None)
    tick()
    change(database_url, "job_definitions SET undeclared_since = created_at")
    with app.app_context():
        jobs.get("it").using(commit=True).enqueue()
    unmarked = "undeclared_since IS NULL"
    with locked(database_url, "job_definitions", "true"):
        assert tick().succeeded == 1
    assert change(database_url, f"job_definitions SET id = id WHERE {unmarked}") == 0
    tick()
    assert change(database_url, f"job_definitions SET id = id WHERE {unmarked}") == 1


def test_tick_under_a_migration_s_table_lock_ends_with_one_line(
    app: Flask, jobs: CronJobs, database_url: str, monkeypatch: pytest.MonkeyPatch
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


def change(url: str, update: str) -> int:
    """Commit an UPDATE; how many rows it found."""
    with psycopg.connect(psycopg_url(url)) as connection:
        return connection.execute(f"UPDATE {update}").rowcount
