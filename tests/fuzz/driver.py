"""Starts workers until there were enough interruptions, and checks what they have done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from tests.fuzz import app as fuzz_app

#: How long a worker may print nothing before it is ended, in seconds.
SILENCE = 60.0
#: How many workers are started, at most, if they end too early.
WORKERS = 10
#: An interruption may cause an error of these in turn, which must not be recorded in its place.
DRIVERS = ("sqlite3.", "psycopg.", "sqlalchemy.")


@dataclass
class Report:
    """The results of a fuzz.

    :ivar interrupted: the number of interruptions by the kind of handler, the cause, and the
        exception.
    :ivar wrong: the problems.
    :ivar unheard: handlers whose interruption did not come.
    """

    interrupted: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    done: bool = False


def fuzz(url: str, folder: Path, interruptions: int, seed: int, queries: bool = False) -> Report:
    """Interrupt handlers on the database at *url*, which is empty.

    :param queries: whether to interrupt only inside queries.
    :param folder: an empty folder for the log of effects and for what workers print.
    """
    prepare(url, folder)
    report = Report()
    for number in range(WORKERS):
        rest = interruptions - report.interrupted.total()
        _work(report, _arguments(url, folder, max(rest, 0), seed + number, queries), folder)
        if report.done:
            break
    else:
        report.wrong.append(f"{WORKERS} worker processes ended too early")
    engine = create_engine(url)
    with engine.connect() as connection:
        report.wrong += wrong(connection, folder)
    engine.dispose()
    return report


def _arguments(url: str, folder: Path, interruptions: int, seed: int, queries: bool) -> list[str]:
    values = {"url": url, "folder": folder, "interruptions": interruptions, "seed": seed}
    options = [f"--{name}={value}" for name, value in values.items()]
    return ["--queries", *options] if queries else options


def prepare(url: str, folder: Path) -> None:
    """Make the tables in the database at *url*, and an empty log of effects in *folder*."""
    (folder / "effects").touch()
    app = fuzz_app.create_app(url, str(folder))
    with app.app_context():
        fuzz_app.db.create_all()
        fuzz_app.db.session.add(fuzz_app.Shared(id=1))
        fuzz_app.db.session.commit()
        fuzz_app.db.session.remove()
        fuzz_app.db.engine.dispose()


def _work(report: Report, arguments: list[str], folder: Path) -> None:
    """Let one worker process interrupt handlers, and add what it prints to *report*."""
    with (folder / "log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", *arguments],
            # The seed also decides what its handlers do.
            env=os.environ | {fuzz_app.SEED: arguments[-1]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert worker.stdout is not None
        with worker, worker.stdout:
            timer = _ended_when_silent(worker)
            for line in worker.stdout:
                timer.cancel()
                timer = _ended_when_silent(worker)
                hear(report, json.loads(line))
            timer.cancel()
    if worker.returncode != 0:
        report.wrong.append(f"a worker ended with {worker.returncode}; see the log")


def _ended_when_silent(worker: subprocess.Popen[str]) -> threading.Timer:
    # On SIGABRT, faulthandler prints where it hangs.
    timer = threading.Timer(SILENCE, worker.send_signal, [signal.SIGABRT])
    timer.daemon = True
    timer.start()
    return timer


def hear(report: Report, said: dict[str, str | int]) -> None:
    """Add a line that a worker printed to *report*."""
    if "interrupted" in said:
        report.interrupted[str(said["interrupted"]), str(said["how"]), str(said["error"])] += 1
    elif "wrong" in said:
        report.wrong.append(f"{said['wrong']} (after {report.interrupted.total()} interruptions)")
    elif "unheard" in said:
        report.unheard.append(str(said["unheard"]))
    else:
        report.done = True


def wrong(connection: Connection, folder: Path) -> Iterator[str]:
    """Yield the problems in the database, and in the log of effects in *folder*."""
    yield from _effects(connection, (folder / "effects").read_text().split())
    yield from _halves(connection)
    yield from _atomic(connection)
    yield from _unfinished(connection)
    yield from _errors(connection)


def _effects(connection: Connection, log: list[str]) -> Iterator[str]:
    """Each effect was done once, unless it may be repeated when in doubt."""
    times = Counter(log)
    marks = connection.execute(text("SELECT key, state, run_id FROM job_effects")).all()
    states = {row.key: row.state for row in marks}
    for key, number in times.items():
        again = int(key.split(":")[1]) % 2 == 1  # These are called with in_doubt="redo".
        if number > 1 and not again:
            yield f"the effect {key} was done {number} times"
        if key not in states:
            yield f"the effect {key} was done and has no mark"
    for key, state in states.items():
        if state == "done" and not times[key]:
            yield f"the effect {key} is marked as done and was not"


def _halves(connection: Connection) -> Iterator[str]:
    """Each transaction was committed as a whole or not at all."""
    sql = (
        "SELECT run_id, token, step, count(*) AS number FROM fuzz_entries"
        " GROUP BY run_id, token, step HAVING count(*) <> 2"
    )
    for row in connection.execute(text(sql)):
        yield f"run {row.run_id} committed {row.number} rows of 2 in its step {row.step}"


def _atomic(connection: Connection) -> Iterator[str]:
    """An atomic run has left the rows of one attempt if it succeeded, and none otherwise."""
    sql = (
        "SELECT r.id, r.status, count(DISTINCT e.token) AS number FROM job_runs r"
        " LEFT JOIN fuzz_entries e ON e.run_id = r.id"
        " WHERE r.job_type LIKE 'atomic%' GROUP BY r.id, r.status"
    )
    for row in connection.execute(text(sql)):
        if row.number != int(row.status == "succeeded"):
            yield f"the atomic run {row.id} is {row.status}, and left rows of {row.number} attempts"


def _unfinished(connection: Connection) -> Iterator[str]:
    sql = "SELECT id, status FROM job_runs WHERE status IN ('queued', 'failed', 'running')"
    for row in connection.execute(text(sql)):
        yield f"run {row.id} is {row.status} still"


def _errors(connection: Connection) -> Iterator[str]:
    """The recorded error of an interrupted attempt is the interruption, not one of the driver."""
    sql = (
        "SELECT run_id, attempt, error_type FROM job_failures"
        " UNION SELECT id, attempts, error_type FROM job_runs WHERE status IN ('dead', 'failed')"
    )
    for row in connection.execute(text(sql)):
        if str(row.error_type).startswith(DRIVERS):
            yield f"attempt {row.attempt} of run {row.run_id} is recorded as {row.error_type}"
