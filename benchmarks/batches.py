"""Measure how much a batch slows the drain of its runs, and how long a large one takes to count.

    python -m benchmarks.batches [--short]

Alternates rounds on each database: one tick drains no-op runs outside of batches, then as many in
one batch, with its ``then``. The CPU time of this process and of the server with its backends is
measured, since other work on the machine does not change it. Exits 1 if the median speed in a batch
is below 0.9 of that without. Then a batch of a million runs (or 20,000) is filled, and the figures
of its page are read.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from benchmarks import argument_parser
from benchmarks._cpu import Clock
from flask_cronjobs import Batch, CronJobs
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.insights.batch_views import find_batch
from tests import postgres

#: How fast the drain in a batch must be, relative to that without.
BOUND = 0.9
CHUNK = 20_000


def main() -> None:
    """Measure on both databases; exit 1 if the limit is missed."""
    parser = argument_parser("batches", __doc__, "a form for CI, without the bound")
    parser.add_argument("--runs", type=int, default=20_000, help="runs of a round")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    parser.add_argument("--large", type=int, default=1_000_000, help="runs of the large batch")
    options = parser.parse_args()
    runs, rounds, large = options.runs, options.rounds, options.large
    if options.short:
        runs, rounds, large = 2_000, 2, 20_000
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {runs:,} runs a round")
    missed = False
    with tempfile.TemporaryDirectory() as folder, postgres.running_server() as server:
        urls = {
            "postgresql": server.create_database(),
            "sqlite": f"sqlite:///{Path(folder) / 'batches.sqlite'}",
        }
        for name, url in urls.items():
            app = _App(url)
            ratio = app.compare(name, runs, rounds)
            missed = missed or ratio < BOUND
            app.count_large(name, large)
    if missed and not options.short:
        sys.exit(f"missed: a drain in a batch must be {BOUND} of one without")


class _App:
    """An app with two tasks that do nothing."""

    def __init__(self, url: str) -> None:
        self.app = Flask("benchmark")
        self.app.config["SQLALCHEMY_DATABASE_URI"] = url
        self.db = SQLAlchemy(self.app)
        self.jobs = CronJobs(self.app)
        self.noop = self.jobs.task(name="noop")(_noop)
        self.then = self.jobs.task(name="then")(_noop)
        self._number = 0
        with self.app.app_context():
            create_tables(self.db.engine)
        self._cpu = Clock(url)

    def compare(self, name: str, runs: int, rounds: int) -> float:
        """Print the rounds; return the median ratio of a drain in a batch to one without."""
        for batched in (False, True):  # Prepare all statements.
            self.drain(500, batched)
        ratios = []
        for number in range(rounds):
            # They take turns in coming first.
            order = (False, True) if number % 2 else (True, False)
            speeds = {batched: self.drain(runs, batched) for batched in order}
            ratios.append(speeds[True] / speeds[False])
            print(
                f"  {name:10} without {speeds[False]:7,.0f} runs/CPU s   in a batch "
                f"{speeds[True]:7,.0f} runs/CPU s   ratio {ratios[-1]:.2f}",
                flush=True,
            )
        ratio = statistics.median(ratios)
        print(f"{name}: median ratio {ratio:.2f} (bound {BOUND})")
        return ratio

    def drain(self, runs: int, batched: bool) -> float:
        """Return how many runs one tick drains in a second of CPU time."""
        with self.app.app_context():
            self._empty()
            if batched:
                with self._batch():
                    self.noop.enqueue_many([{}] * runs)
            else:
                self.noop.enqueue_many([{}] * runs)
            self.db.session.commit()
            self._vacuum()
            began = self._cpu()
            report = self.jobs.tick(budget=600)
            seconds = self._cpu() - began
        assert report.succeeded == runs + batched, report
        return runs / seconds

    def count_large(self, name: str, runs: int) -> None:
        """Print how long it takes to read the figures of a batch half of whose runs have ended."""
        with self.app.app_context():
            self._empty()
            with self._batch() as batch:
                for _ in range(runs // CHUNK):
                    self.noop.enqueue_many([{}] * CHUNK)
            self.db.session.commit()
            self.jobs.tick(budget=0.5)
            for state in ("while it is drained", "after a vacuum"):
                if state == "after a vacuum":
                    self._vacuum()
                times = []
                for _ in range(5):
                    began = time.perf_counter()
                    opened = find_batch(state_of(), batch.key)
                    times.append(time.perf_counter() - began)
                    assert opened is not None
                    assert opened.counts.total == runs
                median = statistics.median(times) * 1000
                print(f"{name}: figures of {runs:,} runs {state}: {median:.0f} ms")

    def _batch(self) -> Batch:
        self._number += 1
        return self.jobs.batch(f"batch {self._number}", then=self.then)

    def _empty(self) -> None:
        for table in ("job_runs", "job_batches"):
            self.db.session.execute(text(f"DELETE FROM {table}"))
        self.db.session.commit()

    def _vacuum(self) -> None:
        if self.db.engine.dialect.name == "postgresql":
            with self.db.engine.connect() as connection:
                raw = connection.execution_options(isolation_level="AUTOCOMMIT")
                raw.execute(text("VACUUM ANALYZE"))


def _noop() -> None:
    """Do nothing."""


if __name__ == "__main__":
    main()
