"""Measure how fast one worker drains no-op runs, compared to plain psycopg with one run at a time.

``python -m benchmarks.drain`` alternates rounds of both on one PostgreSQL, without imports and
setup. Ours is a whole `jobs.tick()`, with each handler in its own app context. The baseline is one
statement per run, which finalizes the last run and claims the next, in autocommit mode, on the same
table with the same indexes, and without any handler.

After each drain the runs are rolled up, as the tick does that comes five minutes after their hour:
on its connection, by a statement that is not compiled yet. Its part is CPU time, of this process
and of the server, by that of the drain. ``--only roll-up`` leaves plain psycopg out.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import psycopg
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import make_url, text

from benchmarks import argument_parser
from benchmarks._cpu import Clock, cpu_of
from flask_cronjobs import CronJobs
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.tick import begin
from flask_cronjobs.jobs.history import GRACE, HOUR, ended_in_hour, write_hours
from flask_cronjobs.jobs.state import state_of
from tests import postgres

#: How fast the drain must be, relative to the baseline.
BOUND = 3.0
#: How much of the drain's CPU time the roll-up of its runs may take: 2 %, as precisely as it is
#: measured.
PART = 0.025

ONE_AT_A_TIME = """
    WITH recorded AS (
        UPDATE job_runs SET status = 'succeeded', finished_at = clock_timestamp(),
            locked_by = NULL, locked_until = NULL, updated_at = clock_timestamp()
        WHERE id = %(last)s AND locked_by = %(token)s AND status = 'running'
    ), next AS MATERIALIZED (
        SELECT id FROM job_runs
        WHERE status IN ('queued', 'failed') AND concurrency_key IS NULL AND rate_mark IS NULL
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
    parser.add_argument("--only", choices=("roll-up",), help="one part alone")
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
        ratios, parts = list[float](), {name: list[float]() for name in apps}
        for _ in range(rounds):
            for name, app in apps.items():
                drain = app.drain(runs)
                parts[name].append(drain.roll_up / drain.cpu)
                print(f"  one worker on {name:10} {drain}", flush=True)
                if name == "PostgreSQL" and options.only is None:
                    plain = _plain(app, url, runs)
                    ratios.append(drain.speed / plain)
                    print(f"  plain psycopg {plain:17,.0f} runs/s, ratio {ratios[-1]:.1f}")
    missed = False
    if ratios:
        ratio = statistics.median(ratios)
        missed = ratio < BOUND
        print(f"median ratio on PostgreSQL: {ratio:.1f} times one at a time (bound {BOUND})")
    for name, found in parts.items():
        part = statistics.median(found)
        missed = missed or part > PART
        print(f"median part of the roll-up on {name}: {part:.2%} (bound {PART:.1%})")
    if missed and not options.short:
        sys.exit(1)


class _Drain(NamedTuple):
    """How many runs a second, and the CPU seconds of the drain and of the roll-up of its runs."""

    speed: float
    cpu: float
    roll_up: float

    def __str__(self) -> str:
        part = f"roll-up {self.roll_up * 1000:.1f} of {self.cpu * 1000:.0f} ms CPU"
        return f"{self.speed:7,.0f} runs/s, {part}"


class _App:
    """Return an app with one task that does nothing."""

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
        """Empty the table, then enqueue."""
        with self.app.app_context():
            self.db.session.execute(text("DELETE FROM job_runs"))
            self.noop.enqueue_many([{}] * runs)
            self.db.session.commit()
            self._vacuum()

    def _vacuum(self) -> None:
        """Do as autovacuum does within a minute."""
        if self.db.engine.dialect.name == "postgresql":
            with self.db.engine.connect() as connection:
                raw = connection.execution_options(isolation_level="AUTOCOMMIT")
                raw.execute(text("VACUUM ANALYZE job_runs"))

    def drain(self, runs: int) -> _Drain:
        """Drain *runs* by one tick, and roll them up."""
        self.fill(runs)
        with self.app.app_context():
            cpu, began, at = self._cpu(), time.perf_counter(), datetime.now(timezone.utc)
            report = self.jobs.tick(budget=600)
            seconds = time.perf_counter() - began
            cpu = self._cpu() - cpu
            assert report.succeeded == runs, report
            return _Drain(runs / seconds, cpu, self._roll_up(runs, at))

    def _roll_up(self, runs: int, at: datetime) -> float:
        """Return the CPU seconds that it takes to roll up *runs* runs, which ended from *at* on."""
        self.db.session.execute(text("DELETE FROM job_hours"))
        self.db.session.commit()
        self._vacuum()
        self.db.engine.clear_compiled_cache()
        ended_in_hour.cache_clear()
        with Bookkeeping(self.db.engine) as books:
            begin(state_of(), books)
            own = "pg_backend_pid()" if books.dialect.name == "postgresql" else "0"
            pid: int = books.rows(text(f"SELECT {own} AS pid"))[0].pid
            last = at.replace(minute=0, second=0, microsecond=0) - HOUR
            before = _cpu_with(pid)
            write_hours(books, last, datetime.now(timezone.utc) + HOUR + GRACE)
            seconds = _cpu_with(pid) - before
            (row,) = books.rows(text("SELECT sum(ended) AS n FROM job_hours WHERE job_type = ''"))
            assert row.n == runs, row
        return seconds


def _cpu_with(backend: int) -> float:
    """Return the CPU seconds so far of this process and of *backend*, if it is not 0."""
    return time.process_time() + (cpu_of(backend) if backend else 0.0)


def _plain(app: _App, url: str, runs: int) -> float:
    app.fill(runs)
    plain_url = make_url(url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(plain_url, autocommit=True) as connection, connection.cursor() as cursor:
        last, done = 0, 0
        began = time.perf_counter()
        while row := cursor.execute(ONE_AT_A_TIME, {"last": last, "token": "t"}).fetchone():
            last = row[0]
            done += 1
        seconds = time.perf_counter() - began
    assert done == runs, done
    return runs / seconds


def _noop() -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
