"""Measure what a durable step costs beside a bare commit.

``python -m benchmarks.steps`` runs one handler on PostgreSQL and one on SQLite. Each inserts a row
and commits it, and inserts one in a step and in a chunk, in turns. It exits 1 if the median of the
steps is more than `LIMIT` over that of the commits.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from benchmarks import argument_parser
from flask_cronjobs import CronJobs
from tests import postgres

#: In milliseconds.
LIMIT = 2.0


def main() -> None:
    """Measure on each database and print the results."""
    parser = argument_parser("steps", __doc__, "a form for CI")
    parser.add_argument("--steps", type=int, default=1000, help="how many steps")
    options = parser.parse_args()
    steps = 100 if options.short else options.steps
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        urls = (server.create_database(), f"sqlite:///{Path(folder) / 'jobs.sqlite'}")
        over = [_measure(url, steps) for url in urls]
    if not options.short and max(over) > LIMIT:
        sys.exit(f"A step takes {max(over):.2f} ms more than a commit; the limit is {LIMIT}.")


def _measure(url: str, steps: int) -> float:
    app = Flask("steps")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)
    jobs = CronJobs(app)
    took: dict[str, list[float]] = {"commit": [], "step": [], "chunk": []}

    def timed(what: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        took[what].append((time.perf_counter() - began) * 1000)

    def insert() -> None:
        db.session.execute(text("INSERT INTO work VALUES (1)"))

    def commit() -> None:
        insert()
        db.session.commit()

    @jobs.task
    def work() -> None:
        for number in range(steps):
            timed("commit", commit)
            timed("step", partial(jobs.step, f"step {number}", insert))
        chunks = jobs.each("chunks", lambda after: range((after or 0) + 1, steps + 1)[:1])

        def chunk() -> None:
            next(chunks)  # It commits the one before.
            insert()

        for _ in range(steps):
            timed("chunk", chunk)

    with app.app_context():
        db.create_all()
        db.session.execute(text("CREATE TABLE work (number integer)"))
        work.using(commit=True).enqueue()
        jobs.tick()
        assert len(took["chunk"]) == steps
        db.engine.dispose()
    medians = {what: statistics.median(each) for what, each in took.items()}
    shown = "   ".join(f"{what} {median:5.2f} ms" for what, median in medians.items())
    print(f"{url.partition(':')[0]:<22} {shown}   medians of {steps}", flush=True)
    return medians["step"] - medians["commit"]


if __name__ == "__main__":
    main()
