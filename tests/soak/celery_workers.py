"""Celery's workers in a soak: one after the other, until the file that stops them exists."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.soak.app import HANDED

COMMAND = "from tests.soak.app import create_app; create_app().extensions['celery'].worker_main"
ARGUMENTS = ["worker", "--concurrency", "2", "--loglevel", "WARNING"]
#: How long a worker may take to let its runs end, in seconds.
PATIENCE = 40.0


def main() -> None:
    """Start a worker, and another one whenever it has ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--name", required=True)
    options = parser.parse_args()
    soak = os.getppid()
    arguments = [*ARGUMENTS, "--hostname", f"{options.name}@soak"]
    arguments += ["--queues", os.environ[HANDED]]
    while not options.stop.exists() and os.getppid() == soak:
        worker = subprocess.Popen(
            [sys.executable, "-c", f"{COMMAND}({arguments!r})"], start_new_session=True
        )
        while worker.poll() is None:
            if options.stop.exists() or os.getppid() != soak:
                end(worker)
            time.sleep(0.1)


def end(worker: subprocess.Popen[bytes]) -> None:
    """Let *worker* finish its runs; if it does not end, kill it."""
    worker.send_signal(signal.SIGTERM)
    try:
        worker.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


if __name__ == "__main__":
    main()
