"""In debug mode, the worker beside the server is replaced when code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.support import PATIENCE, wait_until

APP = """
import pathlib, time
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs
import words

here = pathlib.Path(__file__).parent
app = Flask("shop")
app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{here / 'shop.sqlite'}"
app.config.from_prefixed_env()
db = SQLAlchemy(app)
jobs = CronJobs(app)

def note(name, text):
    with (here / name).open("a") as file:
        file.write(f"{text}\\n")

@jobs.task
def say():
    note("said", words.WORD)

@jobs.task(retry=False)
def linger():
    note("lingers", "begun")
    while not (here / "gate").exists():
        time.sleep(0.01)
    note("lingers", "ended")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the app, whose tables exist."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "words.py").write_text("WORD = 'old'\n")
    subprocess.run(flask("jobs", "admin", "init"), cwd=tmp_path, check=True)
    return tmp_path


def flask(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flask", "--app", "app.py", *arguments]


@contextmanager
def at_work(folder: Path, *arguments: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in debug mode that runs two runs; its errors go to the file ``errors``."""
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            flask(*arguments), cwd=folder, stderr=errors, env=os.environ | env
        )
    try:
        enqueue(folder, "say", "linger")
        wait_until(lambda: lines(folder, "said") == ["old"])
        wait_until(lambda: lines(folder, "lingers") == ["begun"])
        yield process
    finally:
        process.kill()
        process.wait()


def enqueue(folder: Path, *names: str) -> None:
    code = "from app import app, jobs\nwith app.app_context():\n" + "\n".join(
        f" jobs.enqueue({name!r}, commit=True)" for name in names
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def change(folder: Path) -> None:
    words = folder / "words.py"
    words.write_text("WORD = 'another'\n")
    later = words.stat().st_mtime + 10
    os.utime(words, (later, later))


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split() if (folder / name).exists() else []


def let_linger_end(folder: Path) -> None:
    (folder / "gate").touch()
    wait_until(lambda: lines(folder, "lingers") == ["begun", "ended"])


def is_new(folder: Path) -> bool:
    """Return whether the new code executes what is enqueued now."""
    enqueue(folder, "say")
    return "another" in lines(folder, "said")


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE)


def test_flask_run_in_debug_mode_has_a_worker_beside_the_server(folder: Path) -> None:
    """When code has changed, another worker starts, while the old one lets its run end."""
    env = {"FLASK_CRONJOBS_WORK_IN_DEBUG": "true", "FLASK_CRONJOBS_SHUTDOWN_GRACE": "60"}
    with at_work(folder, "run", "--debug", "--port", "0", **env) as process:
        change(folder)
        wait_until(lambda: is_new(folder))
        let_linger_end(folder)
        stop(process)
    errors = folder / "errors"
    wait_until(lambda: errors.read_text().count("has ended, so the workers stop") == 2)
