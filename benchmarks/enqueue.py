"""Measure how fast runs are enqueued, one by one and a thousand a call, compared to plain drivers.

    python -m benchmarks.enqueue [--short]

All write to the same table, with its indexes and checks, and alternate in rounds: our
``enqueue()`` with ``db.session.commit()`` after each, and ``enqueue_many()`` of a thousand with a
commit; the driver's own ``INSERT … RETURNING id``, committed (psycopg in autocommit mode, so in one
exchange with the server; and with a transaction, as a session has one), and its ways for many:
``executemany``, ``INSERT … SELECT unnest(…)`` and COPY, which gives no ids. Prints medians per
second, and the ratios of the rounds. Exits 1 if a ratio is below its bound.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import make_url, text

from benchmarks import argument_parser
from flask_cronjobs import CronJobs
from flask_cronjobs.db.create import create_tables
from tests import postgres

#: How many times as fast as the second way of each pair the first must be, at least.
BOUNDS = {
    ("one", "one by psycopg in a transaction"): 0.5,
    ("many", "many by executemany"): 3.0,
    ("many", "many by unnest"): 0.5,
}
MANY = 1000
COLUMNS = "job_type, queue, priority, max_attempts, payload, scheduled_for, run_at"
TAIL = "created_at, updated_at"
NOW = "clock_timestamp()"
NOWS = f"{NOW}, {NOW}, {NOW}, {NOW}"
ONE = f"""
    INSERT INTO job_runs ({COLUMNS}, {TAIL})
    VALUES ('noop', 'default', 0, 10, %s, {NOWS}) RETURNING id
"""
UNNEST = f"""
    INSERT INTO job_runs ({COLUMNS}, {TAIL})
    SELECT 'noop', 'default', 0, 10, CAST(payload AS jsonb), {NOWS}
    FROM unnest(CAST(%s AS text[])) AS given(payload) RETURNING id
"""
COPY = "COPY job_runs (job_type, queue, priority, max_attempts, payload) FROM STDIN"
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
SQLITE_ONE = f"""
    INSERT INTO job_runs ({COLUMNS}, {TAIL})
    VALUES ('noop', 'default', 0, 10, ?, {SQLITE_NOW}, {SQLITE_NOW}, {SQLITE_NOW}, {SQLITE_NOW})
"""
PAYLOADS: list[dict[str, object]] = [{"user_id": n, "week": "2026-W03"} for n in range(MANY)]


def main() -> None:
    """Measure both databases, print, and exit 1 if a bound is missed."""
    parser = argument_parser("enqueue", __doc__, "a form for CI, without the bounds")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    options = parser.parse_args()
    rounds = 2 if options.short else options.rounds
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, runs per second:")
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        missed = measure("PostgreSQL", _on_postgresql(server.create_database()), rounds)
        measure("SQLite", _on_sqlite(Path(folder) / "jobs.sqlite"), rounds)
    if missed and not options.short:
        sys.exit(f"missed: {', '.join(missed)}")


def measure(database: str, ways: Mapping[str, Callable[[], int]], rounds: int) -> list[str]:
    """Call all *ways* in turn, and print the medians; return which bounds are missed.

    :param ways: each enqueues and returns how many.
    """
    print(f"{database}:")
    for way in ways.values():
        way()  # Imports, plans and caches.
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if name == "empty":
                way()
                continue
            began = time.perf_counter()
            number = way()
            speeds[name].append(number / (time.perf_counter() - began))
    for name, speed in speeds.items():
        if speed:
            spread = (max(speed) - min(speed)) / statistics.median(speed)
            print(f"  {statistics.median(speed):9,.0f}  {name} (spread {spread:.0%})")
    return [fault for fault in (_ratio(speeds, *pair) for pair in BOUNDS) if fault]


def _ratio(speeds: Mapping[str, list[float]], ours: str, other: str) -> str | None:
    """Print one ratio, the median of those of the rounds; return it if it misses its bound."""
    if other not in speeds:
        return None
    pairs = zip(speeds[ours], speeds[other], strict=True)
    ratio = statistics.median(first / second for first, second in pairs)
    bound = BOUNDS[ours, other]
    line = f"{ours} / {other}: {ratio:.2f} (bound {bound})"
    print(f"  {line}")
    return line if ratio < bound else None


def _on_postgresql(url: str) -> dict[str, Callable[[], int]]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(False)
    autocommit = psycopg.connect(plain, autocommit=True)
    connection = psycopg.connect(plain)

    def one_in_autocommit() -> int:
        for payload in PAYLOADS:
            autocommit.execute(ONE, [json.dumps(payload)]).fetchone()
        return MANY

    def one_in_a_transaction() -> int:
        for payload in PAYLOADS:
            connection.execute(ONE, [json.dumps(payload)]).fetchone()
            connection.commit()
        return MANY

    def executemany() -> int:
        rows = [[json.dumps(payload)] for payload in PAYLOADS]
        connection.cursor().executemany(ONE, rows)
        connection.commit()
        return MANY

    def unnest() -> int:
        texts = [json.dumps(payload) for payload in PAYLOADS]
        connection.execute(UNNEST, [texts]).fetchall()
        connection.commit()
        return MANY

    def copy() -> int:
        with connection.cursor() as cursor, cursor.copy(COPY) as rows:
            for payload in PAYLOADS:
                rows.write_row(("noop", "default", 0, 10, json.dumps(payload)))
        connection.commit()
        return MANY

    return {
        **_ours(url, "VACUUM ANALYZE job_runs"),
        "one by psycopg in autocommit": one_in_autocommit,
        "one by psycopg in a transaction": one_in_a_transaction,
        "many by executemany": executemany,
        "many by unnest": unnest,
        "many by COPY": copy,
    }


def _on_sqlite(path: Path) -> dict[str, Callable[[], int]]:
    ours = _ours(f"sqlite:///{path}", None)
    connection = sqlite3.connect(path, timeout=60)

    def one() -> int:
        for payload in PAYLOADS:
            connection.execute(SQLITE_ONE, [json.dumps(payload)])
            connection.commit()
        return MANY

    def many() -> int:
        connection.executemany(SQLITE_ONE, [[json.dumps(payload)] for payload in PAYLOADS])
        connection.commit()
        return MANY

    return {**ours, "one by sqlite3": one, "many by sqlite3's executemany": many}


def _ours(url: str, after: str | None) -> dict[str, Callable[[], int]]:
    """Return our ways; before each round the table is emptied, and *after* is executed."""
    app = Flask("benchmark")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)
    jobs = CronJobs(app)
    noop = jobs.task(name="noop")(_noop)
    keyed = jobs.task(name="keyed", unique="{week}:{user_id}")(_noop)
    app.app_context().push()
    create_tables(db.engine)
    keys = iter(range(sys.maxsize))

    def empty() -> int:
        db.session.execute(text("DELETE FROM job_runs"))
        db.session.commit()
        if after:
            with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as raw:
                raw.execute(text(after))
        return 0

    def one() -> int:
        for n in range(MANY):
            noop.enqueue(user_id=n, week="2026-W03")
            db.session.commit()
        return MANY

    def many() -> int:
        noop.enqueue_many(PAYLOADS)
        db.session.commit()
        return MANY

    def many_with_keys() -> int:
        call = f"2026-W03-{next(keys)}"
        keyed.enqueue_many({"user_id": n, "week": call} for n in range(MANY))
        db.session.commit()
        return MANY

    return {"empty": empty, "one": one, "many": many, "many with keys": many_with_keys}


def _noop(user_id: int, week: str) -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
