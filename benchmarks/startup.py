"""Measure the CPU seconds of an idle ``flask jobs tick``, compared to ``flask routes``.

``python -m benchmarks.startup`` alternates whole processes of both with the same app, and adds the
user and system time of each. Exits 1 if the median tick costs over 20 % more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import postgres

#: What the tick may cost, relative to ``flask routes``.
BOUND = 1.20

APP = """
import os
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app)
jobs = CronJobs(app)

@jobs.task(schedule="0 7 1 1 *")
def yearly(): pass
"""


def main() -> None:
    """Measure on both databases, print, and exit 1 if the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--short", action="store_true", help="a form for CI, without the bound")
    options = parser.parse_args()
    rounds = 3 if options.short else options.rounds
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        urls = {
            "PostgreSQL": server.create_database(),
            "SQLite": f"sqlite:///{Path(folder) / 'jobs.sqlite'}",
        }
        ratios = [_compare(name, url, folder, rounds) for name, url in urls.items()]
    if not options.short and max(ratios) > BOUND:
        sys.exit(1)


def _compare(name: str, url: str, folder: str, rounds: int) -> float:
    for command in (["admin", "init"], ["tick"]):
        _cpu(["jobs", *command], url, folder)
    routes, ticks = [], []
    for _ in range(rounds):
        routes.append(_cpu(["routes"], url, folder))
        ticks.append(_cpu(["jobs", "tick"], url, folder))
    ratio = statistics.median(tick / route for tick, route in zip(ticks, routes, strict=True))
    print(
        f"{name:<10}  flask routes {statistics.median(routes):.3f} s   "
        f"flask jobs tick, nothing due {statistics.median(ticks):.3f} s   ratio {ratio:.2f} "
        f"(bound {BOUND})",
        flush=True,
    )
    return ratio


def _cpu(arguments: list[str], url: str, folder: str) -> float:
    environment = {**os.environ, "DATABASE_URL": url, "FLASK_APP": "app"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flask", *arguments],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"flask {' '.join(arguments)} ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
