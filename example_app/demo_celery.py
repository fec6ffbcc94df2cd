"""``python -m example_app.demo_celery``: the same demo, with runs executed by Celery.

It starts a Redis server and a worker, and ends both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import func, select

from flask_cronjobs.models import JobRun

from .demo import GRUMPY, ROOT, Demo, farewell, note, say
from .extensions import db
from .mailbox import Mailbox

#: Seconds that the worker may take to execute the runs that a tick has handed over.
PATIENCE = 60.0
#: Started in its own process: the demo's app for Celery's command.
WORKER = "from example_app import create_app; create_app().extensions['celery'].worker_main()"


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m example_app.demo_celery", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "instance" / "demo-celery",
        help="the folder of its database",
    )
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old_file in folder.glob("demo.sqlite*"):
        old_file.unlink()
    url = f"sqlite:///{folder / 'demo.sqlite'}"
    with Mailbox() as mailbox, redis_server(folder) as broker:
        mailbox.answers[GRUMPY] = ["451 4.3.0 Try again later"]
        os.environ["CELERY_BROKER_URL"] = broker
        try:
            demo = CeleryDemo(url, mailbox)
            with celery_worker(folder, url, mailbox.port):
                demo.play()
        finally:
            del os.environ["CELERY_BROKER_URL"]
    farewell(url)


class CeleryDemo(Demo):
    """The demo with the setting ``CRONJOBS_EXECUTORS``, which `example_app` reads."""

    def flask(self, *arguments: str) -> None:
        """Run a flask command; after a tick, wait until Celery has executed what it handed over."""
        super().flask(*arguments)
        if arguments == ("jobs", "tick"):
            self._wait()

    def kill_a_worker(self) -> None:
        """Kill no worker: in this demo, a tick only hands runs over."""

    def _wait(self) -> None:
        handed = select(func.count(JobRun.id)).where(JobRun.status == "running")
        until = time.monotonic() + PATIENCE
        with self.app.app_context():
            while number := db.session.scalar(handed):
                db.session.rollback()
                if time.monotonic() > until:
                    sys.exit(f"{number} runs wait for Celery: see worker.log.")
                time.sleep(0.1)
        note("Celery's worker has executed what the tick handed over.")


@contextmanager
def redis_server(folder: Path) -> Generator[str]:
    """Start a Redis server, and yield its URL."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("There is no redis-server here. Install it: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def celery_worker(folder: Path, url: str, mail_port: int) -> Generator[None]:
    """Start a Celery worker for the queue ``default``."""
    say("Celery", "A Redis server, and a Celery worker for the queue of this app's tasks.")
    arguments = ["worker", "--queues", "default", "--concurrency", "2", "--loglevel", "INFO"]
    print(f"$ celery -A … {' '.join(arguments)}", flush=True)
    environment = {**os.environ, "DATABASE_URL": url, "MAIL_PORT": str(mail_port)}
    script = WORKER.replace("worker_main()", f"worker_main({arguments!r})")
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
