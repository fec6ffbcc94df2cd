"""Measure how many milliseconds after its enqueue ``flask jobs work`` begins a run.

``python -m benchmarks.latency`` runs three resident workers in turn: on PostgreSQL, on PostgreSQL
without listening to NOTIFY, and on SQLite. Each has its own database, idle except for one enqueue
at a time, at random moments. The database's clock measures from the insert to the claim.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from benchmarks import argument_parser
from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun, JobTick
from tests import postgres

APP = """
import os
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs
from flask_cronjobs.db.notify import Notifications

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app)
jobs = CronJobs(app)
if os.environ["DEAF"]:
    Notifications.listen = lambda self: False

@jobs.task
def noop(): pass
"""


def main() -> None:
    """Measure each worker and print the results."""
    parser = argument_parser("latency", __doc__, "a form for CI")
    parser.add_argument("--runs", type=int, default=60, help="runs of a round")
    options = parser.parse_args()
    runs = 5 if options.short else options.runs
    with postgres.running_server() as server, tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        _measure("PostgreSQL, NOTIFY", server.create_database(), "", folder, runs)
        _measure("PostgreSQL, deaf", server.create_database(), "1", folder, runs)
        _measure("SQLite", f"sqlite:///{Path(folder) / 'jobs.sqlite'}", "", folder, runs)


def _measure(name: str, url: str, deaf: str, folder: str, runs: int) -> None:
    app = Flask("enqueuer")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)
    jobs = CronJobs(app)
    jobs.task(name="noop")(_noop)
    with app.app_context():
        db.create_all()
        environment = {**os.environ, "DATABASE_URL": url, "FLASK_APP": "app", "DEAF": deaf}
        command = [sys.executable, "-m", "flask", "jobs", "work"]
        worker = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            while not db.session.scalars(select(JobTick)).all():
                _pause(db)
            for _ in range(runs):
                _pause(db)
                jobs.enqueue("noop", {})
                db.session.commit()
            while db.session.scalars(select(JobRun).where(JobRun.status != "succeeded")).all():
                _pause(db)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()
        rows = db.session.scalars(select(JobRun)).all()
        waits = [
            (run.started_at - run.created_at).total_seconds() * 1000
            for run in rows
            if run.started_at is not None
        ]
        db.engine.dispose()
    print(
        f"{name:<19}  median {statistics.median(waits):6.1f} ms   worst {max(waits):6.1f} ms   "
        f"of {len(waits)} runs",
        flush=True,
    )


def _noop() -> None: ...


def _pause(db: SQLAlchemy) -> None:
    db.session.rollback()
    time.sleep(random.uniform(0.3, 0.7))


if __name__ == "__main__":
    main()
