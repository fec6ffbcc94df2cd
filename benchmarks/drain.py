"""Measure how fast one worker drains no-op runs, compared to plain psycopg with one run at a time.

``python -m benchmarks.drain`` alternates rounds of both on one PostgreSQL, without imports and
setup. Ours is a whole `jobs.tick()`, with each handler in its own app context. The baseline is one
statement per run, which finalizes the last run and claims the next, in autocommit mode, on the same
table with the same indexes, and without any handler.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psycopg
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import make_url, text

from benchmarks import argument_parser
from benchmarks._cpu import Clock
from flask_cronjobs import CronJobs
from tests import postgres

#: How fast the drain must be, relative to the baseline.
BOUND = 3.0

ONE_AT_A_TIME = """
    WITH recorded AS (
        UPDATE job_runs SET status = 'succeeded', finished_at = clock_timestamp(),
            locked_by = NULL, locked_until = NULL, updated_at = clock_timestamp()
        WHERE id = %(last)s AND locked_by = %(token)s AND status = 'running'
    ), next AS MATERIALIZED (
        SELECT id FROM job_runs
        WHERE status IN ('queued', 'failed') AND gate IS NULL
            AND run_at <= (SELECT clock_timestamp()) AND job_type = 'noop'
        ORDER BY priority DESC, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    UPDATE job_runs SET status = 'running', attempts = job_runs.attempts + 1,
        locked_by = %(token)s, locked_until = clock_timestamp() + interval '2 minutes',
        started_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM next WHERE job_runs.id = next.id
    RETURNING job_runs.id, job_runs.payload
"""


def main() -> None:
    """Measure, print, and exit 1 if a limit is missed."""
    parser = argument_parser("drain", __doc__, "a form for CI, without the bounds")
    parser.add_argument("--runs", type=int, default=20_000, help="runs of a round")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    options = parser.parse_args()
    runs, rounds = (2_000, 2) if options.short else (options.runs, options.rounds)
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {runs} no-op runs, by round:")
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        url = server.create_database()
        apps = {
            "PostgreSQL": _App(url),
            "SQLite": _App(f"sqlite:///{Path(folder) / 'jobs.sqlite'}"),
        }
        print("PostgreSQL", apps["PostgreSQL"].version(), "with fsync")
        ratios = list[float]()
        for _ in range(rounds):
            for name, app in apps.items():
                drain = app.drain(runs)
                print(f"  one worker on {name:10} {drain}", flush=True)
                if name == "PostgreSQL":
                    plain = _plain(app, url, runs)
                    ratios.append(drain.speed / plain)
                    print(f"  plain psycopg {plain:17,.0f} runs/s, ratio {ratios[-1]:.1f}")
    ratio = statistics.median(ratios)
    print(f"median ratio on PostgreSQL: {ratio:.1f} times one at a time (bound {BOUND})")
    if ratio < BOUND and not options.short:
        sys.exit(1)


class _Drain(NamedTuple):
    """Runs a second, and the CPU seconds of the drain."""

    speed: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.speed:7,.0f} runs/s, {self.cpu * 1000:.0f} ms CPU"


class _App:
    """An app with one task that does nothing."""

    def __init__(self, url: str) -> None:
        self.app = Flask("benchmark")
        self.app.config["SQLALCHEMY_DATABASE_URI"] = url
        self.db = SQLAlchemy(self.app)
        self.jobs = CronJobs(self.app)
        self.noop = self.jobs.task(name="noop")(_noop)
        with self.app.app_context():
            from flask_cronjobs.db.create import create_tables

            create_tables(self.db.engine)
        self._cpu = Clock(url)

    def version(self) -> str:
        """Return the server's version."""
        with self.app.app_context():
            return str(self.db.session.scalar(text("SHOW server_version")))

    def fill(self, runs: int) -> None:
        """Empty the table, then enqueue runs."""
        with self.app.app_context():
            self.db.session.execute(text("DELETE FROM job_runs"))
            self.noop.enqueue_many([{}] * runs)
            self.db.session.commit()
            self._vacuum()

    def _vacuum(self) -> None:
        """Vacuum, as autovacuum would within a minute."""
        if self.db.engine.dialect.name == "postgresql":
            with self.db.engine.connect() as connection:
                raw = connection.execution_options(isolation_level="AUTOCOMMIT")
                raw.execute(text("VACUUM ANALYZE job_runs"))

    def drain(self, runs: int) -> _Drain:
        """Drain *runs* by one tick."""
        self.fill(runs)
        with self.app.app_context():
            cpu, began = self._cpu(), time.perf_counter()
            report = self.jobs.tick(budget=600)
            seconds = time.perf_counter() - began
            cpu = self._cpu() - cpu
            assert report.succeeded == runs, report
            return _Drain(runs / seconds, cpu)


def _plain(app: _App, url: str, runs: int) -> float:
    app.fill(runs)
    plain_url = make_url(url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(plain_url, autocommit=True) as connection, connection.cursor() as cursor:
        last, finished = 0, 0
        began = time.perf_counter()
        while row := cursor.execute(ONE_AT_A_TIME, {"last": last, "token": "t"}).fetchone():
            last = row[0]
            finished += 1
        seconds = time.perf_counter() - began
    assert finished == runs, finished
    return runs / seconds


def _noop() -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
