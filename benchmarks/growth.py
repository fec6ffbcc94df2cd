"""Measure what a run costs PostgreSQL, and how the costs grow with the finished runs that are kept.

    python -m benchmarks.growth [--short] [--sizes 10000,100000,…] [--only run|vacuum|growth]

1. ``run``: bytes of WAL of each step of a run's life, in batches of 100 and one at a time, and the
   bytes that a finished run takes in the table and in its indexes.
2. ``vacuum``: the index pages that a claim reads before the first run that waits, and the growth of
   the table, while runs come, end and are pruned: with PostgreSQL's settings for autovacuum and
   with ours. Here, autovacuum runs each second instead of each minute, so few runs suffice.
3. ``growth``: the median time of a claim of ten runs (with the record of the ten before), of an
   idle tick, of the page ``/jobs/`` and of pruning 1,000 runs, for each number of finished runs;
   and the blocks of the database that each reads, which other work on the machine does not change.

Exits 1 if an operation of ``growth`` reads more than `BOUND` times as many blocks with the most
finished runs as with the fewest. ``--plot FILE`` draws these blocks as an SVG.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection, text

from benchmarks import argument_parser
from benchmarks._chart import line_chart
from flask_cronjobs import CronJobs
from flask_cronjobs.config import Settings
from flask_cronjobs.core import prune as pruning
from flask_cronjobs.core.claim import ClaimRequest, record_and_claim
from flask_cronjobs.core.ticks import DELETED_AT_ONCE
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.models.columns import VACUUM_OFTEN
from flask_cronjobs.types import Outcome
from tests import postgres

SIZES = "10000,100000,1000000,10000000"
#: How many times as many blocks each may read with the most finished runs as with the fewest.
BOUND = 2.0
TASK = "send_mail"
PAYLOAD = '{"order": 123456, "template": "reminder"}'

FINISHED = f"""
INSERT INTO job_runs (job_type, payload, status, attempts, definition_id, scheduled_for, run_at,
    started_at, finished_at, created_at, updated_at)
SELECT '{TASK}', '{PAYLOAD}', 'succeeded', 1, CASE WHEN i % 2 = 0 THEN 1 END,
    at, at, at, at, at, at
FROM (SELECT i, now() - interval '13 days' + i * interval '100 ms' AS at
      FROM generate_series(CAST(:first AS bigint), :last) AS n(i)) AS finished
"""
ENQUEUE = f"""
INSERT INTO job_runs (job_type, payload) SELECT '{TASK}', '{PAYLOAD}' FROM generate_series(1, :runs)
"""
SIZE = """
SELECT relname, pg_relation_size(oid) AS bytes FROM pg_class WHERE oid = 'job_runs'::regclass
    OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'job_runs'::regclass)
"""
FRONT = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT id FROM job_runs
WHERE status IN ('queued', 'failed') AND gate IS NULL
ORDER BY priority DESC, run_at, id LIMIT 1
"""
BLOCKS = """
SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()
"""


class Database:
    """A database with the job tables, an app on it, and a connection to measure it.

    :ivar look: a connection in autocommit mode.
    """

    def __init__(self, url: str) -> None:
        self.app = Flask("growth")
        self.app.config.update(SQLALCHEMY_DATABASE_URI=url, SECRET_KEY="growth")
        self.db = SQLAlchemy(self.app)
        self.jobs = CronJobs(self.app, authorize=lambda action: True)
        self.task = self.jobs.task(name=TASK, schedule="0 0 1 1 *")(_do_nothing)
        self._tokens = count()
        with self.app.app_context():
            engine = self.db.engine
            create_tables(engine)
            self.look = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self.books = Bookkeeping(engine)

    def close(self) -> None:
        """Close all connections."""
        self.books.close()
        self.look.close()
        with self.app.app_context():
            self.db.engine.dispose()

    def sql(self, statement: str, **parameters: object) -> Any:
        """Execute a statement, and return the first column of its first row, if any."""
        result = self.look.execute(text(statement), parameters)
        return result.scalar() if result.returns_rows else None

    def record_and_claim(self, outcomes: list[Outcome], limit: int) -> list[Outcome]:
        """Record *outcomes* and claim *limit* runs; return successes for the claims."""
        token = f"host:1:{next(self._tokens)}"
        request = ClaimRequest(limit=limit, token=token, tasks=(TASK,)) if limit else None
        claims = record_and_claim(self.books, outcomes, request).claims
        return [Outcome(claim.id, token, "succeeded", 1, TASK) for claim in claims]

    def enqueue(self, runs: int) -> None:
        """Enqueue runs by one statement."""
        self.books.rows(text(ENQUEUE), {"runs": runs})

    def clear(self) -> None:
        """Delete all runs that have not succeeded."""
        for status in ("queued", "failed", "running", "dead"):
            self.sql(f"DELETE FROM job_runs WHERE status = '{status}'")

    def prune(self) -> int:
        """Delete the oldest thousand finished runs."""
        return next(pruning.prune(self.books, Settings(retention=0.0)))


