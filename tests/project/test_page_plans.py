"""What the pages cost does not grow with the runs that have finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, event, text

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.batches.views import find_batch, list_batches
from flask_cronjobs.jobs.definitions.detail import find_definition
from flask_cronjobs.jobs.definitions.views import DefinitionFilter, list_definitions
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.health import read_verdict
from flask_cronjobs.jobs.orders import list_key_orders
from flask_cronjobs.jobs.overview import read_overview
from flask_cronjobs.jobs.runs.filters import sorting_of
from flask_cronjobs.jobs.runs.list import RunFilter, list_runs
from flask_cronjobs.jobs.state import State, state_of
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
    "skipped runs": lambda state: list_runs(state, RunFilter(status="skipped")),
    "overdue runs": lambda state: list_runs(state, RunFilter(overdue=True)),
    "batches": list_batches,
    "one batch": lambda state: find_batch(state, "reports"),
    "runs of a batch": lambda state: list_runs(state, RunFilter(batch="reports")),
    "key orders": list_key_orders,
    "doctor": examine,
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
    strict = {"concurrency_key": "k", "concurrency_limit": 1, "on_dead": "stop"}
    rows.run("dead", age=3600, **strict)
    rows.run("queued", age=3600, order_mark="waits", **strict)
    finish(made.engine, definition, FEW)
    return made


def finish(engine: Engine, definition: int, number: int) -> None:
    """Add so many runs of a definition that succeeded, one a minute up to an hour ago."""
    at = (
        "clock_timestamp() - make_interval(mins => 60 + i)"
        if engine.dialect.name == "postgresql"
        else "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || (60 + i) || ' minutes')"
    )
    with engine.begin() as connection:
        last = "SELECT count(*) FROM job_runs WHERE status = 'succeeded'"
        first = connection.execute(text(last)).scalar_one()
        connection.execute(
            text(
                "INSERT INTO job_runs (job_type, definition_id, status, attempts, scheduled_for,"
                " started_at, finished_at) WITH RECURSIVE n(i) AS (SELECT CAST(:first AS integer)"
                " UNION ALL SELECT i + 1 FROM n WHERE i < :last) SELECT 'send',"
                f" CAST(:definition AS integer), 'succeeded', 1, {at}, {at}, {at} FROM n"
            ),
            {"first": first + 1, "last": first + number, "definition": definition},
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


@pytest.mark.slow
def test_pages_cost_no_more_with_many_more_finished_runs(state: State) -> None:
    for read in REPORTS.values():
        read(state)  # What is looked up once for all is looked up.
    few = {name: cost(state, read) for name, read in REPORTS.items()}
    finish(state.engine, 1, MANY)
    many = {name: cost(state, read) for name, read in REPORTS.items()}
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
    "key orders": list_key_orders,
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
    few = {name: cost(state, read) for name, read in reads.items()}
    wait(state.engine, 3 * MANY, analyzed)
    many = {name: cost(state, read) for name, read in reads.items()}
    assert [name for name in few if many[name] > 2 * few[name] + 100] == [], (few, many)


def wait(engine: Engine, number: int, analyze: bool) -> None:
    """Add so many runs that wait, a quarter of them for a concurrency key."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO job_runs (job_type, priority, run_at, scheduled_for, concurrency_key,"
                " concurrency_limit) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                " WHERE i < :number) SELECT CASE i % 5 WHEN 0 THEN 'removed' ELSE 'send' END,"
                " i % 3, '2026-01-01', '2026-01-01', CASE WHEN i % 4 = 0 THEN 'k' || i END,"
                " CASE WHEN i % 4 = 0 THEN 1 END FROM n"
            ),
            {"number": number},
        )
    if analyze:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def cost(state: State, read: Callable[[State], object]) -> int:
    """In pages; on SQLite, which does not count them, in hundreds of its machine's steps."""
    if state.engine.dialect.name == "sqlite":
        with steps_counted(state.engine) as steps:
            read(state)
        return len(steps)
    sent: list[tuple[str, Any]] = []

    def note(conn: object, cursor: object, sql: str, parameters: Any, *rest: object) -> None:
        if sql.lstrip().startswith(("SELECT", "WITH")):
            sent.append((sql, parameters))

    event.listen(state.engine, "before_cursor_execute", note)
    read(state)
    event.remove(state.engine, "before_cursor_execute", note)
    with state.engine.connect() as connection:
        return sum(pages(connection.exec_driver_sql, sql, values) for sql, values in sent)


def pages(execute: Callable[..., Any], sql: str, parameters: Any) -> int:
    """How many pages a statement of PostgreSQL reads."""
    (top,) = execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters).scalar_one()
    read: int = top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]
    return read


@contextmanager
def steps_counted(engine: Engine) -> Iterator[list[int]]:
    """A list that grows by one for each hundred steps of SQLite's machine."""
    steps: list[int] = []

    def watch(raw: Any, record: object) -> None:
        raw.set_progress_handler(lambda: steps.append(1), 100)

    engine.dispose()
    event.listen(engine, "connect", watch)
    yield steps
    event.remove(engine, "connect", watch)
    engine.dispose()
