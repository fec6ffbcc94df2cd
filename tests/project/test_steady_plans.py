"""PostgreSQL plans each statement of bookkeeping in one way, whatever its statistics say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, insert, text

from flask_cronjobs.config import Settings
from flask_cronjobs.jobs import orders
from flask_cronjobs.jobs.batches.ending import end_batches
from flask_cronjobs.jobs.batches.rows import OpenBatch, close, open_batch
from flask_cronjobs.jobs.definitions.rows import DefinitionRow
from flask_cronjobs.jobs.definitions.slots import late_slots, mark_late
from flask_cronjobs.jobs.outcomes import write_output
from flask_cronjobs.jobs.pruning import behind, prune
from flask_cronjobs.jobs.runs.changes import Operator
from flask_cronjobs.jobs.runs.handed import in_brokers
from flask_cronjobs.jobs.runs.leases import (
    give_up_exhausted,
    look_for_expired,
    progress,
    renew,
    watch,
)
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import Claim, LateSlot
from tests.kit import Kit, outcome, plan, spec
from tests.plans import Sent, explain, faults, pages, paths, sent_by
from tests.postgres import Server

pytestmark = pytest.mark.slow

DAY = 86400.0
TABLES = (
    *("job_runs", "job_definitions", "job_effects", "job_ticks", "job_failures", "job_outputs"),
    *("job_pauses", "job_batches"),
)
WAITING = "job_type, run_at"
KEYED = f"{WAITING}, concurrency_key, concurrency_limit"
FINISHED = f"{WAITING}, status, finished_at"
LONG_AGO = "timestamptz '2026-01-01'"


def load(engine: Engine, count: int, columns: str = WAITING, values: str = "") -> None:
    """Insert so many runs; *values* is SQL for the columns after `WAITING`."""
    run(
        engine,
        f"INSERT INTO job_runs ({columns}) SELECT 'task', {LONG_AGO} {values}"
        f" FROM generate_series(1, {count}) AS n(i)",
    )


def run(engine: Engine, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(text(statement))


def pretend(engine: Engine, rows: float, size: int) -> None:
    """Let the statistics say that each table and index has so many rows, on so many pages."""
    names = ", ".join(f"'{table}'::regclass" for table in TABLES)
    run(
        engine,
        f"UPDATE pg_class SET reltuples = {rows}, relpages = {size} WHERE oid IN ({names})"
        f" OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN ({names}))",
    )


def never_analyzed(engine: Engine) -> None:
    load(engine, 3_000)


def analyzed(engine: Engine) -> None:
    load(engine, 3_000)
    run(engine, "VACUUM ANALYZE")


def analyzed_when_empty(engine: Engine) -> None:
    load(engine, 1)
    run(engine, "VACUUM ANALYZE")
    load(engine, 3_000)


def analyzed_when_all_had_finished(engine: Engine) -> None:
    load(engine, 5_000, FINISHED, ", 'succeeded', now()")
    run(engine, "ANALYZE")
    load(engine, 3_000)


def analyzed_when_few_waited(engine: Engine) -> None:
    """As many as a claim looks at: then it looks as if a claim took all."""
    load(engine, 300)
    load(engine, 5_000, FINISHED, ", 'succeeded', now()")
    run(engine, "ANALYZE", "DELETE FROM job_runs WHERE status = 'succeeded'")
    load(engine, 3_000)


def analyzed_when_another_task_waited(engine: Engine) -> None:
    load(engine, 3_000)
    run(engine, "UPDATE job_runs SET job_type = 'other'", "ANALYZE", "DELETE FROM job_runs")
    load(engine, 3_000)


def bloated(engine: Engine) -> None:
    load(engine, 20_000)
    run(engine, "ANALYZE", "DELETE FROM job_runs")
    load(engine, 3_000)
    run(engine, "ANALYZE")


def keyed(engine: Engine) -> None:
    load(engine, 3_000, KEYED, ", 'key ' || i % 500, 1")


def keyed_and_analyzed(engine: Engine) -> None:
    keyed(engine)
    run(engine, "ANALYZE")


def looks_empty(engine: Engine) -> None:
    load(engine, 3_000)
    pretend(engine, 0, 1)


def looks_sparse(engine: Engine) -> None:
    """As if a vacuum had found no row on a thousand pages."""
    load(engine, 3_000)
    pretend(engine, 0, 1_000)


def looks_like_ten_million(engine: Engine) -> None:
    load(engine, 3_000)
    run(engine, "ANALYZE")
    pretend(engine, 10_000_000, 100)


STATISTICS = [
    *(never_analyzed, analyzed, analyzed_when_empty, analyzed_when_all_had_finished),
    *(analyzed_when_few_waited, analyzed_when_another_task_waited, bloated),
    *(keyed, keyed_and_analyzed, looks_empty, looks_sparse, looks_like_ten_million),
]


@pytest.fixture(scope="module")
def kit(postgres_server: Server) -> Iterator[Kit]:
    """A store whose tables PostgreSQL does not vacuum or analyze by itself."""
    url = postgres_server.create_database()
    made = Kit.on(url)
    for table in TABLES:
        run(made.engine, f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    yield made
    made.close()
    postgres_server.drop_database(url)


@pytest.fixture
def empty(kit: Kit) -> Kit:
    """The store without rows, and without statistics."""
    run(kit.engine, f"TRUNCATE {', '.join(TABLES)}", "DELETE FROM pg_statistic")
    pretend(kit.engine, -1, 0)
    return kit


@pytest.fixture(scope="module")
def sent(kit: Kit) -> Sent:
    """Each statement that bookkeeping sends, over the life of some runs."""
    with sent_by(kit.engine) as sent:
        exchange_all(kit)
        plan_definitions(kit)
        end_all_batches(kit)
        keep_up(kit)
    return sent


def exchange_all(kit: Kit) -> None:
    """Claim in every way, record every kind of outcome, and renew in between."""
    kit.runs(6, max_attempts=3)
    first = kit.claim(limit=4)
    kit.runs(2, concurrency_key="key", concurrency_limit=1)
    renew(kit.books, first, 60.0)
    watch(kit.books, first)
    progress(kit.books, first[0], 0.5, "half")
    write_output(kit.books, first[0], "printed")
    others = [outcome(first[1], "failed"), outcome(first[2], "dead")]
    done = outcome(first[0], "succeeded", result={"a": 1})
    kit.claims.exchange([done], kit.request(limit=1))
    claimed = kit.claims.exchange(others, kit.request(limit=1)).claims
    kit.claims.already_recorded(others)
    kit.claims.release_token(first[3].token)
    finish(kit, claimed)
    hand_on(kit)
    claim_far(kit)
    give_turns(kit)


def hand_on(kit: Kit) -> None:
    """Hand a run on to an engine, count it, and begin it there."""
    kit.runs(1)
    (claim,) = kit.claim(limit=1, token="handed:celery:host:1:a")
    in_brokers(kit.books, "default")
    handed = (claim.id, claim.token)
    finish(kit, kit.claims.exchange([], kit.request(1, handed=handed)).claims)


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
        "on_dead": "skip",
    }
    first, second, *_ = [kit.run(order_mark="new", **values) for _ in range(4)]
    orders.give(kit.books)
    # Of a single id, PostgreSQL would make a constant, and compare it in a loop of one row.
    Operator(kit.books).cancel([first, 0], "no longer wanted")
    orders.give(kit.books)
    Operator(kit.books).retry([first, 0])
    orders.give(kit.books)
    assert [kit.row(each).order_mark for each in (first, second)] == [None, "waits"]
    kit.sql("DELETE FROM job_runs WHERE id = :id", id=first)
    orders.mend(kit.books)
    orders.held_first(kit.books, "nobody")
    kit.sql("DELETE FROM job_runs WHERE concurrency_key = 'in order'")


def finish(kit: Kit, claims: tuple[Claim, ...]) -> None:
    """Record that they have succeeded."""
    kit.claims.exchange([outcome(claim, "succeeded") for claim in claims], None)


def end_all_batches(kit: Kit) -> None:
    """Open, fill, stop and close batches, end them, and open one again."""
    with kit.engine.begin() as connection:
        made = OpenBatch("b", "stop", None, "task", "{}", {"priority": 0, "queue": "default",
                         "max_attempts": 3})  # fmt: skip
        batch = open_batch(connection, kit.books.dialect, made)
    dead, *others = kit.runs(3, batch_id=batch)
    kit.sql("UPDATE job_runs SET status = 'dead', finished_at = now() WHERE id = :id", id=dead)
    close(kit.books, batch or 0)
    assert end_batches(kit.books, lambda outcome: None, [batch or 0]).enqueued == 1
    Operator(kit.books).retry([dead, *others])
    end_batches(kit.books, lambda outcome: None)


def plan_definitions(kit: Kit) -> None:
    """Read definitions, record a slot, and change one."""
    kit.define()
    (found,) = read(kit)
    assert found.next_run_at is not None
    kit.slots.record_slots([plan(found.id, found.next_run_at)])
    (found,) = [kit.found("definition")]
    kit.definitions.change(found, spec(timezone="Europe/Rome"), datetime.now(timezone.utc), "app")
    kit.definitions.mark_declared([found.id], "app")
    assert not kit.definitions.has_pings()
    late_slots(kit.books, 600.0)
    mark_late(kit.books, LateSlot(found.id, "definition", "task", found.now, 1.0, None))
    assert kit.definitions.ping_urls() == {}
    assert kit.definitions.name_and_timezone(found.id) == ("definition", "Europe/Rome")
    kit.definitions.pause(found)
    paused = kit.found("definition")
    pause = plan(found.id, paused.now)
    assert kit.definitions.skip_pause(paused, pause, resume=True) is not None


def read(kit: Kit) -> list[DefinitionRow]:
    """The definitions that are due."""
    return kit.definitions.read(("definition",), ("task",))


def keep_up(kit: Kit) -> None:
    """Take back lost runs, change runs as an operator, and prune."""
    look_for_expired(kit.books)
    give_up_exhausted(kit.books, 100)
    ids = [row.id for row in kit.all_rows()]
    operator = Operator(kit.books)
    operator.cancel(ids, "no longer wanted")
    operator.retry(ids)
    ended = "status = 'succeeded', finished_at = '2026-01-01'"
    kit.sql(f"UPDATE job_runs SET {ended} WHERE status <> 'running'")
    kit.sql(
        "INSERT INTO job_ticks (worker, host, pid, started_at) VALUES ('', '', 1, '2026-01-01')"
    )
    kit.sql("INSERT INTO job_effects (key, state, done_at) VALUES ('', 'done', '2026-01-01')")
    behind(kit.books.rows, kit.books.dialect, Settings(retention=DAY, retention_dead=DAY))
    for _ in prune(kit.books, Settings(retention=DAY, retention_dead=DAY)):
        pass


@pytest.fixture(scope="module")
def known(kit: Kit) -> dict[str, list[str]]:
    """The paths of each statement that were seen first."""
    return {}


@pytest.mark.parametrize("statistics", STATISTICS)
def test_each_statement_keeps_to_its_indexes(
    sent: Sent, empty: Kit, known: dict[str, list[str]], statistics: Callable[[Engine], None]
) -> None:
    statistics(empty.engine)
    assert len(sent.statements) > 20
    wrong = {}
    for statement, parameters in sent.statements:
        planned = explain(empty.engine, statement, parameters)
        found = faults(planned)
        first = known.setdefault(statement, paths(planned))
        if paths(planned) != first:
            found += ["other paths", *(set(first) ^ set(paths(planned)))]
        if found:
            wrong[statement] = found
    assert wrong == {}


@pytest.mark.parametrize("analyze", [False, True], ids=["without statistics", "with statistics"])
def test_work_for_each_run_is_the_same_however_many_wait(
    sent: Sent, empty: Kit, analyze: bool
) -> None:
    """In pages of the server, for the exchange of 100 outcomes for 100 claims."""
    few = pages_of_an_exchange(empty, 1_000, analyze)
    many = pages_of_an_exchange(empty, 50_000, analyze)
    print(few, many)
    assert many < 1.3 * few


def pages_of_an_exchange(kit: Kit, waiting: int, analyze: bool) -> int:
    """So many pages it reads, when this many runs wait."""
    run(kit.engine, "TRUNCATE job_runs CASCADE")
    load(kit.engine, waiting)
    if analyze:
        run(kit.engine, "VACUUM ANALYZE")
    kit.claim(1)
    done = [outcome(claim, "succeeded") for claim in kit.claim(100)]
    with sent_by(kit.engine) as sent:
        kit.claims.exchange(done, kit.request(100))
    assert len(sent.statements) == 1
    # What it did is undone first, so that its explanation does the same.
    ids = ", ".join(str(each.id) for each in done)
    running = f"status = 'running', locked_by = '{done[0].token}', locked_until = now()"
    kit.sql(
        "UPDATE job_runs SET status = 'queued', attempts = 0, locked_by = NULL,"
        " locked_until = NULL WHERE status = 'running'"
    )
    kit.sql(f"UPDATE job_runs SET {running}, finished_at = NULL WHERE id IN ({ids})")
    return pages(explain(kit.engine, *sent.statements[0], "ANALYZE", "BUFFERS"))