def main() -> None:
    """Measure, print, and exit 1 if the limit is missed."""
    options = _options()
    sizes = [int(size) for size in options.sizes.split(",")]
    good = True
    with postgres.running_server() as server:
        _restart(server, "autovacuum_naptime = 1s")
        with _database(server) as database:
            version = database.sql("SHOW server_version")
        print(f"PostgreSQL {version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        if options.only in (None, "run"):
            cost_of_a_run(server, 1_000 if options.short else 10_000)
        if options.only in (None, "vacuum"):
            history, runs = (20_000, 5_000) if options.short else (1_000_000, 150_000)
            for name, ours in (("PostgreSQL's settings", False), ("our settings", True)):
                vacuum(server, name, ours, history, runs)
        if options.only in (None, "growth"):
            _restart(server, "autovacuum = off")  # Its reading would be counted.
            good = growth(server, sizes, options.rounds, options.plot)
    if not good:
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argument_parser("growth", __doc__, "a form for CI")
    parser.add_argument(
        "--sizes", default=None, help="numbers of finished runs, separated by commas"
    )
    parser.add_argument("--rounds", type=int, default=21, help="how often each is measured")
    parser.add_argument("--only", choices=("run", "vacuum", "growth"), help="one part alone")
    parser.add_argument("--plot", type=Path, help="draw an SVG into this file")
    options = parser.parse_args()
    options.sizes = options.sizes or ("10000,50000" if options.short else SIZES)
    return options


def _restart(server: postgres.Server, setting: str) -> None:
    if isinstance(server, postgres.LocalServer):
        with (server.root / "data/postgresql.conf").open("a") as file:
            file.write(f"{setting}\nmax_wal_size = 4GB\ncheckpoint_timeout = 30min\n")
        server.restart()


@contextmanager
def _database(server: postgres.Server) -> Iterator[Database]:
    url = server.create_database()
    database = Database(url)
    try:
        yield database
    finally:
        database.close()
        server.drop_database(url)


def cost_of_a_run(server: postgres.Server, runs: int) -> None:
    """Print the bytes of WAL of each step, and the bytes on disk of a finished run."""
    for batch, number in ((100, runs), (1, runs // 10)):
        with _database(server) as database:
            fill(database, 10 * runs)
            life(database, number, batch)  # So the next call logs few pages in full.
            database.sql("VACUUM job_runs")
            wal = life(database, number, batch)
        steps = ", ".join(f"{name} {used:.0f}" for name, used in wal.items())
        print(f"WAL a run, {batch:3} at once: {steps}; together {sum(wal.values()):.0f} bytes")
    with _database(server) as database:
        fill(database, 10 * runs)
        sizes = {row.relname: row.bytes / (10 * runs) for row in database.look.execute(text(SIZE))}
        table = sizes.pop("job_runs")
        indexes = ", ".join(f"{name} {size:.0f}" for name, size in sizes.items() if size >= 1)
        total = table + sum(sizes.values())
        print(f"a finished run takes {table:.0f} bytes in job_runs, {total:.0f} with {indexes}")


def life(database: Database, runs: int, batch: int) -> dict[str, float]:
    """Let *runs* runs go through all steps; return the bytes of WAL a run, by step."""
    batches: list[list[Outcome]] = []

    def claim() -> None:
        batches.append(database.record_and_claim([], batch))

    steps: dict[str, tuple[int, Callable[[], object]]] = {
        "enqueue": (runs // batch, lambda: database.enqueue(batch)),
        "claim": (runs // batch, claim),
        "outcome": (runs // batch, lambda: database.record_and_claim(batches.pop(), 0)),
        "prune": (max(runs // DELETED_AT_ONCE, 1), database.prune),
    }
    wal: dict[str, float] = {}
    for name, (times, step) in steps.items():
        before = database.sql("SELECT pg_current_wal_insert_lsn()")
        for _ in range(times):
            step()
        used = "SELECT pg_current_wal_insert_lsn() - CAST(:before AS pg_lsn)"
        wal[name] = float(database.sql(used, before=before)) / runs
    return wal


def vacuum(server: postgres.Server, name: str, ours: bool, history: int, runs: int) -> None:
    """Enqueue, end and prune runs beside *history* others; print what a claim has to read."""
    with _database(server) as database:
        if not ours:
            database.sql(f"ALTER TABLE job_runs RESET ({', '.join(VACUUM_OFTEN)})")
        fill(database, history)
        before = database.sql("SELECT pg_relation_size('job_runs')")
        pages: list[int] = []
        for _ in range(runs // 1000):
            database.enqueue(1000)
            outcomes: list[Outcome] = []
            for _ in range(10):
                outcomes = database.record_and_claim(outcomes, 100)
            pages.append(pages_to_the_front(database.look))
            database.record_and_claim(outcomes, 0)
            database.prune()
        after = database.sql("SELECT pg_relation_size('job_runs')")
    print(
        f"vacuum by {name}, beside {history:,} finished runs: a claim reads "
        f"{statistics.median(pages):.0f} pages (at most {max(pages)}) before the first run that "
        f"waits; {runs:,} runs made the table {after / before - 1:.0%} larger",
        flush=True,
    )


def pages_to_the_front(connection: Connection) -> int:
    """Return how many pages it takes to find the front of the queue."""
    ((plan,),) = connection.execute(text(FRONT)).scalars().all()
    top: dict[str, int] = plan["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"]


def growth(server: postgres.Server, sizes: list[int], rounds: int, plot: Path | None) -> bool:
    """Print the cost of each operation by the finished runs; return whether all stay flat."""
    milliseconds: dict[str, list[float]] = {}
    blocks: dict[str, list[float]] = {}
    with _database(server) as database, database.app.app_context():
        for size in sizes:
            database.clear()
            fill(database, size - database.sql("SELECT count(*) FROM job_runs"))
            print(f"{size:,} finished runs:", end="", flush=True)
            for name, operation in operations(database).items():
                elapsed, read_blocks = cost(database, operation, rounds)
                milliseconds.setdefault(name, []).append(elapsed)
                blocks.setdefault(name, []).append(read_blocks)
                print(f"   {name} {elapsed:.2f} ms, {read_blocks:.0f} blocks", end="", flush=True)
            print()
    for name, values in milliseconds.items():
        ratio, read_blocks = values[-1] / values[0], blocks[name][-1] / blocks[name][0]
        print(f"{name}: with {sizes[-1] // sizes[0]:,} times the rows {ratio:.2f} times the time, "
              f"{read_blocks:.2f} times the blocks")  # fmt: skip
    if plot is not None:
        lines = {name: [value / values[0] for value in values] for name, values in blocks.items()}
        title = f"Blocks read, compared to {sizes[0]:,} finished runs"
        labels = [f"{size:,}" for size in sizes]
        plot.write_text(line_chart(title, labels, "finished runs in the table", lines))
    grown = [name for name, values in blocks.items() if values[-1] > BOUND * values[0]]
    if grown:
        print(f"more than {BOUND:g} times the blocks: {', '.join(grown)}")
    return not grown


def operations(database: Database) -> dict[str, Callable[[], object]]:
    """Return the operations to measure; each leaves as much to do for the next call."""
    database.enqueue(2_000)
    outcomes: list[Outcome] = []
    client = database.app.test_client()

    def claim() -> None:
        outcomes[:] = database.record_and_claim(outcomes, 10)

    def idle_tick() -> None:
        report = database.jobs.tick(queues=["nobody"])
        assert report.attempts == 0

    def page() -> None:
        assert client.get("/jobs/").status_code in (200, 503)

    def prune() -> None:
        assert database.prune() == DELETED_AT_ONCE

    return {"claim": claim, "idle tick": idle_tick, "page": page, "prune": prune}


def cost(database: Database, operation: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of *operation*, and the mean blocks that it reads."""
    if operation.__name__ == "prune":
        rounds = min(rounds, 5)
    operation()
    before, times = _blocks(database), list[float]()
    for _ in range(rounds):
        started = time.perf_counter()
        operation()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), (_blocks(database) - before) / rounds


def _blocks(database: Database) -> int:
    """Return how many blocks were read so far, after every process of the server has reported."""
    flush = text("SELECT pg_stat_force_next_flush()")
    database.books.rows(flush)
    database.look.execute(flush)  # Otherwise reads of `fill` could count as the first operation's.
    database.db.session.execute(flush)
    database.db.session.rollback()
    time.sleep(0.1)
    return int(database.sql(BLOCKS))


def fill(database: Database, number: int) -> None:
    """Add finished runs; vacuum and analyze them, as autovacuum would."""
    first = database.sql("SELECT COALESCE(max(id), 0) + 1 FROM job_runs")
    for start in range(first, first + number, 500_000):
        last = min(start + 500_000, first + number) - 1
        database.sql(FINISHED, first=start, last=last)
    database.sql("VACUUM (ANALYZE, FREEZE) job_runs")
    database.sql("CHECKPOINT")


def _do_nothing() -> None: ...


if __name__ == "__main__":
    main()
