"""``tick`` and ``work`` on a terminal, in a pipe and into a log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from tests.cli.terminal import PATIENCE, ROOT, Terminal
from tests.rows import Rows

APP = """
import logging
import os
import subprocess
import sys
import time

from flask import Flask
from flask_cronjobs import CronJobs
from flask_sqlalchemy import SQLAlchemy

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["URL"]
SQLAlchemy(app)
jobs = CronJobs(app)
standard = sys.stdout


@jobs.task(schedule="0 7 1 1 *")
def yearly(): ...


@jobs.task(timeout=60)
def export():
    print("begun", end="", flush=True)
    time.sleep(0.2)
    print()
    for number in range(30):
        print(f"printed {number}", file=(sys.stdout, sys.stderr)[number % 2], flush=True)
    subprocess.run(["echo", "by a program"], check=True)


@jobs.task(retry=False)
def broken():
    raise ValueError("no such thing")


@jobs.task
def talk():
    logging.basicConfig(stream=standard, level=logging.INFO)
    print("printed")
    standard.write("buffered")
    subprocess.run(["echo", "by a command"], check=True)
    logging.info("logged")
"""
SAID = [*(f"printed {number}" for number in range(30)), "by a program"]
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


class Place:
    """A folder with the app, on a database with the job tables."""

    def __init__(self, folder: Path, url: str, rows: Rows) -> None:
        self.folder = folder
        self.rows = rows
        self.env = {"URL": url, "FLASK_APP": "app.py"}
        self.started: ExitStack = ExitStack()
        (folder / "app.py").write_text(APP)

    def enqueue(self, task: str) -> None:
        """Insert a run of *task* that is due, which dies if its first attempt fails."""
        self.rows.run(job_type=task, max_attempts=1)

    def start(
        self, *args: str, stdout: IO[str] | int, stderr: int | None = None
    ) -> subprocess.Popen[str]:
        """Start ``flask jobs`` with its standard output somewhere."""
        return subprocess.Popen(
            [sys.executable, "-m", "flask", "jobs", *args], cwd=self.folder, text=True,
            stdout=stdout, stderr=stderr, env={**os.environ, **self.env, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def output(self, *args: str) -> str:
        """Run ``flask jobs`` in a pipe, and return what it printed."""
        output, _ = self.start(*args, stdout=subprocess.PIPE).communicate(timeout=PATIENCE)
        return output

    def on_terminal(self, *args: str, size: tuple[int, int] = (24, 80), **env: str) -> Terminal:
        """Run ``flask jobs`` on a terminal."""
        terminal = Terminal("jobs", *args, env={**self.env, **env}, cwd=self.folder, size=size)
        return self.started.enter_context(terminal)


@pytest.fixture
def place(tmp_path: Path, database_url: str, rows: Rows) -> Iterator[Place]:
    place = Place(tmp_path, database_url, rows)
    with place.started:
        yield place


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_handlers_and_their_programs_print_stands_before_the_outcome(
    place: Place, workers: str
) -> None:
    place.enqueue("export")
    terminal = place.on_terminal("tick", "--workers", workers)
    assert terminal.end() == 0
    first, *lines, outcome, summary = terminal.lines
    assert (first, lines) == ("begun", SAID)
    assert re.search("succeeded.*  export  run 1  attempt 1  ", outcome)
    assert summary.startswith("tick: 1 succeeded in ")


def test_outcomes_have_colors_on_a_terminal_unless_no_color_is_set(place: Place) -> None:
    place.enqueue("broken")
    terminal = place.on_terminal("tick")
    assert terminal.end() == 0
    assert "\x1b[31mdead     \x1b[0m  broken  run 1" in terminal.output
    place.enqueue("broken")
    plain = place.on_terminal("tick", NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b" not in plain.output
    assert plain.lines[0].startswith("dead       broken  run 2")


def test_work_greets_on_a_terminal_and_lets_runs_end_at_ctrl_c(place: Place) -> None:
    place.rows.run(job_type="broken", age=-90)
    terminal = place.on_terminal("work")
    terminal.wait_for(lambda output: "Working until Ctrl-C; next: broken, " in output)
    place.enqueue("export")
    terminal.wait_for(lambda output: "begun" in output)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert terminal.lines[-1].startswith("succeeded  export  run 2")


def test_tick_has_the_time_of_each_line_in_a_log_and_work_in_a_pipe(place: Place) -> None:
    log = place.folder / "log"
    place.enqueue("broken")
    with log.open("w") as file:
        assert place.start("tick", stdout=file).wait(PATIENCE) == 0
    first, second = log.read_text().splitlines()
    assert re.match(f"{STAMP}dead       broken  run 1", first)
    assert re.match(f"{STAMP}tick: 1 dead in ", second)
    place.enqueue("broken")
    process = place.start("work", stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    rest, _ = process.communicate(timeout=PATIENCE)
    assert re.match(f"{STAMP}dead       broken  run 2", line)
    assert (rest, process.returncode) == ("", 0)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.slow
def test_json_stays_one_object_whatever_handlers_print(place: Place, workers: str) -> None:
    place.enqueue("talk")
    args = ("tick", "--json", "--workers", workers)
    process = place.start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=PATIENCE)
    assert json.loads(output)["tick"]["succeeded"] == 1
    for line in ("printed", "buffered", "by a command", "logged"):
        assert line in errors
