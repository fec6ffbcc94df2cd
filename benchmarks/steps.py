"""Measure what a durable step costs beside a bare commit.

``python -m benchmarks.steps`` runs one handler on PostgreSQL and one on SQLite. It inserts a row
and commits it, by a session of its own, and inserts one in a step, in turns; then likewise in a
chunk. It exits 1 if a step or a chunk takes over `LIMIT` longer than a commit.

That compares the fastest of each: other work on the machine has not held those up, and what is
more in each step is in them, too. For the same reason, ``--short`` lets nothing wait for the disk.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from benchmarks import argument_parser
from flask_cronjobs import CronJobs
from tests import postgres

#: In milliseconds.
LIMIT = 2.0
INSERT = text("INSERT INTO work VALUES (1)")
#: How long commits took, and what came after each of them, in milliseconds.
Times: TypeAlias = "tuple[list[float], list[float]]"


def main() -> None:
    """Measure on each database and print the results."""
    parser = argument_parser("steps", __doc__, "a form for CI")
    parser.add_argument("--steps", type=int, default=1000, help="how many steps")
    options = parser.parse_args()
    steps = 300 if options.short else options.steps
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        urls = (server.create_database(), f"sqlite:///{Path(folder) / 'jobs.sqlite'}")
        over = max(_measure(url, steps, not options.short) for url in urls)
    if over > LIMIT:
        sys.exit(f"A step or chunk takes {over:.2f} ms more than a commit; the limit is {LIMIT}.")


def _measure(url: str, steps: int, syncs: bool) -> float:
    """Return how many milliseconds longer a step or a chunk takes than a commit."""
    app = Flask("steps")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)
    jobs = CronJobs(app)
    times: dict[str, Times] = {}

    def insert() -> None:
        db.session.execute(INSERT)

    @jobs.task
    def work() -> None:
        with Session(db.engine) as other:

            def commit() -> None:
                other.execute(INSERT)
                other.commit()

            by_step = (partial(jobs.step, str(number), insert) for number in range(steps))
            times["step"] = _in_turns(commit, by_step)
            chunks = jobs.each("chunks", lambda after: [(after or 0) + 1])
            next(chunks)

            def chunk() -> None:
                insert()
                next(chunks)  # It commits this one, and begins the next.

            times["chunk"] = _in_turns(commit, [chunk] * steps)

    with app.app_context():
        if not syncs:
            event.listen(db.engine, "connect", _sync_nothing)
        db.create_all()
        db.session.execute(text("CREATE TABLE work (number integer)"))
        db.session.commit()
        work.using(commit=True).enqueue()
        assert jobs.tick().succeeded == 1
        db.engine.dispose()
    return max(_shown(url, what, *each) for what, each in times.items())


def _sync_nothing(driver: Any, _: object) -> None:
    is_sqlite = isinstance(driver, sqlite3.Connection)
    cursor = driver.cursor()
    cursor.execute("PRAGMA synchronous = OFF" if is_sqlite else "SET synchronous_commit = off")
    driver.commit()


def _in_turns(commit: Callable[[], None], others: Iterable[Callable[[], object]]) -> Times:
    commits, took = list[float](), list[float]()
    for other in others:
        commits.append(_timed(commit))
        took.append(_timed(other))
    return commits, took


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _shown(url: str, what: str, commits: list[float], took: list[float]) -> float:
    """Print how long *what* takes beside a commit; return how much longer."""
    over = min(took) - min(commits)
    medians = statistics.median(commits), statistics.median(took)
    print(
        f"{url.partition(':')[0]:<20} commit {min(commits):.2f} ms, {what} {min(took):.2f} ms: "
        f"{over:.2f} more   (medians of {len(took)}: {medians[0]:.2f} and {medians[1]:.2f})",
        flush=True,
    )
    return over


if __name__ == "__main__":
    main()
