"""Statements find their rows by indexes, however many rows there are, and cost no more for them.

With statistics and without: a table that grew since the last ANALYZE must be claimed from as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, TextClause, create_engine, text

from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.dialect import Dialect, dialect_of
from flask_cronjobs.db.statements import SETTINGS
from flask_cronjobs.jobs.definitions.rows import NEAR, SOME, read_definitions
from flask_cronjobs.jobs.definitions.slots import insert_of_slots
from flask_cronjobs.jobs.history import ended_in_hour
from flask_cronjobs.jobs.pruning import (
    BATCHES,
    DEAD_RUNS,
    EFFECTS,
    HOURS,
    OPERATIONS,
    RUNS,
    delete,
    few_steps,
    oldest,
)
from flask_cronjobs.jobs.runs import claim as claiming
from flask_cronjobs.jobs.runs.claim import ClaimRequest
from flask_cronjobs.jobs.runs.leases import expired
from flask_cronjobs.jobs.runs.look import look_statement
from flask_cronjobs.jobs.runs.outcomes import delete_failures, record, success_arrays
from flask_cronjobs.jobs.steps import holding, of_run
from flask_cronjobs.jobs.ticks import insert_tick, old_ticks
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
    """Add 220,000 runs that ended, 51 that may run and 10 that run; many rows of other tables.

    The seventh definition has a tenth of those that finished, and one that is runnable.
    """
    succeeded = "CASE WHEN i % 20 = 0 THEN 'dead' ELSE 'succeeded' END"
    first_ones = f"CASE WHEN i < 5 THEN {LONG_AGO} ELSE {NEVER} END"
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
    add(engine, "job_definitions", 1000, name="'definition ' || i", job_type="'task'",
        schedule="'* * * * *'", next_run_at=first_ones, origin="'database'")  # fmt: skip
    add(engine, "job_effects", 20_000, key="'effect ' || i", run_id="i", state="'done'",
        done_at=first_ones)  # fmt: skip
    add(engine, "job_ticks", 50_000, worker="'host:7'", host="'host'", pid="7",
        started_at=first_ones, finished_at=first_ones)  # fmt: skip
    add(engine, "job_operations", 20_000, what="'paused'", target="'queue'", actor="'ada'",
        started_at=first_ones)  # fmt: skip
    add(engine, "job_failures", 50_000, run_id="1 + i % 1000", attempt="1 + i / 1000",
        worker="'host:7'", error_type="'E'", error="'it broke'")  # fmt: skip
    add(engine, "job_hours", 20_000, hour=later(engine, LONG_AGO, "60 * i"), job_type="'task'",
        ended="1", dead="0", took_seconds="1", waited_seconds="1")  # fmt: skip
    add(engine, "job_steps", 50_000, run_id="1 + i % 1000", name="'step ' || i", kind="'step'",
        finished_at=first_ones)  # fmt: skip


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


def walks_all(plan: str, table: str) -> bool:
    """Whether a plan reads the whole of *table*."""
    # SQLite's "SCAN t USING INDEX ix" walks a partial index, which is the small one meant here.
    return bool(
        re.search(rf"Seq Scan on {table}\b", plan)
        or re.search(rf"SCAN (TABLE )?{table}(?! USING)", plan)
    )


class Case(NamedTuple):
    """A statement, and what its plan has.

    :ivar indexes: that are used; on SQLite, which has no name for it, the primary key is left out.
    :ivar walked: none of these tables, or aliases of tables, is read as a whole.
    """

    sql: Callable[[Dialect], str]
    indexes: tuple[str, ...] = ()
    walked: tuple[str, ...] = ("job_runs",)
    given: tuple[tuple[str, object], ...] = ()


def claim_in_every_way(d: Dialect) -> str:
    """The statement that claims; PostgreSQL's records outcomes, too."""
    if d.one_statement:
        return claiming.recording_statement(d, plain=False, claims=True).text
    return claiming.claim_statement(d).text


def record_outcomes(d: Dialect) -> str:
    return claim_in_every_way(d) if d.one_statement else record(d, "job_runs.id", plain=False).text


