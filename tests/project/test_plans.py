"""The planners use the partial indexes, however many finished rows there are.

With statistics and without: a table that grew since the last ANALYZE must be claimed from as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.dialect import dialect_of
from flask_cronjobs.db.planner import SETTINGS
from flask_cronjobs.jobs.definitions.rows import NEAR, SOME, read_definitions
from flask_cronjobs.jobs.definitions.slots import insert_of_slots
from flask_cronjobs.jobs.outcomes import OUTCOME_COLUMNS, record
from flask_cronjobs.jobs.pruning import BATCHES, DEAD_RUNS, EFFECTS, RUNS, Kind, delete, oldest
from flask_cronjobs.jobs.runs import claim as claiming
from flask_cronjobs.jobs.runs.claim import ClaimRequest
from flask_cronjobs.jobs.runs.exchange import Claims, front_of_queue
from flask_cronjobs.jobs.runs.leases import expired
from tests.plans import explain, pages
from tests.postgres import Server

FINISHED = 200_000
DAY = 86400.0
CLAIM_INDEXES = ("ix_job_runs_runnable", "ix_job_runs_runnable_keyed")

pytestmark = pytest.mark.slow


def fill(engine: Engine) -> None:
    """Finish 220,000 runs, leave 51 that are runnable and 10 that run; and 1,000 definitions.

    The seventh definition has a tenth of those that finished, and one that is runnable.
    """
    numbers = (
        "generate_series(1, {count}) AS n(i)"
        if engine.dialect.name == "postgresql"
        else "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        " SELECT i FROM n) AS n"
    )
    minutes = (
        "'2026-01-01' + i * interval '1 minute'"
        if engine.dialect.name == "postgresql"
        else "datetime('2026-01-01', i || ' minutes')"
    )
    finished = "CASE WHEN i % 20 = 0 THEN 'dead' ELSE 'succeeded' END"
    with engine.begin() as connection:
        for sql, count in (
            (
                "INSERT INTO job_runs (job_type, status, attempts, finished_at, definition_id,"
                f" scheduled_for, priority) SELECT 'task', {finished}, 1, '2026-01-01',"
                " CASE WHEN i % 2 = 0 THEN i END, '2026-01-01', 0 FROM ",
                FINISHED,
            ),
            (
                "INSERT INTO job_runs (job_type, definition_id, scheduled_for, status, finished_at)"
                f" SELECT 'task', 7, {minutes},"
                " CASE WHEN i > 20000 THEN 'queued' ELSE 'succeeded' END,"
                " CASE WHEN i > 20000 THEN NULL ELSE '2026-01-01' END FROM ",
                20_001,
            ),
            ("INSERT INTO job_runs (job_type, run_at) SELECT 'task', '2026-01-01' FROM ", 25),
            (
                "INSERT INTO job_runs (job_type, run_at, concurrency_key, concurrency_limit)"
                " SELECT 'task', '2026-01-01', 'key', 1 FROM ",
                25,
            ),
            (
                "INSERT INTO job_runs (job_type, status, attempts, locked_by, locked_until)"
                " SELECT 'task', 'running', 1, 'host:1:x', '2026-01-01' FROM ",
                10,
            ),
            (
                "INSERT INTO job_definitions (name, job_type, schedule, next_run_at, origin)"
                " SELECT 'definition ' || i, 'task', '* * * * *',"
                " CASE WHEN i < 5 THEN '2026-01-01' ELSE '2999-01-01' END{cast}, 'database' FROM ",
                1000,
            ),
            (
                "INSERT INTO job_effects (key, run_id, state, done_at)"
                " SELECT 'effect ' || i, i, 'done',"
                " CASE WHEN i < 5 THEN '2026-01-01' ELSE '2999-01-01' END{cast} FROM ",
                20_000,
            ),
        ):
            cast = "::timestamptz" if engine.dialect.name == "postgresql" else ""
            if engine.dialect.name == "postgresql":
                sql = sql.replace("'2026-01-01'", "'2026-01-01'::timestamptz")
            statement = sql.replace("{cast}", cast) + numbers.replace("{count}", str(count))
            connection.execute(text(statement))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A database with many finished rows and no statistics yet."""
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
            for table in ("job_runs", "job_definitions", "job_effects"):
                connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = false)"))
    fill(engine)
    yield engine
    engine.dispose()
    if server is not None:
        server.drop_database(url)


