"""Statements find their rows by indexes, however many rows there are, and cost no more for them.

With statistics and without: a table that grew since the last ANALYZE must be claimed from as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, TextClause, create_engine, text

from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.dialect import Dialect, dialect_of
from flask_cronjobs.db.statements import SETTINGS
from flask_cronjobs.jobs import pruning
from flask_cronjobs.jobs.reader import RUNS
from flask_cronjobs.jobs.runs import claim as claiming
from flask_cronjobs.jobs.runs.claim import ClaimRequest
from flask_cronjobs.jobs.runs.outcomes import outcome_parameters, record
from flask_cronjobs.types import Outcome
from tests.plans import LONG_AGO, add, cost, later, run, sent_by, tables_of

pytestmark = pytest.mark.slow

TOKEN = "host:1:y"
NEVER = "'2999-01-01 00:00:00'"
RUNNING = {
    "job_type": "'task'", "status": "'running'", "attempts": "1",
    "locked_by": f"'{TOKEN}'", "locked_until": LONG_AGO,
}  # fmt: skip


def fill(engine: Engine) -> None:
    """Add 220,000 runs that ended, 51 that may run and 10 that run.

    The seventh definition has a tenth of those that finished, and one that is runnable.
    """
    succeeded = "CASE WHEN i % 20 = 0 THEN 'dead' ELSE 'succeeded' END"
    ended = {"job_type": "'task'", "finished_at": LONG_AGO, "scheduled_for": LONG_AGO}
    add(engine, "job_runs", 200_000, **ended, status=succeeded, attempts="1", priority="0",
        definition_id="CASE WHEN i % 2 = 0 THEN i END")  # fmt: skip
    add(engine, "job_runs", 20_001, job_type="'task'", definition_id="7",
        scheduled_for=later(engine, LONG_AGO, "i"),
        status="CASE WHEN i > 20000 THEN 'queued' ELSE 'succeeded' END",
        finished_at=f"CASE WHEN i > 20000 THEN NULL ELSE {LONG_AGO} END")  # fmt: skip
    waiting = {"job_type": "'task'", "run_at": LONG_AGO}
    add(engine, "job_runs", 25, **waiting)
    add(engine, "job_runs", 25, **waiting, concurrency_key="'key'", concurrency_limit="1")
    add(engine, "job_runs", 10, **RUNNING)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A database with many finished rows and no statistics yet."""
    with tables_of(request.param, request, tmp_path_factory.mktemp("plans")) as engine:
        fill(engine)
        yield engine


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def engine(request: pytest.FixtureRequest, filled: Engine) -> Engine:
    """The filled database, before and after ANALYZE."""
    if request.param == "with statistics":
        run(filled, "ANALYZE")
    return filled


def plan(engine: Engine, sql: str, parameters: dict[str, Any]) -> str:
    """The plan of a statement, as text."""
    how = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(SETTINGS)
        rows = connection.execute(text(f"{how} {sql}"), parameters).all()
    return "\n".join(str(row[-1]) for row in rows)


def claim_in_every_way(d: Dialect) -> str:
    """The statement that claims; PostgreSQL's records outcomes, too."""
    if d.one_statement:
        return claiming.recording_statement(d, plain=False, claims=True).text
    return claiming.claim_statement(d).text


@pytest.mark.parametrize("part", ["unkeyed_in_order", "by_id", "candidate", "chosen"])
def test_limit_of_a_claim_is_taken_once(engine: Engine, part: str) -> None:
    """A planner may run a LIMIT subquery again, and so claim more rows than the limit."""
    dialect = dialect_of(engine)
    given = {**ClaimRequest(100, TOKEN, ("task",)).parameters(dialect), "outcomes": "[]"}
    shown = plan(engine, claim_in_every_way(dialect), given)
    once = "CTE" if dialect.one_statement else "MATERIALIZE"
    assert f"{once} {part}" in [line.strip() for line in shown.splitlines()], shown


def test_pruning_goes_along_an_index_without_the_members_of_batches(engine: Engine) -> None:
    """Those that must stay would stand before all others in it."""
    query = pruning.oldest(dialect_of(engine), pruning.RUNS)
    given = {"place": LONG_AGO.strip("'"), "retention": 60.0, "chunk": 10}
    assert "ix_job_runs_finished" in plan(engine, query, given)
    (index,) = (each for each in RUNS.indexes if each.name == "ix_job_runs_finished")
    assert "batch_id IS NULL" in str(index.dialect_options["sqlite"]["where"])


