"""Measure what the extension costs at the start of a process, in CPU time.

``python -m benchmarks.startup`` alternates whole processes with the same app: ``flask routes``
without the extension, the same with it, ``flask jobs tick`` with nothing due, and a process that
imports and initializes the extension and prints how long that took. Exits 1 if the median tick
costs over 15 % more than ``flask routes`` without the extension, or the median import with
initialization takes over 25 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import argument_parser
from tests import postgres

#: The limit of a tick, relative to ``flask routes`` without the extension.
BOUND = 1.15
#: How many milliseconds of CPU time importing and initializing the extension may take.
BOUND_MS = 25.0

PLAIN = """
import os
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app)
"""
APP = f"""
{PLAIN}
from flask_cronjobs import CronJobs
jobs = CronJobs(app)

@jobs.task(schedule="0 7 1 1 *")
def yearly(): pass
"""
#: The imports of Flask, Flask-SQLAlchemy and the driver do not count.
TIMED = f"""
import time
import flask.cli, sqlalchemy.orm
{PLAIN}
before = time.process_time()
from flask_cronjobs import CronJobs
CronJobs(app)
print((time.process_time() - before) * 1000)
"""


@dataclass
class Figures:
    """The figures of the rounds on one database: CPU seconds, and milliseconds for *start*."""

    plain: list[float] = field(default_factory=list[float])
    routes: list[float] = field(default_factory=list[float])
    tick: list[float] = field(default_factory=list[float])
    start: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        """Return the cost of a tick, relative to the plain app."""
        return statistics.median(t / p for t, p in zip(self.tick, self.plain, strict=True))

    @property
    def good(self) -> bool:
        """Return whether both bounds hold."""
        return self.ratio <= BOUND and statistics.median(self.start) <= BOUND_MS


def main() -> None:
    """Measure on both databases, print, and exit 1 if a bound is missed."""
    parser = argument_parser("startup", __doc__, "a form for CI, without the bounds")
    parser.add_argument("--rounds", type=int, default=15, help="how often each is measured")
    options = parser.parse_args()
    rounds = 3 if options.short else options.rounds
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        for name, text in (("plain", PLAIN), ("jobs", APP), ("timed", TIMED)):
            Path(folder, f"{name}.py").write_text(text)
        urls = {
            "PostgreSQL": server.create_database(),
            "SQLite": f"sqlite:///{Path(folder) / 'jobs.sqlite'}",
        }
        good = [_measure(name, url, folder, rounds).good for name, url in urls.items()]
    if not options.short and not all(good):
        sys.exit(1)


def _measure(name: str, url: str, folder: str, rounds: int) -> Figures:
    for arguments in (["jobs", "admin", "init"], ["jobs", "tick"], ["jobs", "tick"]):
        _run("jobs", arguments, url, folder)
    figures = Figures()
    for _ in range(rounds):
        figures.plain.append(_run("plain", ["routes"], url, folder)[0])
        figures.routes.append(_run("jobs", ["routes"], url, folder)[0])
        figures.tick.append(_run("jobs", ["jobs", "tick"], url, folder)[0])
        figures.start.append(float(_run("timed", None, url, folder)[1]))
    middle = {key: statistics.median(values) for key, values in vars(figures).items()}
    print(
        f"{name:<10}  flask routes: without the extension {middle['plain']:.3f} s, "
        f"with it {middle['routes']:.3f} s   "
        f"flask jobs tick, nothing due: {middle['tick']:.3f} s   "
        f"ratio {figures.ratio:.2f} (bound {BOUND})   "
        f"import and init {middle['start']:.1f} ms (bound {BOUND_MS:g})",
        flush=True,
    )
    return figures


def _run(app: str, arguments: list[str] | None, url: str, folder: str) -> tuple[float, str]:
    """Run a command of an app, or its module; return its CPU seconds and what it printed."""
    environment = {**os.environ, "DATABASE_URL": url, "FLASK_APP": app}
    # Without bytecode, each process would compile the module's text.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = ["-m", app] if arguments is None else ["-m", "flask", *arguments]
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{app}: {arguments} ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, printed


if __name__ == "__main__":
    main()
