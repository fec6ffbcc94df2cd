"""Measure what an idle tick costs while many due runs wait for a rate.

``python -m benchmarks.rates`` has two apps on PostgreSQL and two on SQLite. In the one, many runs
are due and wait for the next start of their rate of 100 a minute; in the other, none are. Ticks
that find nothing to begin take turns in both. It exits 1 if those of the first take more than
`LIMIT` times the CPU time of this process, or read over `BLOCKS` more blocks of PostgreSQL.

It counts the best of several rounds, so that other work on the machine does not change the answer.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from benchmarks import argument_parser
from flask_cronjobs import CronJobs
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.models import JobRate
from tests import postgres

#: How many times as much CPU time an idle tick may take.
LIMIT = 1.3
#: How many more blocks it may read. The 20,000 runs have some 500, and their index 200.
BLOCKS = 100
ROUNDS = 5
READ = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"


class Side:
    """An app, in which *waiting* due runs wait for their rate.

    :ivar took: the CPU time of each tick since the last `end`, in milliseconds.
    """

    def __init__(self, url: str, waiting: int) -> None:
        self.app = Flask("rates")
        self.app.config["SQLALCHEMY_DATABASE_URI"] = url
        self.db = SQLAlchemy(self.app)
        self.jobs = CronJobs(self.app)
        send = self.jobs.task(name="send", rate="100/minute")(lambda: None)
        self.took: list[float] = []
        with self.app.app_context():
            create_tables(self.db.engine)
            send.using(commit=True).enqueue_many([{}] * waiting)
            ahead = datetime.now(timezone.utc) + timedelta(hours=1)
            self.db.session.add(JobRate(key="send", tat=ahead, period=0.6, burst=1))
            self.db.session.commit()
            self.look = self.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.look.execute(text("ANALYZE"))
        self._read = self._blocks()

    def tick(self) -> None:
        """Run a tick that finds nothing to begin."""
        with self.app.app_context():
            began = time.process_time()
            report = self.jobs.tick()
            self.took.append((time.process_time() - began) * 1000)
        assert report.attempts == 0

    def end(self) -> tuple[float, float]:
        """End a round; return the median of its ticks' CPU time, and the blocks that one reads."""
        before, self._read = self._read, self._blocks()
        took, self.took = self.took, []
        return statistics.median(took), (self._read - before) / len(took)

    def close(self) -> None:
        """Close all connections."""
        self.look.close()
        with self.app.app_context():
            self.db.engine.dispose()

    def _blocks(self) -> int:
        is_known = self.look.dialect.name == "postgresql"
        return int(self.look.execute(text(READ)).scalar_one()) if is_known else 0


def main() -> None:
    """Measure on each database, print the results, and exit 1 if the limit is missed."""
    parser = argument_parser("rates", __doc__, "a form for CI")
    parser.add_argument("--runs", type=int, default=20_000, help="how many runs wait")
    options = parser.parse_args()
    ticks = 10 if options.short else 40
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        urls = [(server.create_database(), server.create_database())]
        urls += [(f"sqlite:///{Path(folder) / 'a'}", f"sqlite:///{Path(folder) / 'b'}")]
        results = [_measure(url, options.runs, ticks) for url in urls]
    ratio, blocks = (max(column) for column in zip(*results, strict=True))
    if ratio > LIMIT or blocks > BLOCKS:
        sys.exit(
            f"An idle tick takes {ratio:.2f} times the CPU time, and {blocks:.0f} blocks more; the "
            f"limits are {LIMIT:g} and {BLOCKS}."
        )


def _measure(urls: tuple[str, str], runs: int, ticks: int) -> tuple[float, float]:
    """Return how many times the CPU time, and how many more blocks, a tick takes beside *runs*."""
    sides = Side(urls[0], runs), Side(urls[1], 0)
    rounds: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        for _ in range(ticks):
            for side in sides:
                side.tick()
        (cpu, blocks), (cpu_of_none, blocks_of_none) = (side.end() for side in sides)
        rounds.append((cpu / cpu_of_none, cpu, cpu_of_none, blocks, blocks_of_none))
    for side in sides:
        side.close()
    ratio, cpu, cpu_of_none, *_ = min(rounds)
    blocks_read, read_of_none = (min(row[place] for row in rounds) for place in (3, 4))
    print(
        f"{urls[0].partition(':')[0]:<22} {cpu:.2f} ms of CPU with {runs:,} runs that wait, "
        f"{cpu_of_none:.2f} ms with none: {ratio:.2f} times   {blocks_read:.0f} blocks, "
        f"{read_of_none:.0f} with none",
        flush=True,
    )
    return ratio, blocks_read - read_of_none


if __name__ == "__main__":
    main()
