"""Each statement of bookkeeping finds its rows by indexes, whatever the statistics say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from flask_cronjobs.config import Settings
from flask_cronjobs.jobs import orders, rates, steps, ticks
from flask_cronjobs.jobs.batches.ending import end_batches
from flask_cronjobs.jobs.batches.rows import NewBatch, close, hold_open, open_batch
from flask_cronjobs.jobs.definitions.rows import DefinitionRow
from flask_cronjobs.jobs.operations import Act, Operation
from flask_cronjobs.jobs.pruning import prune, seconds_behind
from flask_cronjobs.jobs.runs.changes import Operator
from flask_cronjobs.jobs.runs.leases import (
    give_up_exhausted,
    in_brokers,
    look_for_expired,
    progress,
    renew,
    watch,
)
from flask_cronjobs.jobs.runs.outcomes import FAILURES_KEPT, write_output
from flask_cronjobs.models import JobRun
from flask_cronjobs.registry.options import Rate
from flask_cronjobs.types import Claim
from tests.kit import Kit, outcome, plan, spec
from tests.plans import (
    LONG_AGO,
    Sent,
    add,
    explain,
    faults,
    later,
    paths,
    run,
    sent_by,
    tables_of,
    walked,
)

pytestmark = pytest.mark.slow

DAY = 86400.0
TABLES = ", ".join(JobRun.metadata.tables)


def waiting(count: int, columns: str = "", values: str = "") -> str:
    """The statement that inserts so many runs; *values* is SQL for the other *columns*."""
    return (
        f"INSERT INTO job_runs (job_type, run_at{columns})"
        f" SELECT 'task', timestamptz '2026-01-01'{values} FROM generate_series(1, {count}) AS n(i)"
    )


def pretend(rows: float, size: int) -> str:
    """The statement by which each table and index seems to have so many rows, on so many pages."""
    names = ", ".join(f"'{table}'::regclass" for table in JobRun.metadata.tables)
    return (
        f"UPDATE pg_class SET reltuples = {rows}, relpages = {size} WHERE oid IN ({names})"
        f" OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN ({names}))"
    )


MANY = waiting(3_000)
ENDED = waiting(5_000, ", status, finished_at", ", 'succeeded', now()")
KEYED = waiting(3_000, ", concurrency_key, concurrency_limit", ", 'key ' || i % 500, 1")
#: What happened to the tables before a statement is planned.
STATISTICS = {
    "never analyzed": (MANY,),
    "analyzed": (MANY, "VACUUM ANALYZE"),
    "analyzed when empty": (waiting(1), "VACUUM ANALYZE", MANY),
    "analyzed when all had finished": (ENDED, "ANALYZE", MANY),
    # As many as a claim looks at: then it looks as if a claim took all.
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
    # As if a vacuum had found no row on a thousand pages.
    "looks sparse": (MANY, pretend(0, 1_000)),
    "looks like ten million": (MANY, "ANALYZE", pretend(10_000_000, 100)),
}


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """A store whose tables PostgreSQL does not vacuum or analyze by itself."""
    with tables_of("postgresql", request, tmp_path_factory.getbasetemp()) as engine:
        made = Kit(engine)
        yield made
        made.close()


@pytest.fixture
def empty(kit: Kit) -> Engine:
    """The store without rows, and without statistics."""
    run(kit.engine, f"TRUNCATE {TABLES}", "DELETE FROM pg_statistic", pretend(-1, 0))
    return kit.engine


@pytest.fixture(scope="module")
def sent(kit: Kit) -> Sent:
    return sent_for_all(kit)


def sent_for_all(kit: Kit) -> Sent:
    """Each statement that bookkeeping sends, over the life of some runs."""
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
    others = [failed, outcome(first[2], "dead")]
    done = outcome(first[0], "succeeded", result={"a": 1})
    kit.claims.record_and_claim([done], kit.request(limit=1))
    claimed = kit.claims.record_and_claim(others, kit.request(limit=1)).claims
    kit.claims.already_recorded(others)
    kit.claims.release_token(first[3].token)
    finish(kit, claimed)
    hand_on(kit)
    claim_far(kit)
    give_turns(kit)
    open_starts(kit)


def open_starts(kit: Kit) -> None:
    """Let runs begin at a rate, take their starts, hold a key, and mend."""
    limits = {"task": Rate(timedelta(seconds=60), burst=2)}
    claims: tuple[Claim, ...] = ()
    kit.runs(3, rate_key="key", rate_mark="waits")
    for number in (2, 0):  # The key has no row at first.
        assert rates.open_starts(kit.books, limits, kit.request()).opened == number
        claims = kit.claim(side_by_side=True) or claims
        rates.spend(kit.books, limits, claims)
    asked = outcome(claims[0], "failed", delay=30.0, holds_rate=True)
    rates.record_and_hold(kit.books, asked, limits["task"])
    finish(kit, claims[1:])
    kit.runs(2, rate_key="key", rate_mark="waits")
    rates.mend(kit.books, ["task"], [])


def hand_on(kit: Kit) -> None:
    """Hand a run on to an engine, count it, and begin it there."""
    kit.runs(1)
    (claim,) = kit.claim(limit=1, token="handed:celery:host:1:a")
    in_brokers(kit.books, "default")
    handed = (claim.id, claim.token)
    finish(kit, kit.claims.record_and_claim([], kit.request(1, handed=handed)).claims)


def claim_far(kit: Kit) -> None:
    """Claim from behind the front of the queue, without keys and with."""
    for key in (None, "far"):
        limit = 1 if key else None
        with kit.engine.begin() as connection:
            many = [{"job_type": "other", "priority": 9, "concurrency_key": key}] * 300
            connection.execute(insert(JobRun).values(concurrency_limit=limit), many)
        finish(kit, kit.claim(limit=2))
    kit.sql("DELETE FROM job_runs WHERE job_type = 'other'")


def give_turns(kit: Kit) -> None:
    """Take up the marks of a strict order: of runs that came, ended, were retried, are deleted."""
    values: dict[str, Any] = {
        "concurrency_key": "in order",
        "concurrency_limit": 1,
        "strict": True,
    }
    first, second, *_ = [kit.run(order_mark="new", **values) for _ in range(4)]
    orders.give(kit.books)
    # Of a single id, PostgreSQL would make a constant, and compare it in a loop of one row.
    kit.operator.cancel([first, 0], "no longer wanted")
    orders.give(kit.books)
    kit.operator.retry([first, 0])
    orders.give(kit.books)
    assert [kit.row(each).order_mark for each in (first, second)] == [None, "waits"]
    kit.sql("DELETE FROM job_runs WHERE id = :id", id=first)
    orders.mend(kit.books)
    orders.held_first(kit.books, "nobody")
    kit.sql("DELETE FROM job_runs WHERE concurrency_key = 'in order'")


def finish(kit: Kit, claims: tuple[Claim, ...]) -> None:
    """Record that they have succeeded."""
    kit.claims.record_and_claim([outcome(claim, "succeeded") for claim in claims], None)


def end_all_batches(kit: Kit) -> None:
    """Open, fill and close a batch, retry a run of it, and end it."""
    with kit.engine.begin() as connection:
        made = NewBatch(
            "b",
            "task",
            "{}",
            {"priority": 0, "queue": "default", "max_attempts": 3, "strict": False},
        )
        batch, _ = open_batch(connection, kit.books.dialect, made)
        assert hold_open(connection, batch)
    dead, *others = kit.runs(3, batch_id=batch)
    died = "status = 'dead', finished_at = '2026-01-01'"
    kit.sql(f"UPDATE job_runs SET {died} WHERE id = :id", id=dead)
    with kit.engine.begin() as connection:
        assert close(connection, kit.books.dialect, batch)
    kit.operator.retry([dead, *others])
    assert end_batches(kit.books, [batch]) == 0
    kit.sql("DELETE FROM job_runs WHERE batch_id = :id", id=batch)
    assert end_batches(kit.books) == 1


def plan_definitions(kit: Kit) -> None:
    """Read definitions, record a slot, and change one."""
    kit.define()
    (found,) = read(kit)
    assert found.next_run_at is not None
    kit.slots.record_slots({found.id: plan(found.next_run_at)})
    (found,) = [kit.found("definition")]
    kit.definitions.change(found, spec(timezone="Europe/Rome"), datetime.now(timezone.utc), "app")
    kit.definitions.mark_declared([found.id], "app")
    assert not kit.definitions.has_pings()
    assert kit.definitions.ping_urls() == {}
    assert kit.definitions.name_and_timezone(found.id) == ("definition", "Europe/Rome")
    kit.definitions.pause(found)
    paused = kit.found("definition")
    ended = plan(paused.now)
    assert kit.definitions.skip_pause(paused, ended, resume=True) is not None


def read(kit: Kit) -> list[DefinitionRow]:
    """The definitions that are due."""
    return kit.definitions.read(("definition",), ("task",))


def keep_up(kit: Kit) -> None:
    """Take back lost runs, change runs as an operator, and prune."""
    look_for_expired(kit.books)
    give_up_exhausted(kit.books, 100)
    ids = [row.id for row in kit.all_rows()]
    noted = Operation.begin(kit.books, Act("retried", "runs", "ada"), len(ids))
    operator = Operator(kit.books, noted)
    operator.cancel(ids, "no longer wanted")
    operator.retry(ids)
    noted.end(kit.books)
    Operator(kit.books, Operation(Act("retried", "a run", "ada", ids[0]))).retry([ids[0], 0])
    ended = "status = 'succeeded', finished_at = '2026-01-01'"
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


#: Along what SQLite may go: indexes of what is few, such as runs that wait; ticks, to the latest.
OF_FEW = {
    *("ix_job_runs_runnable", "ix_job_runs_runnable_front", "ix_job_runs_lease"),
    *("ix_job_runs_unplaced", "ix_job_runs_spent", "ix_job_definitions_pinged"),
    *("ix_job_batches_open", "ix_job_ticks_started_at"),
}
#: Tables of which it makes Bloom filters, once it knows that they are not large.
SMALL = {"job_definitions", "job_batches"}


@pytest.mark.parametrize("few", [OF_FEW, OF_FEW | SMALL], ids=["unknown", "analyzed"])
def test_sqlite_goes_along_indexes_of_few_rows_alone(
    request: pytest.FixtureRequest, tmp_path: Path, few: set[str]
) -> None:
    with tables_of("sqlite", request, tmp_path) as engine:
        kit = Kit(engine)
        sent = sent_for_all(kit).by_bookkeeping
        if few != OF_FEW:
            fill(engine)
            run(engine, "ANALYZE")
        found = {each: walked(engine, each, given) - few for each, given in sent.items()}
        kit.close()
    assert len(sent) > 80
    wrong = {" ".join(each.split()): names for each, names in found.items() if names}
    # A tick looks at all definitions.
    assert {each: names for each, names in wrong.items() if "INTO job_ticks" not in each} == {}


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
    """The paths of each statement that were seen first."""
    return {}


@pytest.mark.parametrize("statistics", STATISTICS)
def test_each_statement_keeps_to_its_indexes(
    sent: Sent, empty: Engine, known: dict[str, list[str]], statistics: str
) -> None:
    run(empty, *STATISTICS[statistics])
    assert len(sent.by_bookkeeping) > 80
    wrong = {}
    for statement, parameters in sent.by_bookkeeping.items():
        planned = explain(empty, statement, parameters)
        # A tick looks at all definitions, which are few.
        known_ones = "job_definitions" if "INTO job_ticks" in statement else "nothing"
        found = [each for each in faults(planned) if known_ones not in each]
        first = known.setdefault(statement, paths(planned))
        if paths(planned) != first:
            found += ["other paths", *(set(first) ^ set(paths(planned)))]
        if found:
            wrong[statement] = found
    assert wrong == {}
