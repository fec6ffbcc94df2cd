"""Measure whether the tick of one host deletes what is past its retention as fast as it comes.

    python -m benchmarks.prune [--short] [--rows 1000000,5000000] [--only postgresql|sqlite]

A database has as many finished runs as `--rows` says, all younger than their retention, one in ten
of them in a batch. Then the runs of one minute at 1,000 a second pass it: 60,000, one in ten in
batches of 1 to 15, one in ten with an effect and one with output, one in twenty with a failed
attempt, one in fifty dead. Ticks prune them. Meanwhile a connection of its own renews the lease
of a run every 20 ms, as a worker does, and notes for how long it waits.

Prints the seconds of each round, the runs a second, the CPU time of this process and the server,
and the waits. Exits 1 if the median round of a database takes more than `BOUND` seconds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, text

from benchmarks import argument_parser
from benchmarks._cpu import Clock
from flask_cronjobs import CronJobs
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.dialect import dialect_of
from tests import postgres

#: How many seconds pruning may take for the runs of one minute.
BOUND = 10.0
MINUTE = 60_000
DAY = 86400
#: How long ago old rows ended: ten minutes past their retention.
OLD = 14 * DAY + 600
OLD_DEAD = 90 * DAY + 600
CHUNK = 200_000

#: The number of a member's batch: of each thirty members in turn, eight batches of 1 to 15 runs.
BATCH_OF = """
    CASE WHEN {m} % 30 < 3 THEN {m} % 30 WHEN {m} % 30 < 5 THEN 3 WHEN {m} % 30 < 7 THEN 4
         WHEN {m} % 30 < 10 THEN 5 WHEN {m} % 30 < 15 THEN 6 ELSE 7 END + ({m} / 30) * 8
"""
RUNS = f"""
INSERT INTO job_runs (job_type, payload, status, attempts, scheduled_for, run_at, started_at,
    finished_at, created_at, updated_at, batch_id)
SELECT 'send_mail', '{{{{"order": 123456, "template": "reminder"}}}}',
    CASE WHEN i % 50 = 3 THEN 'dead' WHEN i % 50 = 7 THEN 'skipped' ELSE 'succeeded' END,
    1, at, at, at, at, at, at, CASE WHEN i % 10 = 0 THEN :batches + {BATCH_OF} END
FROM (SELECT i, CASE WHEN i % 50 = 3 THEN {{dead}} ELSE {{done}} END AS at FROM {{numbers}}) AS n
"""
BATCHES = """
INSERT INTO job_batches (id, key, opened_at, closed_at, finished_at, total, succeeded, dead,
    cancelled, skipped)
