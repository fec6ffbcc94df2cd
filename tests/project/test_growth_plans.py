"""Deleting old rows of ticks and of failures reads only those, by their indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Executable, TextClause, create_engine, event, text

from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.dialect import dialect_of
from flask_cronjobs.jobs.outcomes import delete_failures
from flask_cronjobs.jobs.ticks import old_ticks
from tests.postgres import Server

ROWS = 50_000

pytestmark = pytest.mark.slow


def fill(engine: Engine) -> None:
    """Insert `ROWS` ticks of the last hours, 30 of long ago, and `ROWS` failures of 1,000 runs."""
    postgresql = engine.dialect.name == "postgresql"
    numbers = (
        f"generate_series(1, {ROWS}) AS n(i)"
        if postgresql
        else f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
        " SELECT i FROM n) AS n"
    )
    now = "now()" if postgresql else "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
    long_ago = "CAST('2026-01-01' AS timestamptz)" if postgresql else "'2026-01-01'"
    at = f"CASE WHEN i <= 30 THEN {long_ago} ELSE {now} END"
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO job_ticks (worker, host, pid, started_at, finished_at)"
            f" SELECT 'host:7', 'host', 7, {at}, {at} FROM {numbers}",
            "INSERT INTO job_runs (job_type)"
            f" SELECT 'task' FROM {numbers.replace(str(ROWS), '1000')}",
            "INSERT INTO job_failures (run_id, attempt, worker, error_type, error)"
            f" SELECT 1 + i % 1000, 1 + i / 1000, 'host:7', 'E', 'it broke' FROM {numbers}",
        ):
            connection.execute(text(statement))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A database with many rows and no statistics yet."""
    server: Server | None = None
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        assert server is not None
        url = server.create_database()
    else:
        url = f"sqlite:///{tmp_path_factory.mktemp('plans') / 'plans.sqlite'}"
    engine = create_engine(url)
    create_tables(engine)
    if server is not None:
        with engine.begin() as connection:
            for table in ("job_ticks", "job_failures"):
                connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = false)"))
    fill(engine)
    yield engine
    engine.dispose()
    if server is not None:
        server.drop_database(url)


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def engine(request: pytest.FixtureRequest, filled: Engine) -> Engine:
    """The filled database, before and after ANALYZE."""
    if request.param == "with statistics":
        with filled.begin() as connection:
            connection.execute(text("ANALYZE"))
    return filled


def plan(engine: Engine, statement: Executable) -> str:
    """Return the plan of a statement, as text."""
    explain = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"

    sql, parameters = _compiled(engine, statement)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {sql}", parameters).all()
    return "\n".join(str(row[-1]) for row in rows)


def _compiled(engine: Engine, statement: Executable) -> tuple[str, Any]:
    """Return a statement's text and parameters, as the driver gets them."""
    seen: list[tuple[str, Any]] = []

    def see(conn: object, cursor: object, sql: str, parameters: object, *_: object) -> None:
        seen.append((sql, parameters))

    with engine.connect() as connection:
        event.listen(connection, "before_cursor_execute", see)
        connection.execute(statement)
        connection.rollback()
    return seen[0]


def walks_all(plan: str, table: str) -> bool:
    """Whether a plan reads the whole of *table*."""
    return bool(re.search(rf"Seq Scan on {table}\b|SCAN {table}$", plan, re.MULTILINE))


def old(engine: Engine) -> Executable:
    return text(old_ticks(dialect_of(engine))).bindparams(age=86400.0)


def oldest_failures(engine: Engine) -> TextClause:
    return delete_failures(dialect_of(engine)).bindparams(id=7, attempt=3)


def test_old_ticks_are_found_by_when_they_began(engine: Engine) -> None:
    shown = plan(engine, old(engine))
    assert "ix_job_ticks_started_at" in shown, shown
    assert not walks_all(shown, "job_ticks"), shown


def test_only_old_ticks_are_deleted(engine: Engine) -> None:
    with engine.connect() as connection:
        assert len(connection.execute(old(engine)).all()) == 30


def test_oldest_failures_are_found_by_run_and_attempt(engine: Engine) -> None:
    shown = plan(engine, oldest_failures(engine))
    assert "uq_job_failures_attempt" in shown, shown
    assert not walks_all(shown, "job_failures"), shown


def test_only_the_oldest_failures_of_one_run_are_deleted(engine: Engine) -> None:
    left = "SELECT count(*) FROM job_failures WHERE run_id IN (7, 8)"
    with engine.connect() as connection:
        before = connection.execute(text(left)).scalar_one()
        connection.execute(oldest_failures(engine))
        assert connection.execute(text(left)).scalar_one() == before - 3
        connection.rollback()
