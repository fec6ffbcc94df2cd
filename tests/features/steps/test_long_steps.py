"""FAULTS: durable steps that run for longer than a lease, or during several deploys."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text, update

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.core.worker import worker as worker_module
from flask_cronjobs.db import connection
from flask_cronjobs.models import JobRun, JobStep
from tests.handlers import Enqueue, labels, write
from tests.rows import the_run

from .test_steps import chunks_of, steps

pytestmark = pytest.mark.usefixtures("table")


@pytest.mark.parametrize("writes", ["first", "last"])
def test_heartbeats_continue_while_a_step_works(
    state: State, db: SQLAlchemy, jobs: CronJobs, enqueue: Enqueue,
    monkeypatch: pytest.MonkeyPatch, writes: str,
) -> None:  # fmt: skip
    """The run's row is not locked. On SQLite, one writer locks out all others."""
    object.__setattr__(state.settings, "lease", 2)
    # Both times are short here; a usual lease would behave the same.
    monkeypatch.setattr(connection, "SQLITE_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(worker_module, "RETRY_SECONDS", 0.1)
    leases: list[Any] = []

    def change_the_run() -> None:
        if writes == "first" and db.engine.dialect.name == "sqlite":
            return
        with db.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
            changed = update(JobRun).values(priority=JobRun.priority + 1)
            leases.append(connection.scalar(changed.returning(JobRun.locked_until)))

    def work() -> None:
        if writes == "first":
            write(db, "totals")
        change_the_run()
        time.sleep(2.5)
        change_the_run()
        if writes == "last":
            write(db, "totals")

    def close() -> None:
        jobs.step("totals", work)

    enqueue(close, retry=False)
    report = jobs.tick()
    assert (report.succeeded, report.lost, labels(db)) == (1, 0, ["totals"])
    assert (the_run(db).attempts, the_run(db).priority) == (1, len(leases))
    if leases:
        before, after = leases
        assert after > before + timedelta(seconds=1)


def code_of(
    jobs: CronJobs, db: SQLAlchemy, version: str, *names: str
) -> tuple[Callable[[], list[object]], list[str]]:
    """Return a handler of steps with these names, which returns their results, and its log.

    A name that begins with ``invoices`` is a loop over three ids, one per chunk.
    """
    did: list[str] = []

    def do(what: str) -> str:
        write(db, f"{version} {what}")
        did.append(what)
        return f"{version} {what}"

    def close() -> list[object]:
        results: list[object] = []
        for name in names:
            if not name.startswith("invoices"):
                results.append(jobs.step(name, do, name))
                continue
            for (number,) in jobs.each(name, chunks_of(1, 3, [])):
                do(f"{name}: {number}")
        return results

    return close, did


@pytest.mark.parametrize(
    ("names", "then", "totals"),
    [
        ("totals invoices mail", "invoices: 2, invoices: 3, mail", "old totals"),
        ("totals2 invoices mail", "totals2, invoices: 2, invoices: 3, mail", "new totals2"),
        ("check totals invoices mail", "check, invoices: 2, invoices: 3, mail", "old totals"),
        ("totals invoices mail file", "invoices: 2, invoices: 3, mail, file", "old totals"),
        ("invoices mail", "invoices: 2, invoices: 3, mail", None),
        ("totals mail", "mail", "old totals"),
        ("totals invoices2 mail", "invoices2: 1, invoices2: 2, invoices2: 3, mail", "old totals"),
    ],
    ids=[
        "the same", "a renamed step", "a new one before", "a new one behind", "without one",
        "without the loop in which it is", "a renamed loop",
    ],
)  # fmt: skip
def test_a_run_in_the_middle_goes_on_with_changed_code_by_the_names_of_its_steps(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, names: str, then: str, totals: str | None
) -> None:
    old, did_old = code_of(jobs, db, "old", "totals", "invoices", "mail")
    new, did_new = code_of(jobs, db, "new", *names.split())
    jobs.task(name="close")(old).using(commit=True).enqueue()
    assert [jobs.tick(budget=0).released for _ in range(2)] == [1, 1]
    state, deployed = state_of(app), CronJobs()
    deployed.task(name="close")(new)
    app.extensions["cronjobs"] = replace(state, registry=deployed._registry)
    assert jobs.tick().succeeded == 1
    assert (did_old, did_new) == (["totals", "invoices: 1"], then.split(", "))
    versions = [("old", did_old), ("new", did_new)]
    assert labels(db) == sorted(f"{version} {label}" for version, did in versions for label in did)
    run = the_run(db)
    results = cast("list[str]", run.result)
    assert run.attempts == 1
    assert [result for result in results if "totals" in result] == ([totals] if totals else [])
    # A step that no code asks for any more stays as it was.
    finished = dict(steps(db, JobStep.name, JobStep.finished_at.is_not(None)))
    wanted_names = set(names.split())
    assert finished == {
        "totals": True, "invoices": "invoices" in wanted_names, **dict.fromkeys(wanted_names, True),
    }  # fmt: skip
