"""Statements find their rows by indexes, whatever the statistics say, in tables of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, insert, text

from flask_cronjobs import CronJobs
from flask_cronjobs.config import Settings
from flask_cronjobs.core import features, gate, ticks
from flask_cronjobs.core import prune as pruning
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.core.claim import ClaimRequest
from flask_cronjobs.core.claim_statement import claim_statement
from flask_cronjobs.core.definitions import DefinitionRow
from flask_cronjobs.core.leases import (
    end_spent,
    look_for_expired,
    progress,
    renew,
    watch,
)
from flask_cronjobs.core.outcome import FAILURES_KEPT, write_output
from flask_cronjobs.core.prune import prune
from flask_cronjobs.db.dialect import dialect_of
from flask_cronjobs.db.statements import SETTINGS
from flask_cronjobs.features.batches.batch_rows import NewBatch, close, hold_open, open_batch
from flask_cronjobs.features.batches.ending import end_batches
from flask_cronjobs.features.executors.tokens import in_brokers
from flask_cronjobs.features.steps import step_rows as steps
from flask_cronjobs.insights.batch_views import find_batch, list_batches
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.effects import list_effects
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.health_checks import seconds_behind
from flask_cronjobs.insights.keys import find_key
from flask_cronjobs.insights.operations import (
    Operation,
    begin,
    end,
    list_operations,
    operations_on,
)
from flask_cronjobs.insights.overview import read_overview
from flask_cronjobs.insights.queues import list_hosts, list_queues
from flask_cronjobs.insights.reader import RUNS
from flask_cronjobs.insights.run_actions import CANCEL, RETRY, change_runs
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import count_by_status, list_runs, sorting_of
from flask_cronjobs.insights.schedule_detail import find_definition
from flask_cronjobs.insights.schedule_views import list_definitions
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import Claim
from tests.features import parts
from tests.kit import Kit, outcome, plan, spec
from tests.plans import (
    LONG_AGO,
    Sent,
    add,
    cost,
    explain,
    faults,
    later,
    paths,
    run,
    sent_by,
    tables_of,
    walked,
)
from tests.rows import Rows, ago

pytestmark = pytest.mark.slow

DAY = 86400.0
TABLES = ", ".join(JobRun.metadata.tables)


def waiting(count: int, columns: str = "", values: str = "") -> str:
    """Return the statement that inserts *count* runs; *values* is SQL for further *columns*."""
    return (
        f"INSERT INTO job_runs (job_type, run_at{columns})"
        f" SELECT 'task', timestamptz '2026-01-01'{values} FROM generate_series(1, {count}) AS n(i)"
    )


def pretend(rows: float, size: int) -> str:
    """Return the statement that makes each table and index seem to have *rows* on *size* pages."""
    names = ", ".join(f"'{table}'::regclass" for table in JobRun.metadata.tables)
    return (
        f"UPDATE pg_class SET reltuples = {rows}, relpages = {size} WHERE oid IN ({names})"
        f" OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN ({names}))"
    )


MANY = waiting(3_000)
ENDED = waiting(5_000, ", status, finished_at", ", 'succeeded', now()")
KEYED = waiting(3_000, ", concurrency_key, concurrency_limit", ", 'key ' || i % 500, 1")
#: The statements that prepare the tables before a statement is planned.
STATISTICS = {
    "never analyzed": (MANY,),
    "analyzed": (MANY, "VACUUM ANALYZE"),
    "analyzed when empty": (waiting(1), "VACUUM ANALYZE", MANY),
    "analyzed when all had finished": (ENDED, "ANALYZE", MANY),
    # A claim examines as many, so the planner expects a claim to take all.
    "analyzed when few waited": (
        *(waiting(300), ENDED, "ANALYZE"),
        *("DELETE FROM job_runs WHERE status = 'succeeded'", MANY),
    ),
    "analyzed when another task waited": (
        *(MANY, "UPDATE job_runs SET job_type = 'other'", "ANALYZE", "DELETE FROM job_runs", MANY),
    ),
    "bloated": (waiting(20_000), "ANALYZE", "DELETE FROM job_runs", MANY, "ANALYZE"),
    "keyed": (KEYED,),
    "keyed and analyzed": (KEYED, "ANALYZE"),
    "looks empty": (MANY, pretend(0, 1)),
    # It is as if a vacuum had found no row on a thousand pages.
    "looks sparse": (MANY, pretend(0, 1_000)),
    "looks like ten million": (MANY, "ANALYZE", pretend(10_000_000, 100)),
}


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """A kit whose tables PostgreSQL neither vacuums nor analyzes on its own."""
    with tables_of("postgresql", request, tmp_path_factory.getbasetemp()) as engine:
        kit = Kit(engine)
        yield kit
        kit.close()


@pytest.fixture
def empty(kit: Kit) -> Engine:
    """The engine of the kit, without rows and without statistics."""
    run(kit.engine, f"TRUNCATE {TABLES}", "DELETE FROM pg_statistic", pretend(-1, 0))
    return kit.engine


#: More statements than this are sent: those of the core, and of each feature with `plans`.
LEAST = 63 + sum(part.STATEMENTS for part in parts("plans"))


@pytest.fixture(scope="module")
def sent(kit: Kit) -> Sent:
    return sent_for_all(kit)


def sent_for_all(kit: Kit) -> Sent:
    """Return each statement that bookkeeping sends, over the life of some runs."""
    with sent_by(kit.engine) as sent:
        record_and_claim_all(kit)
        plan_definitions(kit)
        end_all_batches(kit)
        keep_up(kit)
    return sent


def record_and_claim_all(kit: Kit) -> None:
    """Claim in every way, record every kind of outcome, and renew in between."""
    kit.runs(6, max_attempts=3)
    first = kit.claim(limit=4)
    kit.runs(2, concurrency_key="key", concurrency_limit=1)
    kit.looks.look_at_queue()
    renew(kit.books, first, 60.0)
    watch(kit.books, first)
    progress(kit.books, first[0], 0.5, "half")
    write_output(kit.books, outcome(first[0], "succeeded", output="printed"))
    step = steps.StepRow("step", "step", finished=True)
    kit.books.transaction(lambda connection: steps.write(connection, first[0], step))
    failed = outcome(first[1], "failed")._replace(attempt=FAILURES_KEPT + 1)
    ended = [failed, outcome(first[2], "dead")]
    success = outcome(first[0], "succeeded", result={"a": 1})
    kit.claims.record_and_claim([success], kit.request(limit=1))
    claimed = kit.claims.record_and_claim(ended, kit.request(limit=1)).claims
    kit.claims.already_recorded(ended)
    kit.claims.release_token(first[3].token)
    finish(kit, claimed)
    hand_on(kit)
    claim_far(kit)
    open_orders(kit)
    for part in parts("plans"):
        part.send(kit)


def hand_on(kit: Kit) -> None:
    """Hand a run on to an engine, count it, and begin it there."""
    kit.runs(1)
    (claim,) = kit.claim(limit=1, token="handed:celery:host:1:a")
    in_brokers(kit.books, "default")
    handed = (claim.id, claim.token)
    finish(kit, kit.claims.record_and_claim([], kit.request(1, handed=handed)).claims)


def claim_far(kit: Kit) -> None:
    """Claim runs that are not at the front of the queue, without keys and with them."""
    for key in (None, "far"):
        limit = 1 if key else None
        with kit.engine.begin() as connection:
            many = [{"job_type": "other", "priority": 9, "concurrency_key": key}] * 300
            connection.execute(insert(JobRun).values(concurrency_limit=limit), many)
        finish(kit, kit.claim(limit=2))
    kit.sql("DELETE FROM job_runs WHERE job_type = 'other'")


def open_orders(kit: Kit) -> None:
    """Park runs of a strict order, and open the next one, after an end and in other ways."""
    values: dict[str, Any] = {
        "concurrency_key": "in order",
        "concurrency_limit": 1,
        "strict": True,
    }
    first, second, *_ = [kit.run(**values) for _ in range(4)]
    kit.claim()
    assert [kit.get(run_id).gate for run_id in (first, second)] == [None, "order"]
    kit.sql("DELETE FROM job_runs WHERE id = :id", id=first)
    # PostgreSQL would make a single id a constant, and compare it in a loop of one row.
    assert gate.open_behind(kit.books, [second, 0]) == 1
    kit.sql("UPDATE job_runs SET gate = 'order' WHERE id = :id", id=second)
    assert gate.open_all_left_parked(kit.books) >= 1  # Runs of other keys may be parked, too.
    gate.held_first(kit.books, "nobody")
    kit.sql("DELETE FROM job_runs WHERE concurrency_key = 'in order'")


def finish(kit: Kit, claims: tuple[Claim, ...]) -> None:
    """Record that these runs have succeeded."""
    kit.claims.record_and_claim([outcome(claim, "succeeded") for claim in claims], None)


def end_all_batches(kit: Kit) -> None:
    """Open, fill and close a batch, retry a run of it, and end it."""
    with kit.engine.begin() as connection:
        new = NewBatch(
            "b",
            "task",
            "{}",
            {"priority": 0, "queue": "default", "max_attempts": 3, "strict": False},
        )
        batch, _ = open_batch(connection, kit.books.dialect, new)
        assert hold_open(connection, batch)
    dead, *rest = kit.runs(3, batch_id=batch)
    died = "status = 'dead', finished_at = '2026-01-01'"
    kit.sql(f"UPDATE job_runs SET {died} WHERE id = :id", id=dead)
    with kit.engine.begin() as connection:
        assert close(connection, kit.books.dialect, batch)
    kit.act(RETRY, dead, *rest)
    assert end_batches(kit.books, [batch]) == 0
    kit.sql("DELETE FROM job_runs WHERE batch_id = :id", id=batch)
    assert end_batches(kit.books) == 1


def plan_definitions(kit: Kit) -> None:
    """Read definitions, record a slot, and change one."""
    kit.define()
    (row,) = read(kit)
    assert row.next_run_at is not None
    kit.slots.record_slots({row.id: plan(row.next_run_at)})
    (row,) = [kit.find("definition")]
    kit.definitions.change(row, spec(timezone="Europe/Rome"), datetime.now(timezone.utc), "app")
    kit.definitions.mark_declared([row.id], "app")
    assert not features.is_watched(kit.books)
    assert kit.definitions.ping_urls() == {}
    assert kit.definitions.name_and_timezone(row.id) == ("definition", "Europe/Rome")
    kit.definitions.pause(row)
    paused = kit.find("definition")
    ended = plan(paused.now)
    assert kit.definitions.skip_pause(paused, ended, resume=True) is not None


def read(kit: Kit) -> list[DefinitionRow]:
    """Return the definitions that are due."""
    return kit.definitions.read(("definition",), ("task",))


def keep_up(kit: Kit) -> None:
    """Reclaim lost runs, change runs as an operator, and prune."""
    look_for_expired(kit.books)
    end_spent(kit.books)
    ids = [row.id for row in kit.all_rows()]
    operation = begin(kit.books, Operation("retried", "runs", "ada"), len(ids))
    change_runs(kit.books, CANCEL, ids, operation)
    change_runs(kit.books, RETRY, ids, operation)
    end(kit.books, operation)
    kit.act(RETRY, ids[0], 0)
    ended = "status = 'succeeded', finished_at = '2026-01-01', gate = NULL"
    kit.sql(f"UPDATE job_runs SET {ended} WHERE status <> 'running'")
    kit.sql(
        "INSERT INTO job_ticks (worker, host, pid, started_at) VALUES ('', '', 1, '2026-01-01')"
    )
    kit.sql("INSERT INTO job_effects (key, state, done_at) VALUES ('', 'done', '2026-01-01')")
    ticks.begin(kit.books, "host:7", "host", 7)
    seconds_behind(kit.books, Settings(retention=DAY, retention_dead=DAY))
    steps.read(kit.books, ids[0])
    for _ in prune(kit.books, Settings(retention=DAY, retention_dead=DAY)):
        pass


#: What SQLite may scan: indexes of few rows, such as runs that wait, and ticks up to the latest
#: one.
OF_FEW = {
    *("ix_job_runs_ready", "ix_job_runs_parked", "ix_job_runs_lease"),
    *("ix_job_runs_odd", "ix_job_definitions_pinged"),
    *("ix_job_batches_open", "ix_job_ticks_started_at"),
}
#: Tables of which it makes Bloom filters, once it knows that they are small.
SMALL = {"job_definitions", "job_batches"}


@pytest.mark.parametrize("few", [OF_FEW, OF_FEW | SMALL], ids=["unknown", "analyzed"])
def test_sqlite_goes_along_indexes_of_few_rows_alone(
    request: pytest.FixtureRequest, tmp_path: Path, few: set[str]
) -> None:
    with tables_of("sqlite", request, tmp_path) as engine:
        kit = Kit(engine)
        statements = sent_for_all(kit).by_bookkeeping
        if few != OF_FEW:
            fill(engine)
            run(engine, "ANALYZE")
        walks = {sql: walked(engine, sql, values) - few for sql, values in statements.items()}
        kit.close()
    assert len(statements) > LEAST
    wrong = {" ".join(sql.split()): names for sql, names in walks.items() if names}
    # A tick looks at all definitions.
    assert {sql: names for sql, names in wrong.items() if "INTO job_ticks" not in sql} == {}


def fill(engine: Engine) -> None:
    """Add rows to each table that grows."""
    add(engine, "job_runs", 20_000, job_type="'task'", definition_id="1 + i % 1000",
        status="'succeeded'", finished_at=LONG_AGO,
        scheduled_for=later(engine, LONG_AGO, "i"))  # fmt: skip
    add(engine, "job_runs", 3_000, job_type="'task'", run_at=LONG_AGO)
    add(engine, "job_definitions", 1_000, name="'d ' || i", job_type="'task'",
        schedule="'* * * * *'")  # fmt: skip
    add(engine, "job_batches", 1_000, key="'key ' || i",
        closed_at=LONG_AGO, finished_at=LONG_AGO, total="0")  # fmt: skip
    add(engine, "job_rates", 1_000, key="'key ' || i", tat=LONG_AGO, period="1", burst="1")


@pytest.fixture(scope="module")
def known(kit: Kit) -> dict[str, list[str]]:
    """The paths of each statement with the first statistics."""
    return {}


@pytest.mark.parametrize("statistics", STATISTICS)
def test_each_statement_keeps_to_its_indexes(
    sent: Sent, empty: Engine, known: dict[str, list[str]], statistics: str
) -> None:
    run(empty, *STATISTICS[statistics])
    assert len(sent.by_bookkeeping) > LEAST
    wrong = {}
    for statement, parameters in sent.by_bookkeeping.items():
        planned = explain(empty, statement, parameters)
        # A tick looks at all definitions, which are few.
        known_ones = "job_definitions" if "INTO job_ticks" in statement else "nothing"
        problems = [fault for fault in faults(planned) if known_ones not in fault]
        first = known.setdefault(statement, paths(planned))
        if paths(planned) != first:
            problems += ["other paths", *(set(first) ^ set(paths(planned)))]
        if problems:
            wrong[statement] = problems
    assert wrong == {}


# The cost of reads

NEVER = "'2999-01-01 00:00:00'"
#: The reads of pages, commands and ticks.
READS: dict[str, Callable[[State], object]] = {
    "health": read_verdict,
    "overview": read_overview,
    "definitions": list_definitions,
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
    "effects in doubt": lambda state: list_effects(state, doubts_only=True, limit=10),
    "operations": list_operations,
    "operations on a run": lambda state: operations_on(state, 1),
    "overdue runs as due": lambda state: list_runs(
        state, RunFilter(overdue=True), order=sorting_of(None, True)
    ),
    "queued runs of a task": lambda state: list_runs(state, RunFilter(status="queued", task="one")),
    "claim": lambda state: claim(state, "task"),
    "claim of the last": lambda state: claim(state, "last"),
}
OF_CLAIMS = ("claim", "claim of the last")
#: The reads that must not cost more if the backlog is longer.
OF_A_BACKLOG = (
    *("health", "overview", "queued runs as due", "overdue runs as due", "one batch"),
    *("runs of a batch", "who has a key", "runs by status", "runs of a queue by status"),
    "queues",
    *OF_CLAIMS,
)


@pytest.fixture
def state(app: Flask, jobs: CronJobs) -> State:
    """An app with a definition, a few runs of each status, and ten of the task ``last``."""
    state = state_of(app)
    rows = Rows(state.engine)
    rows.definition("one")
    rows.tick()
    for status in ("queued", "failed", "running", "dead", "cancelled"):
        rows.run(status, age=3600)
    with state.engine.begin() as connection:
        new = "INSERT INTO job_batches (key) VALUES ('reports') RETURNING id"
        batch = connection.execute(text(new)).scalar_one()
    for status in ("queued", "succeeded", "dead"):
        rows.run(status, age=3600, batch_id=batch)
    RETRY.many(state, [rows.run("dead", age=3600) for _ in range(3)])
    strict = {"concurrency_key": "k", "concurrency_limit": 1, "strict": True}
    rows.run("dead", age=3600, **strict)
    rows.run("queued", age=3600, gate="order", **strict)
    rows.run("running", job_type="task", **keyed_by("busy"), concurrency_share=1)
    for number in range(5):
        rows.run(job_type="last", run_at=ago(60))
        rows.run(job_type="last", run_at=ago(60), **keyed_by(f"mine {number}"))
    return state


def keyed(key: str, **columns: str) -> dict[str, str]:
    return {"concurrency_key": key, "concurrency_limit": "1", **columns}


def keyed_by(key: str) -> dict[str, Any]:
    return {"concurrency_key": key, "concurrency_limit": 1}


#: Runs that have finished, one each minute until an hour ago.
FINISHED = {
    "definition_id": "1", "status": "'succeeded'", "attempts": "1", "scheduled_for": "{at}",
    "started_at": "{at}", "finished_at": "{at}", "job_type": "'send'",
}  # fmt: skip
#: The rows that are added: their columns, as SQL that may use the row's number.
GROWTHS: dict[str, dict[str, str]] = {
    "finished": FINISHED,
    "backlog": {
        "job_type": "CASE i % 5 WHEN 0 THEN 'removed' ELSE 'send' END", "priority": "i % 3",
        "concurrency_key": "CASE WHEN i % 4 = 0 THEN 'k' || i END",
        "concurrency_limit": "CASE WHEN i % 4 = 0 THEN 1 END",
    },
    "keys": keyed("'key ' || i", job_type="'task'"),
    "a busy key": keyed("'busy'", job_type="'task'"),
    "many other tasks": {"job_type": "'theirs ' || i"},
    "delayed, 50 priorities": {"job_type": "'task'", "run_at": NEVER, "priority": "i % 50"},
    "delayed keys": keyed("'key ' || i", job_type="'task'", run_at=NEVER, priority="5"),
    "keys of another task": keyed("'k' || i % 1000", job_type="'theirs'"),
}  # fmt: skip
#: How many rows there are first, and how many more come: so many that each count stops at its cap.
ROWS = {"finished": (1_000, 15_000), "backlog": (30_000, 45_000)}


def claim(state: State, task: str) -> None:
    """Send the statement that claims, and roll it back."""
    d = dialect_of(state.engine)
    values = ClaimRequest(100, "host:1:x", (task,)).parameters(d)
    with state.engine.connect() as connection:
        connection.execute(claim_statement(d), values)
        connection.rollback()


@pytest.mark.parametrize(
    ("growth", "analyzed"),
    [
        (growth, analyzed)
        for growth in GROWTHS
        for analyzed in (False, True)
        if analyzed or growth != "finished"  # A table of this size has been analyzed.
    ],
)
def test_reads_cost_no_more_with_many_more_rows(state: State, growth: str, analyzed: bool) -> None:
    names = {"finished": tuple(READS), "backlog": OF_A_BACKLOG}.get(growth, OF_CLAIMS)
    if growth == "backlog" and analyzed:  # Otherwise PostgreSQL would not choose the best index.
        names += ("queued runs of a task",)
    first, more = ROWS.get(growth, (2_000, 18_000))
    few = costs_beside(state, names, growth, first, 1, analyzed)
    many = costs_beside(state, names, growth, more, first + 1, analyzed)
    print(few, many)
    assert [name for name in names if many[name] > 2 * few[name] + 300] == [], (few, many)


def costs_beside(
    state: State, names: Sequence[str], growth: str, count: int, start: int, analyzed: bool
) -> dict[str, int]:
    """Add *count* rows; return the costs of these reads."""
    at = later(state.engine, "'now'", "-60 - i")
    usual = {} if growth == "finished" else {"run_at": LONG_AGO, "scheduled_for": LONG_AGO}
    columns = {name: sql.format(at=at) for name, sql in {**usual, **GROWTHS[growth]}.items()}
    add(state.engine, "job_runs", count, start, **columns)
    if analyzed:
        run(state.engine, "ANALYZE")
    costs = {}
    for name in names:
        READS[name](state)  # The first call also reads what a process reads only once.
        with sent_by(state.engine) as sent:
            READS[name](state)
        costs[name] = cost(state.engine, sent.statements, ours=name.startswith("claim"))
    return costs


@pytest.mark.parametrize("part", ["look", "locked", "candidate", "takes"])
def test_limit_of_a_claim_is_taken_once(state: State, part: str) -> None:
    """If a planner ran a LIMIT subquery again, a claim could take more rows than the limit."""
    d = dialect_of(state.engine)
    values = ClaimRequest(100, "host:1:y", ("task",)).parameters(d)
    plan = shown_plan(state, claim_statement(d).text, values)
    once = "MATERIALIZE" if d.one_writer else "CTE"
    assert f"{once} {part}" in [line.strip() for line in plan.splitlines()], plan


def shown_plan(state: State, sql: str, values: dict[str, Any]) -> str:
    """Return the plan of a statement as text."""
    d = dialect_of(state.engine)
    how = "EXPLAIN QUERY PLAN" if d.one_writer else "EXPLAIN"
    with state.engine.connect() as connection:
        if not d.one_writer:
            connection.exec_driver_sql(SETTINGS)
        rows = connection.execute(text(f"{how} {sql}"), values).all()
    return "\n".join(str(row[-1]) for row in rows)


def test_pruning_goes_along_an_index_without_the_members_of_batches(state: State) -> None:
    """Runs that must stay, as their batch does, would come before all others in the index."""
    query = pruning.oldest(dialect_of(state.engine), pruning.RUNS)
    values = {"place": LONG_AGO.strip("'"), "retention": 60.0, "chunk": 10}
    assert "ix_job_runs_finished" in shown_plan(state, query, values)
    (index,) = (i for i in RUNS.indexes if i.name == "ix_job_runs_finished")
    assert "batch_id IS NULL" in str(index.dialect_options["sqlite"]["where"])