# Costs


def cost_of_a_claim(engine: Engine) -> int:
    """To record outcomes of all that run, and to claim a hundred; nothing of it is kept."""
    d = dialect_of(engine)
    request = ClaimRequest(100, "host:1:x", ("task",)).parameters(d)
    with engine.connect() as connection:
        held = connection.execute(text("SELECT id FROM job_runs WHERE status = 'running'"))
        outcomes = [Outcome(id_, TOKEN, "succeeded", 1, "task") for id_ in held.scalars()]
        statements: list[tuple[TextClause, dict[str, Any]]]
        if d.one_statement:
            both = claiming.recording_statement(d, plain=True, claims=True)
            statements = [(both, {**request, **outcome_parameters(d, outcomes)})]
        else:
            rows = [{"id": each.id, "token": TOKEN, "kind": "succeeded"} for each in outcomes]
            recording = record(d, plain=True), {"outcomes": json.dumps(rows)}
            statements = [recording, (claiming.claim_statement(d), request)]
        with sent_by(engine) as sent:
            for statement, given in statements:
                connection.execute(statement, given)
        connection.rollback()
    return cost(engine, sent.statements)


def test_claim_reads_few_pages_of_a_large_table(engine: Engine) -> None:
    assert cost_of_a_claim(engine) < 2000, "26 runs were to be had; the table has thousands"


def keyed(key: str, **columns: str) -> dict[str, str]:
    return {"concurrency_key": key, "concurrency_limit": "1", **columns}


#: The columns of runs that wait; a claim asks for all queues and for the task ``task``.
BACKLOGS: dict[str, dict[str, str]] = {
    "own": {},
    "keys": keyed("'key ' || i"),
    "a busy key": keyed("'busy'"),
    "another task": {"job_type": "'theirs'"},
    "many other tasks": {"job_type": "'theirs ' || i"},
    "delayed": {"run_at": NEVER},
    "delayed, higher priority": {"run_at": NEVER, "priority": "5"},
    "delayed, 50 priorities": {"run_at": NEVER, "priority": "i % 50"},
    "delayed keys": keyed("'key ' || i", run_at=NEVER, priority="5"),
    "keys of another task": keyed("'k' || i % 1000", job_type="'theirs'"),
}
#: In the units of `cost`; to read the backlog would cost some thousands.
MARGIN = 300


@pytest.fixture
def empty(database_url: str) -> Iterator[Engine]:
    """A database with ten runs that run, and one of the key ``busy``."""
    engine = create_engine(database_url)
    create_tables(engine)
    add(engine, "job_runs", 10, **RUNNING)
    add(engine, "job_runs", 1, **keyed("'busy'", **RUNNING), concurrency_share="1")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("analyze", [False, True], ids=["without statistics", "with statistics"])
@pytest.mark.parametrize("backlog", BACKLOGS)
def test_claim_costs_no_more_for_a_longer_backlog(
    empty: Engine, backlog: str, analyze: bool
) -> None:
    few, few_dry = cost_beside(empty, 2_000, backlog, analyze)
    many, many_dry = cost_beside(empty, 20_000, backlog, analyze)
    print(empty.dialect.name, backlog, analyze, few, few_dry, many, many_dry)
    assert many < 2 * few + MARGIN
    assert many_dry < 2 * few_dry + MARGIN


def cost_beside(engine: Engine, count: int, backlog: str, analyze: bool) -> tuple[int, int]:
    """The costs of a claim of ten runs behind *count* more, and of one that finds none of them."""
    waiting = {"job_type": "'task'", "run_at": LONG_AGO}
    add(engine, "job_runs", count, **{**waiting, **BACKLOGS[backlog]})
    if analyze:
        run(engine, "ANALYZE")
    dry = cost_of_a_claim(engine)
    mine = {**waiting, "run_at": "'2026-01-02 00:00:00'"}
    add(engine, "job_runs", 5, **mine)
    add(engine, "job_runs", 5, **keyed("'mine ' || i", **mine))
    found = cost_of_a_claim(engine)
    run(engine, "DELETE FROM job_runs WHERE run_at = '2026-01-02 00:00:00'")
    return found, dry