@pytest.fixture
def empty(database_url: str) -> Iterator[Engine]:
    """A database without rows."""
    engine = create_engine(database_url)
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def engine(request: pytest.FixtureRequest, filled: Engine) -> Engine:
    """The filled database, before and after ANALYZE."""
    if request.param == "with statistics":
        with filled.begin() as connection:
            connection.execute(text("ANALYZE"))
    return filled


def plan(engine: Engine, sql: str, parameters: dict[str, Any]) -> str:
    """The plan of a statement, as text."""
    how = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(SETTINGS)
        rows = connection.execute(text(f"{how} {sql}"), parameters).all()
    return "\n".join(str(row[-1]) for row in rows)


def walks_all(plan: str, table: str) -> bool:
    """Whether a plan reads the whole of *table*."""
    # SQLite's "SCAN t USING INDEX ix" walks a partial index, which is the small one meant here.
    return bool(
        re.search(rf"Seq Scan on {table}\b", plan)
        or re.search(rf"SCAN (TABLE )?{table}(?! USING)", plan)
    )


def claim_parameters(engine: Engine) -> dict[str, Any]:
    dialect = dialect_of(engine)
    return {
        "limit": 100,
        "token": "host:1:y",
        "tasks": dialect.array(("task",)),
        "queues": dialect.array(()),
        "but_queues": True,
        "lease": 120.0,
        "idle": True,
        "side_by_side": False,
        "after": "",
        "outcomes": '[{"id": 1, "token": "host:1:y", "kind": "succeeded"}]',
        "usual_token": "host:1:y",
        **{f"{name}s": "{}" for name in OUTCOME_COLUMNS},
        "ids": "{1}",
    }


def claim_statement(engine: Engine) -> str:
    """The statement that claims in every way; PostgreSQL's records outcomes, too."""
    dialect = dialect_of(engine)
    if dialect.one_statement:
        return claiming.record_and_claim(dialect, plain=False, claims=True).text
    return claiming.claim(dialect).text


def test_claim_uses_the_partial_indexes_of_runnable_rows(engine: Engine) -> None:
    shown = plan(engine, claim_statement(engine), claim_parameters(engine))
    for index in CLAIM_INDEXES:
        assert index in shown, shown
    assert not walks_all(shown, "job_runs"), shown


@pytest.mark.parametrize("part", ["free", "keyed", "candidate", "chosen"])
def test_limit_of_a_claim_is_taken_once(engine: Engine, part: str) -> None:
    """A planner may run a LIMIT subquery again, and so claim more rows than the limit."""
    shown = plan(engine, claim_statement(engine), claim_parameters(engine))
    once = "CTE" if engine.dialect.name == "postgresql" else "MATERIALIZE"
    assert f"{once} {part}" in [line.strip() for line in shown.splitlines()], shown


def test_recording_finds_its_rows_by_id(engine: Engine) -> None:
    if dialect_of(engine).one_statement:
        shown = plan(engine, claim_statement(engine), claim_parameters(engine))
        assert "pk_job_runs" in shown, shown
    else:
        shown = plan(engine, record(dialect_of(engine)), claim_parameters(engine))
        assert "SEARCH job_runs USING INTEGER PRIMARY KEY" in shown, shown
    assert not walks_all(shown, "job_runs"), shown


def test_reclaim_uses_the_index_of_leases(engine: Engine) -> None:
    statement = expired(dialect_of(engine))
    shown = plan(engine, statement.text, {"limit": 200})
    assert "ix_job_runs_lease" in shown, shown
    assert not walks_all(shown, "job_runs"), shown


def test_due_definitions_use_their_index(engine: Engine) -> None:
    dialect = dialect_of(engine)
    parameters = {
        "declared": dialect.array(()),
        "tasks": dialect.array(("task",)),
        "after": 0,
        "chunk": 500,
        "all": False,
        "near": NEAR,
        "some": SOME,
    }
    shown = plan(engine, read_definitions(dialect), parameters)
    assert "ix_job_definitions_due" in shown, shown


@pytest.mark.parametrize(
    ("kind", "index"),
    [
        (RUNS, "ix_job_runs_finished"),
        (DEAD_RUNS, "ix_job_runs_dead"),
        (EFFECTS, "ix_job_effects_done"),
        (BATCHES, "ix_job_batches_ended"),
    ],
)
def test_pruning_reads_only_old_rows_by_their_index(engine: Engine, kind: Kind, index: str) -> None:
    dialect = dialect_of(engine)
    first = "-infinity" if dialect.name == "postgresql" else ""
    parameters = {"retention": DAY, "retention_dead": DAY, "place": first, "chunk": 500}
    shown = plan(engine, oldest(dialect, kind), parameters)
    assert index in shown, shown
    for table in ("one", "job_runs", "job_effects", "job_batches"):
        assert not walks_all(shown, table), shown
    if kind == EFFECTS:
        with engine.connect() as connection:
            assert len(connection.execute(text(oldest(dialect, kind)), parameters).all()) == 4


