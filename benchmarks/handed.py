"""Compare runs handed to Celery with plain Celery tasks and their result backend.

``python -m benchmarks.handed`` starts a Redis server and one Celery worker. In turn, it sends tasks
that do nothing to the worker and waits until the result backend has all results; and it enqueues as
many runs, which a tick hands on to the same worker, and waits until all have succeeded in
PostgreSQL. Ours must be at least half as fast. Both begin with a round that is not measured.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, select

from benchmarks import argument_parser
from tests import brokers, postgres

#: How fast ours must be, at least, relative to plain Celery.
BOUND = 0.5

APP = """
import os
from celery import Celery
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs
from flask_cronjobs.executors.celery import init

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
app.config["CRONJOBS_EXECUTORS"] = {"far": "celery"}
app.config["CRONJOBS_HANDED_LIMIT"] = 1000
db = SQLAlchemy(app)
jobs = CronJobs(app)
celery = Celery("app", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
init(celery, app)

@jobs.task(queue="far")
def ours(): pass

@celery.task
def plain(): pass
"""


def main() -> None:
    """Measure both in turn, print the rates, and fail below the bound."""
    parser = argument_parser("handed", __doc__, "a form for CI, without the bound")
    parser.add_argument("--runs", type=int, default=2000, help="runs of a round")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument(
        "--concurrency", type=int, default=os.cpu_count() or 2, help="processes of Celery's worker"
    )
    options = parser.parse_args()
    runs, rounds = (200, 1) if options.short else (options.runs, options.rounds)
    with (
        brokers.running_redis() as redis,
        postgres.running_server() as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        if redis is None:
            print("There is no redis-server, and none can be installed.")
            return
        os.environ |= {"DATABASE_URL": server.create_database(), "REDIS_URL": redis.url}
        Path(folder, "handed_app.py").write_text(APP)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), folder])
        sys.path.insert(0, folder)
        ratio = _measure(runs, rounds, options.concurrency)
    if ratio < BOUND and not options.short:
        sys.exit(f"less than {BOUND:g} of plain Celery")


def _measure(runs: int, rounds: int, concurrency: int) -> float:
    import handed_app  # type: ignore[import-not-found]

    with handed_app.app.app_context():
        handed_app.db.create_all()
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "handed_app.celery",
            "worker",
            "-Q",
            "far,celery",
        ]
        worker = subprocess.Popen([*command, "-c", str(concurrency), "--loglevel", "ERROR"])
        try:
            _plain(handed_app, 50)
            _ours(handed_app, 50)
            rates = [(_plain(handed_app, runs), _ours(handed_app, runs)) for _ in range(rounds)]
        finally:
            worker.terminate()
            worker.wait()
    plain, ours = (statistics.median(speeds) for speeds in zip(*rates, strict=True))
    ratio = statistics.median(ours / plain for plain, ours in rates)
    print(f"plain Celery, Redis results  {plain:7.0f} a second")
    print(f"handed to Celery             {ours:7.0f} a second, {ratio:.2f} of it")
    return ratio


def _plain(app: object, runs: int) -> float:
    started = time.perf_counter()
    results = [app.plain.delay() for _ in range(runs)]  # type: ignore[attr-defined]
    for result in results:
        result.get()
    return runs / (time.perf_counter() - started)


def _ours(app: object, runs: int) -> float:
    from flask_cronjobs.models import JobRun

    db = app.db  # type: ignore[attr-defined]
    unfinished = select(func.count()).where(JobRun.finished_at.is_(None))
    app.ours.enqueue_many([{}] * runs)  # type: ignore[attr-defined]
    db.session.commit()
    started = time.perf_counter()
    app.jobs.tick()  # type: ignore[attr-defined]
    while db.session.scalar(unfinished):
        db.session.rollback()
        time.sleep(0.01)
    db.session.rollback()
    return runs / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
