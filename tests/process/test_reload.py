"""``flask jobs work --reload``: the worker is replaced when code changes, and its runs may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.support import wait_until

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
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "words.py").write_text("WORD = 'old'\n")
    return tmp_path


def flask(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "flask", "--app", str(folder / "app.py"), *arguments]


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


def test_a_change_of_code_replaces_the_worker_and_its_runs_end_first(folder: Path) -> None:
    subprocess.run(flask(folder, "jobs", "admin", "init"), cwd=folder, check=True)
    work = flask(folder, "--debug", "jobs", "work", "--reload")
    process = subprocess.Popen(work, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        enqueue(folder, "say", "linger")
        wait_until(lambda: lines(folder, "said") == ["old"])
        wait_until(lambda: lines(folder, "lingers") == ["begun"])
        change(folder)
        (folder / "gate").touch()
        wait_until(lambda: lines(folder, "lingers") == ["begun", "ended"])

        def is_new() -> bool:
            enqueue(folder, "say")
            return "another" in lines(folder, "said")

        wait_until(is_new)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert "goes on with the code as it is now" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    before = len(lines(folder, "said"))
    enqueue(folder, "say")
    again = flask(folder, "jobs", "tick")
    assert (
        "succeeded  say" in subprocess.run(again, cwd=folder, capture_output=True).stdout.decode()
    )
    assert len(lines(folder, "said")) >= before + 1


def test_a_worker_in_debug_mode_says_that_it_does_not_see_changes(folder: Path) -> None:
    subprocess.run(flask(folder, "jobs", "admin", "init"), cwd=folder, check=True)
    work = flask(folder, "--debug", "jobs", "work", "--queue", "default", "--queue", "defaults")
    process = subprocess.Popen(work, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        enqueue(folder, "say")
        wait_until(lambda: lines(folder, "said") == ["old"])
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "the queue 'defaults'. Did you mean 'default'?" in said
    assert "To start it again when that changes: flask jobs work --reload" in said
    assert "the queue 'default'" not in said


def test_flask_run_in_debug_mode_has_a_worker_beside_the_server(folder: Path) -> None:
    """And another when code has changed, while that of the old code lets its run end."""
    subprocess.run(flask(folder, "jobs", "admin", "init"), cwd=folder, check=True)
    env = os.environ | {
        "FLASK_CRONJOBS_WORK_IN_DEBUG": "true",
        "FLASK_CRONJOBS_SHUTDOWN_GRACE": "60",
    }
    said = folder / "stderr"
    with said.open("w") as stderr:
        run = flask(folder, "run", "--debug", "--port", "0")
        process = subprocess.Popen(run, cwd=folder, stderr=stderr, env=env)
    try:
        enqueue(folder, "say", "linger")
        wait_until(lambda: lines(folder, "said") == ["old"])
        wait_until(lambda: lines(folder, "lingers") == ["begun"])
        change(folder)

        def is_new() -> bool:
            enqueue(folder, "say")
            return "another" in lines(folder, "said")

        wait_until(is_new)
        (folder / "gate").touch()
        wait_until(lambda: lines(folder, "lingers") == ["begun", "ended"])
    finally:
        process.terminate()
        process.wait()
    wait_until(lambda: said.read_text().count("has ended, so the workers stop") == 2)