RUNNABLE = ("ix_job_runs_runnable", "ix_job_runs_runnable_keyed", "ix_job_runs_runnable_front")
OLD = ("one", "job_runs", "job_effects", "job_batches", "job_operations")
CASES = {
    "claim": Case(claim_in_every_way, RUNNABLE),
    "record": Case(record_outcomes, ("pk_job_runs",)),
    "queue look": Case(lambda d: look_statement(d).text, RUNNABLE[::2]),
    "tick": Case(lambda d: insert_tick(d).text, ("ix_job_runs_lease", "ix_job_ticks_started_at"),
                 ("job_runs", "job_ticks", "job_hours", "job_batches")),
    "expired": Case(lambda d: expired(d).text, ("ix_job_runs_lease",)),
    "due definitions": Case(lambda d: read_definitions(d).text, ("ix_job_definitions_due",), (),
                            (("after", 0),)),
    "slots": Case(insert_of_slots, ("ix_job_runs_live",), ("live",)),
    "old runs": Case(lambda d: oldest(d, RUNS), ("ix_job_runs_finished",), OLD),
    "dead runs": Case(lambda d: oldest(d, DEAD_RUNS), ("ix_job_runs_dead",), OLD),
    "old effects": Case(lambda d: oldest(d, EFFECTS), ("ix_job_effects_done",), OLD),
    "old operations": Case(lambda d: oldest(d, OPERATIONS), ("ix_job_operations_started_at",),
                           OLD),
    "old batches": Case(lambda d: oldest(d, BATCHES), ("ix_job_batches_ended",), OLD),
    "failures of old runs": Case(lambda d: delete(d, "job_failures", "run_id"), (),
                                 ("job_failures",)),
    "outputs of old runs": Case(lambda d: delete(d, "job_outputs", "run_id"), (), ("job_outputs",)),
    "steps of old runs": Case(lambda d: delete(d, "job_steps", "run_id"), (), ("job_steps",)),
    "count of their steps": Case(lambda d: few_steps(d), ("uq_job_steps_name",), ("job_steps",),
                                 (("most", 10_000),)),
    "steps of a run": Case(lambda d: of_run(d).text, ("uq_job_steps_name",), ("job_steps",)),
    "end of a step": Case(lambda d: holding(d).text, ("pk_job_runs",)),
    "old hours": Case(lambda d: oldest(d, HOURS), ("uq_job_hours_hour",), ("one", "job_hours")),
    "runs of an hour": Case(lambda d: ended_in_hour(d).text,
                            ("ix_job_runs_finished", "ix_job_runs_dead")),
    "old runs themselves": Case(lambda d: delete(d, "job_runs", "id")),
    "old ticks": Case(old_ticks, ("ix_job_ticks_started_at",), ("job_ticks",)),
    "oldest failures": Case(lambda d: delete_failures(d).text, ("uq_job_failures_attempt",),
                            ("job_failures",)),
}  # fmt: skip


def parameters(d: Dialect) -> dict[str, Any]:
    """What the statements are given, all together."""
    outcome = {"id": 1, "token": TOKEN, "kind": "succeeded"}
    slot = {"definition_id": 7, "at": "2026-01-02 00:00:00+00", "skipped": 0}
    watermark = {"definition_id": 7, "expected": "2026-01-01", "following": None}
    return {
        **ClaimRequest(100, TOKEN, ("task",)).parameters(d),
        **dict.fromkeys(("retention", "retention_dead", "retention_statistics"), 86400.0),
        **dict.fromkeys(("operations", "age"), 86400.0),
        "outcomes": json.dumps([outcome]), "ids": d.many(range(1, 500)),
        "slots": json.dumps([slot]), "plans": json.dumps([watermark]),
        "declared": d.array(()), "chunk": 500, "all": False, "near": NEAR, "some": SOME,
        "start": "2026-11-18 09:00:00+00", "end": "2026-11-18 10:00:00+00",
        "place": d.earliest, "id": 7, "attempt": 3, "run_id": 7, "name": "step",
        **dict.fromkeys(("worker", "host", "version", "app", "queues", "message", "due_at")),
        "pid": 7,
        **dict.fromkeys(("listening", "resident"), False),
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_statements_find_their_rows_by_their_indexes(engine: Engine, case: Case) -> None:
    dialect = dialect_of(engine)
    shown = plan(engine, case.sql(dialect), {**parameters(dialect), **dict(case.given)})
    for index in case.indexes:
        if index.startswith("pk_") and not dialect.one_statement:
            index = "SEARCH job_runs USING INTEGER PRIMARY KEY"
        assert re.search(rf"\b{index}\b", shown), shown
    for table in case.walked:
        assert not walks_all(shown, table), shown


@pytest.mark.parametrize("part", ["unkeyed", "keyed", "candidate", "chosen"])
def test_limit_of_a_claim_is_taken_once(engine: Engine, part: str) -> None:
    """A planner may run a LIMIT subquery again, and so claim more rows than the limit."""
    dialect = dialect_of(engine)
    shown = plan(engine, claim_in_every_way(dialect), parameters(dialect))
    once = "CTE" if dialect.one_statement else "MATERIALIZE"
    assert f"{once} {part}" in [line.strip() for line in shown.splitlines()], shown


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
            statements = [(both, {**request, **success_arrays(outcomes)})]
        else:
            rows = [{"id": each.id, "token": TOKEN, "kind": "succeeded"} for each in outcomes]
            recording = record(d, "job_runs.id", plain=True), {"outcomes": json.dumps(rows)}
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