@pytest.mark.parametrize(
    ("table", "column"),
    [("job_failures", "run_id"), ("job_outputs", "run_id"), ("job_runs", "id")],
)
def test_what_goes_with_old_runs_is_looked_up_by_index(
    engine: Engine, table: str, column: str
) -> None:
    dialect = dialect_of(engine)
    shown = plan(engine, delete(dialect, table, column), {"ids": dialect.many(range(1, 500))})
    assert not walks_all(shown, table), shown


def test_overlap_is_looked_up_in_the_index_of_live_runs(engine: Engine) -> None:
    dialect = dialect_of(engine)
    parameters: dict[str, Any] = {
        "slots": json.dumps([{"definition_id": 7, "at": "2026-01-02 00:00:00+00", "skipped": 0}]),
        "ids": dialect.many([7]),
    }
    shown = plan(engine, insert_of_slots(dialect), parameters)
    assert "ix_job_runs_live" in shown, shown
    assert not walks_all(shown, "live"), shown


def test_claim_reads_few_pages_of_a_large_table(engine: Engine) -> None:
    assert cost_of_a_claim(engine) < 2000, "26 runs were to be had; the table has thousands"


def add_keyed_runs(engine: Engine, key: str, count: int, run_at: str = "2026-01-01") -> None:
    """Add runs with *key*, SQL that may use the number ``i``."""
    cast = "::timestamptz" if engine.dialect.name == "postgresql" else ""
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO job_runs (job_type, run_at, concurrency_key, concurrency_limit)"
                f" SELECT 'task', '{run_at} 00:00:00'{cast}, {key}, 1 FROM (WITH RECURSIVE n(i) AS"
                f" (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n) AS n"
            )
        )
        connection.execute(text("ANALYZE"))


@pytest.mark.parametrize("run_at", ["2026-01-02", "2999-01-01"], ids=["due", "delayed"])
def test_claim_costs_no_more_with_many_more_keys(empty: Engine, run_at: str) -> None:
    """Delayed ones are stepped over in their index, at a twentieth of what a key would cost."""
    add_keyed_runs(empty, "'key ' || i", 500, run_at)
    few = cost_of_a_claim(empty)
    add_keyed_runs(empty, "'more ' || i", 9_500, run_at)
    assert cost_of_a_claim(empty) < 2 * few + 800


def test_claim_costs_no_more_with_many_more_runs_of_a_busy_key(empty: Engine) -> None:
    add_keyed_runs(empty, "'busy'", 1)
    with Bookkeeping(empty) as books:
        assert Claims(books).exchange([], ClaimRequest(1, "host:1:x", ("task",))).claims
    add_keyed_runs(empty, "'busy'", 500)
    add_keyed_runs(empty, "'key ' || i", 5_000, "2026-01-02")
    few = cost_of_a_claim(empty)
    add_keyed_runs(empty, "'busy'", 9_500)
    assert cost_of_a_claim(empty) < 2 * few + 800


def cost_of_a_claim(engine: Engine) -> int:
    """In pages; on SQLite, which does not count them, in hundreds of its machine's steps."""
    if engine.dialect.name == "postgresql":
        return pages_read_by_a_claim(engine)
    statement = text(claim_statement(engine))
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.set_progress_handler(count, 100)
        connection.execute(statement, claim_parameters(engine)).all()
        raw.set_progress_handler(None, 0)
        connection.rollback()
    return steps


def pages_read_by_a_claim(engine: Engine) -> int:
    claim = str(claiming.claim(dialect_of(engine)).compile(dialect=engine.dialect))
    return pages(explain(engine, claim, claim_parameters(engine), "ANALYZE", "BUFFERS"))


def test_look_at_the_front_of_the_queue_reads_its_indexes(engine: Engine) -> None:
    shown = plan(engine, front_of_queue(dialect_of(engine)), {})
    for index in ("ix_job_runs_runnable", "ix_job_runs_runnable_front"):
        assert re.search(rf"\b{index}\b", shown), shown
    assert not walks_all(shown, "job_runs"), shown