SELECT :batches + i - 1, 'batch ' || (:batches + i), {done}, {done}, {done}, 1, 1, 0, 0, 0
FROM {numbers}
"""
#: The tables of rows that belong to the old runs.
BELONGINGS = (
    """
    INSERT INTO job_effects (key, run_id, state, done_at)
    SELECT 'mail:' || id, id, 'done', {dead} FROM job_runs WHERE {old} AND id % 10 = 1
    """,
    """
    INSERT INTO job_outputs (run_id, attempt, worker, output)
    SELECT id, 1, 'web-1:7:token', 'sent' FROM job_runs WHERE {old} AND id % 10 = 4
    """,
    """
    INSERT INTO job_failures (run_id, attempt, worker, error_type, error, stack)
    SELECT id, 1, 'web-1:7:token', 'OSError', 'no route to host', 'Traceback' FROM job_runs
    WHERE {old} AND id % 20 = 3
    """,
)
TABLES = ("job_runs", "job_batches", "job_effects", "job_outputs", "job_failures")


def main() -> None:
    """Measure on both databases; exit 1 if the limit is missed."""
    parser = argument_parser("prune", __doc__, "a form for CI: a tenth of a minute")
    parser.add_argument("--rows", default="1000000", help="finished runs that are kept")
    parser.add_argument("--only", choices=["postgresql", "sqlite"], help="this database alone")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    options = parser.parse_args()
    runs, rounds, sizes = MINUTE, options.rounds, [int(size) for size in options.rows.split(",")]
    if options.short:
        runs, rounds, sizes = MINUTE // 10, 1, [20_000]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {runs:,} runs a round")
    missed = False
    with tempfile.TemporaryDirectory() as folder, postgres.running_server() as server:
        urls = {
            "postgresql": server.create_database(),
            "sqlite": f"sqlite:///{Path(folder) / 'prune.sqlite'}",
        }
        for name in [options.only] if options.only else urls:
            store = _Store(urls[name])
            for size in sizes:
                store.keep(size)
                seconds = statistics.median([store.round(name, runs) for _ in range(rounds)])
                print(f"{name}: {seconds:.1f} s beside {size:,} runs (bound {BOUND} s)")
                missed = missed or seconds > BOUND
    if missed:
        sys.exit(f"missed: the runs of a minute must be pruned in {BOUND} s of it")


class _Store:
    """A database with many finished runs, and an app whose tick prunes it."""

    def __init__(self, url: str) -> None:
        self.app = Flask("benchmark")
        self.app.config["SQLALCHEMY_DATABASE_URI"] = url
        self.db = SQLAlchemy(self.app)
        self.jobs = CronJobs(self.app)
        self.jobs.task(name="send_mail")(_do_nothing)
        self.kept, self.batches = 0, 1
        with self.app.app_context():
            self.engine = self.db.engine
            create_tables(self.engine)
        self._cpu = Clock(url)
        self._run(
            "INSERT INTO job_runs (job_type, status, attempts, locked_by, locked_until)"
            " VALUES ('send_mail', 'running', 1, 'web-1:7:token', '2999-01-01 00:00:00')"
        )

    def keep(self, size: int) -> None:
        """Make *size* finished runs that are not old."""
        while self.kept < size:
            number = min(CHUNK, size - self.kept)
            self._fill(number, "0 - i", "0 - i")
            self.kept += number
        if self.engine.dialect.name == "postgresql":
            with self.engine.connect() as connection:
                raw = connection.execution_options(isolation_level="AUTOCOMMIT")
                raw.execute(text("VACUUM ANALYZE"))

    def round(self, name: str, runs: int) -> float:
        """Make *runs* old, prune them in one tick, and return how many seconds it took."""
        before = self._counts()
        self._fill(runs, f"0 - {OLD}", f"0 - {OLD_DEAD}")
        self._add_belongings()
        added = {table: number - before[table] for table, number in self._counts().items()}
        with self.app.app_context(), _renewing(self.engine) as waits:
            began, cpu, pruned = time.monotonic(), self._cpu(), [self.jobs.tick().pruned]
            while (
                sum(pruned) < runs
            ):  # This machine has other work: a tick stops after nine seconds.
                pruned.append(self.jobs.tick().pruned)
            seconds = time.monotonic() - began
            time.sleep(0.2)  # Now the server reaps its backends.
            cpu = self._cpu() - cpu
        assert self._counts() == before, self._counts()
        rest = ", ".join(f"{number:,} {table}" for table, number in added.items())
        speed = f"{seconds:5.2f} s, {runs / seconds:7,.0f} runs/s, {cpu:.2f} s of CPU"
        print(f"  {name:10} {speed} ({rest})")
        half, most = statistics.median(waits), max(waits)
        late = sum(wait > 0.1 for wait in waits) / len(waits)
        print(
            f"  {'':10} {len(waits)} renewals meanwhile: median {half * 1000:.1f} ms, "
            f"{late:.1%} over 100 ms, the longest {most * 1000:.0f} ms",
            flush=True,
        )
        return seconds

    def _fill(self, runs: int, done: str, dead: str) -> None:
        """Add finished runs and their batches.

        :param done: SQL for when the run ``i`` ended, in seconds from now; *dead*: if it is dead.
        """
        d, batches = dialect_of(self.engine), runs // 300 * 8 + 8
        for sql, number in ((RUNS, runs), (BATCHES, batches)):
            values = {"done": d.later(done), "dead": d.later(dead), "m": "((i - 1) / 10)"}
            self._run(sql.format(numbers=self._numbers(number), **values), batches=self.batches)
        self.batches += batches

    def _add_belongings(self) -> None:
        d = dialect_of(self.engine)
        old = f"status <> 'running' AND finished_at < {d.later(f'0 - {14 * DAY}')}"
        for sql in BELONGINGS:
            self._run(sql.format(old=old, dead=d.later(f"0 - {OLD_DEAD}")))

    def _numbers(self, number: int) -> str:
        if self.engine.dialect.name == "postgresql":
            return f"generate_series(1, {number}) AS numbers(i)"
        return (
            "(WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers"
            f" WHERE i < {number}) SELECT i FROM numbers)"
        )

    def _counts(self) -> dict[str, int]:
        with self.engine.connect() as connection:
            return {
                table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
                for table in TABLES
            }

    def _run(self, sql: str, **parameters: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(sql), parameters)


@contextmanager
def _renewing(engine: Engine) -> Generator[list[float]]:
    """Renew the lease of the running run every 20 ms; note how long each renewal takes."""
    waits: list[float] = []
    over = threading.Event()

    def renew() -> None:
        renewal = text("UPDATE job_runs SET updated_at = CURRENT_TIMESTAMP WHERE id = 1")
        with engine.connect() as connection:
            while not over.wait(0.02):
                began = time.monotonic()
                connection.execute(renewal)
                connection.commit()
                waits.append(time.monotonic() - began)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def _do_nothing() -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
