"""Measure what a durable step costs beside a bare commit.

``python -m benchmarks.steps`` runs one handler on PostgreSQL and one on SQLite. It inserts a row
and commits it in its own session, and inserts one in a step, in turns; then the same with chunks.
It exits 1 if a step or a chunk takes over `LIMIT` longer than a commit, or sends over `STATEMENTS`.

The fastest times of each are compared: other work on the machine has not delayed them, and they
include everything that a step always does. With ``--short``, times are printed but not checked,
since they say more about the machine then.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from benchmarks import argument_parser
from flask_cronjobs import CronJobs
from tests import postgres
from tests.kit import statements

INSERT = text("INSERT INTO work VALUES (1)")
#: The limit in milliseconds.
LIMIT = 2.0
#: The statements of a step or chunk, including its work. On PostgreSQL three bound row locks.
STATEMENTS = 6


@dataclass
class Costs:
    """How long commits took, and how long steps or chunks, in milliseconds.

    :ivar sent: how many statements each step or chunk sent.
    """

    commits: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    @property
    def over(self) -> float:
        """Return how much longer the fastest step or chunk took than the fastest commit."""
        return min(self.others) - min(self.commits)

    @property
    def statements(self) -> float:
        """Return how many statements a step or chunk sends."""
        return statistics.median(self.sent)


def main() -> None:
    """Measure on each database and print the results."""
    parser = argument_parser("steps", __doc__, "a form for CI, without the bound on times")
    parser.add_argument("--steps", type=int, default=1000, help="how many steps")
    options = parser.parse_args()
    steps = 100 if options.short else options.steps
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        urls = (server.create_database(), f"sqlite:///{Path(folder) / 'jobs.sqlite'}")
        costs = [cost for url in urls for cost in _measure(url, steps)]
    most, over = max(cost.statements for cost in costs), max(cost.over for cost in costs)
    if most > STATEMENTS:
        sys.exit(f"A step or chunk sends {most:g} statements; the limit is {STATEMENTS}.")
    if over > LIMIT and not options.short:
        sys.exit(f"A step or chunk takes {over:.2f} ms more than a commit; the limit is {LIMIT}.")


def _measure(url: str, steps: int) -> list[Costs]:
    """Measure steps and chunks on the database at *url*; print and return their costs."""
    app = Flask("steps")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)
    jobs = CronJobs(app)
    costs: list[Costs] = []

    def insert() -> None:
        db.session.execute(INSERT)

    @jobs.task
    def work() -> None:
        with Session(db.engine) as session:

            def commit() -> None:
                session.execute(INSERT)
                session.commit()

            by_step = (partial(jobs.step, str(number), insert) for number in range(steps))
            costs.append(_in_turns("step", db.engine, commit, by_step))
            chunks = jobs.each("chunks", lambda after: [(after or 0) + 1])
            next(chunks)

            def chunk() -> None:
                insert()
                next(chunks)  # It commits this one, and begins the next.

            costs.append(_in_turns("chunk", db.engine, commit, [chunk] * steps))

    with app.app_context():
        db.create_all()
        db.session.execute(text("CREATE TABLE work (number integer)"))
        db.session.commit()
        work.using(commit=True).enqueue()
        assert jobs.tick().succeeded == 1
        db.engine.dispose()
    return costs


def _in_turns(
    what: str, engine: Engine, commit: Callable[[], None], others: Iterable[Callable[[], object]]
) -> Costs:
    log = statements(engine)
    costs = Costs()
    for writer in others:
        costs.commits.append(_timed(commit))
        before = len(log)
        costs.others.append(_timed(writer))
        costs.sent.append(len(log) - before)
    print(
        f"{engine.dialect.name:<11} commit {min(costs.commits):.2f} ms, "
        f"{what} {min(costs.others):.2f} ms: {costs.over:.2f} more   "
        f"(medians of {len(costs.others)}: {statistics.median(costs.commits):.2f} and "
        f"{statistics.median(costs.others):.2f})   {costs.statements:g} statements",
        flush=True,
    )
    return costs


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
