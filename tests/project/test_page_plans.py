"""What the pages cost does not grow with the runs that have finished."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, text

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.batches.views import find_batch, list_batches
from flask_cronjobs.jobs.definitions.detail import find_definition
from flask_cronjobs.jobs.definitions.views import DefinitionFilter, list_definitions
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.health import read_verdict
from flask_cronjobs.jobs.once_effects import list_doubts
from flask_cronjobs.jobs.operations import list_operations, operations_on
from flask_cronjobs.jobs.overview import read_overview
from flask_cronjobs.jobs.queues import list_hosts, list_queues
from flask_cronjobs.jobs.runs.actions import RETRY
from flask_cronjobs.jobs.runs.detail import find_run
from flask_cronjobs.jobs.runs.filters import RunFilter
from flask_cronjobs.jobs.runs.keys import find_key
from flask_cronjobs.jobs.runs.list import count_by_status, list_runs, sorting_of
from flask_cronjobs.jobs.state import State, state_of
from tests.plans import LONG_AGO, add, cost, later, run, sent_by
from tests.rows import Rows

FEW, MANY = 1_000, 15_000

REPORTS: dict[str, Callable[[State], object]] = {
    "health": read_verdict,
    "overview": read_overview,
    "definitions": list_definitions,
    "definitions that need a person": lambda state: list_definitions(
        state, DefinitionFilter(state="attention")
    ),
    "one definition": lambda state: find_definition(state, "one"),
    "runs": list_runs,
    "queued runs": lambda state: list_runs(state, RunFilter(status="queued")),
    "failed runs": lambda state: list_runs(state, RunFilter(status="failed")),
    "running runs": lambda state: list_runs(state, RunFilter(status="running")),
    "dead runs": lambda state: list_runs(state, RunFilter(status="dead")),
    "queued runs as due": lambda state: list_runs(
        state, RunFilter(status="queued"), order=sorting_of("queued", False)
    ),
    "dead runs by death": lambda state: list_runs(
        state, RunFilter(status="dead"), order=sorting_of("dead", False)
    ),
    "runs with an id": lambda state: list_runs(state, RunFilter(search="3", status="dead")),
    "dead runs of a label": lambda state: list_runs(
        state, RunFilter(search="label", status="dead")
    ),
    "runs of two statuses": lambda state: list_runs(state, RunFilter(statuses=("dead", "queued"))),
    "skipped runs": lambda state: list_runs(state, RunFilter(status="skipped")),
    "overdue runs": lambda state: list_runs(state, RunFilter(overdue=True)),
    "a run of a definition": lambda state: find_run(state, 11),
    "a dead run": lambda state: find_run(state, 4),
    "batches": list_batches,
    "one batch": lambda state: find_batch(state, "reports"),
    "runs of a batch": lambda state: list_runs(state, RunFilter(batch="reports")),
    "who has a key": lambda state: find_key(state, "k"),
    "waiting runs of a key": lambda state: list_runs(
        state, RunFilter(concurrency_key="k", status="queued")
    ),
    "runs by status": lambda state: count_by_status(state, RunFilter()),
    "runs of a queue by status": lambda state: count_by_status(state, RunFilter(queue="q")),
    "queues": list_queues,
    "hosts": list_hosts,
    "doctor": examine,
    "effects in doubt": lambda state: list_doubts(state, 10),
    "operations": list_operations,
    "operations on a run": lambda state: operations_on(state, 1),
}


@pytest.fixture
def state(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> State:
    """An app with a definition, a few runs of each status, and a few more that have succeeded."""
    made = state_of(app)
    rows = Rows(app, db)
    definition = rows.definition("one")
    rows.tick()
    for status in ("queued", "failed", "running", "dead", "cancelled"):
        rows.run(status, age=3600)
    with made.engine.begin() as connection:
        new = "INSERT INTO job_batches (key) VALUES ('reports') RETURNING id"
        batch = connection.execute(text(new)).scalar_one()
    for status in ("queued", "succeeded", "dead"):
        rows.run(status, age=3600, batch_id=batch)
    RETRY.many(made, [rows.run("dead", age=3600) for _ in range(3)])
    strict = {"concurrency_key": "k", "concurrency_limit": 1, "strict": True}
    rows.run("dead", age=3600, **strict)
    rows.run("queued", age=3600, order_mark="waits", **strict)
    finish(made.engine, definition, FEW)
    return made


def finish(engine: Engine, definition: int, number: int, start: int = 1) -> None:
    """Add so many runs of a definition that succeeded, one a minute up to an hour ago."""
    at = later(engine, "'now'", "-60 - i")
    add(engine, "job_runs", number, start, job_type="'send'", definition_id=str(definition),
        status="'succeeded'", attempts="1",
        scheduled_for=at, started_at=at, finished_at=at)  # fmt: skip
    run(engine, "ANALYZE")


@pytest.mark.slow
def test_pages_cost_no_more_with_many_more_finished_runs(state: State) -> None:
    for read in REPORTS.values():
        read(state)  # What is looked up once for all is looked up.
    few = {name: cost_of(state, read) for name, read in REPORTS.items()}
    finish(state.engine, 1, MANY, FEW + 1)
    many = {name: cost_of(state, read) for name, read in REPORTS.items()}
    assert [name for name in REPORTS if many[name] > 2 * few[name] + 100] == [], (few, many)


#: What must not cost more for a longer backlog.
OF_A_BACKLOG: dict[str, Callable[[State], object]] = {
    "health": read_verdict,
    "overview": read_overview,
    "queued runs as due": REPORTS["queued runs as due"],
    "overdue runs as due": lambda state: list_runs(
        state, RunFilter(overdue=True), order=sorting_of(None, True)
    ),
    "one batch": REPORTS["one batch"],
    "runs of a batch": REPORTS["runs of a batch"],
    "who has a key": lambda state: find_key(state, "k"),
    "runs by status": lambda state: count_by_status(state, RunFilter()),
    "runs of a queue by status": lambda state: count_by_status(state, RunFilter(queue="q")),
    "queues": list_queues,
}
#: The same, once autovacuum has analyzed the table: only then PostgreSQL chooses the best index.
WITH_STATISTICS: dict[str, Callable[[State], object]] = {
    "queued runs of a task": lambda state: list_runs(state, RunFilter(status="queued", task="one")),
}


@pytest.mark.slow
@pytest.mark.parametrize("analyzed", [False, True])
def test_pages_cost_no_more_with_a_longer_backlog(state: State, analyzed: bool) -> None:
    reads = OF_A_BACKLOG | (WITH_STATISTICS if analyzed else {})
    # So many that each count on a page stops at its cap.
    wait(state.engine, 2 * MANY, analyzed)
    for read in reads.values():
        read(state)
    few = {name: cost_of(state, read) for name, read in reads.items()}
    wait(state.engine, 3 * MANY, analyzed)
    many = {name: cost_of(state, read) for name, read in reads.items()}
    assert [name for name in few if many[name] > 2 * few[name] + 100] == [], (few, many)


def wait(engine: Engine, number: int, analyze: bool) -> None:
    """Add so many runs that wait, a quarter of them for a concurrency key."""
    add(engine, "job_runs", number, run_at=LONG_AGO, scheduled_for=LONG_AGO, priority="i % 3",
        job_type="CASE i % 5 WHEN 0 THEN 'removed' ELSE 'send' END",
        concurrency_key="CASE WHEN i % 4 = 0 THEN 'k' || i END",
        concurrency_limit="CASE WHEN i % 4 = 0 THEN 1 END")  # fmt: skip
    if analyze:
        run(engine, "ANALYZE")


def cost_of(state: State, read: Callable[[State], object]) -> int:
    with sent_by(state.engine) as sent:
        read(state)
    return cost(state.engine, sent.statements, ours=False)
