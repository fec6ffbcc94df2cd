"""The app that the process tests run ticks of. Environment variables say how; see `support.Site`.

Handlers say what they do in the trace: a file to which each appends lines of JSON, which is there
whatever becomes of the process. `TRACE`, `DATABASE` and `CONFIG` are the variables.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from flask_cronjobs import CronJobs, Discard, Retry, RetryLater, current_run, in_run
from flask_cronjobs.engine import reclaim

DATABASE = "JOBS_APP_DATABASE"
TRACE = "JOBS_APP_TRACE"
CONFIG = "JOBS_APP_CONFIG"
LOG_LEVEL = "JOBS_APP_LOG_LEVEL"

# On SQLite, reclaiming waits for living workers; here there is no lock to wait for.
vars(reclaim)["renewal_window"] = lambda lease: 0.2

AGAIN = Retry(max_attempts=5, backoff="fixed", base=0, jitter=False)

db = SQLAlchemy()
jobs = CronJobs()


class Entry(db.Model):  # type: ignore[name-defined,misc]
    """A row of the app's own, for handlers that work in ``db.session``."""

    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    label: Mapped[str] = mapped_column(String)
    run_id: Mapped[int] = mapped_column(Integer)


def create_app(
    url: str | None = None, trace: Path | None = None, config: Mapping[str, Any] | None = None
) -> Flask:
    """The app on *url*; by default all is as the environment says."""
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url or os.environ[DATABASE]
    app.config["JOBS_APP_TRACE"] = str(trace or os.environ[TRACE])
    app.config.update(json.loads(os.environ.get(CONFIG, "{}")) if config is None else config)
    if level := os.environ.get(LOG_LEVEL):
        logging.basicConfig(level=level)
    db.init_app(app)
    jobs.init_app(app)
    return app


def say(what: str, **more: object) -> None:
    """Append one line to the trace."""
    from flask import current_app

    line = {"what": what, "pid": os.getpid(), "at": time.time(), **more}
    if in_run():
        line |= {"run": current_run.id, "attempt": current_run.attempt}
    file = os.open(current_app.config["JOBS_APP_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # One write to a file opened for appending is not mixed with another's.
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def nap(seconds: float) -> None:
    """Sleep in short pieces.

    Python heeds a signal that came just before a sleep when the sleep has ended, and not sooner.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))


@jobs.task(retry=AGAIN)
def note(label: str = "") -> str:
    """Say ``note``, and be done."""
    say("note", label=label)
    return label


@jobs.task(retry=AGAIN, concurrency_key="account:{account}", order="strict")
def book(account: str, number: int) -> None:
    """Say ``booked``, of one account one after the other; some fail at first."""
    if number % 3 == 1 and current_run.attempt == 1:
        raise RuntimeError("as it was asked to")
    say("booked", account=account, number=number)


@jobs.task(retry=AGAIN)
def sleep(seconds: float, label: str = "") -> None:
    """Say ``begun``, sleep, say ``ended``; if interrupted, say ``interrupted`` and by what."""
    say("begun", label=label)
    try:
        nap(seconds)
    except BaseException as error:
        say("interrupted", label=label, by=type(error).__name__)
        raise
    say("ended", label=label)


@jobs.task(retry=AGAIN)
def wait_for(path: str, label: str = "") -> None:
    """Say ``begun``, wait until the file *path* exists, say ``ended``."""
    say("begun", label=label)
    while not Path(path).exists():
        time.sleep(0.02)
    say("ended", label=label)


@jobs.task(retry=AGAIN)
def wait_once(label: str = "", seconds: float = 300.0) -> None:
    """At the first attempt as `sleep`; at later ones say ``redone`` at once."""
    if current_run.attempt > 1:
        say("redone", label=label)
        return
    say("begun", label=label)
    nap(seconds)
    say("ended", label=label)


@jobs.task(retry=AGAIN)
def stubborn(seconds: float, label: str = "") -> None:
    """Say ``begun``, swallow every interruption for *seconds* and say so, say ``ended``."""
    say("begun", label=label)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            nap(left)
        except BaseException as error:
            say("swallowed", label=label, by=type(error).__name__)
    say("ended", label=label)


@jobs.task(retry=AGAIN, timeout=0.3)
def too_long(seconds: float = 60.0, label: str = "") -> None:
    """Sleep for longer than the task's timeout, which interrupts it."""
    say("begun", label=label)
    nap(seconds)
    say("ended", label=label)


@jobs.task(retry=AGAIN, timeout=0.3)
def too_long_and_stubborn(seconds: float = 60.0, label: str = "") -> None:
    """Sleep for longer than the task's timeout, and swallow every interruption."""
    stubborn(seconds, label)


@jobs.task(retry=AGAIN)
def kill_self(signal_number: int = signal.SIGKILL, attempts: int = 1000, label: str = "") -> None:
    """Send this process a signal, at each of the first *attempts*; afterwards say ``survived``."""
    say("begun", label=label)
    if current_run.attempt <= attempts:
        os.kill(os.getpid(), signal_number)
        time.sleep(60)
    say("survived", label=label)


@jobs.task(retry=AGAIN)
def fail(message: str = "as asked", attempts: int = 1000) -> None:
    """Raise at each of the first *attempts*; afterwards say ``recovered``."""
    say("begun")
    if current_run.attempt <= attempts:
        raise RuntimeError(message)
    say("recovered")


@jobs.task(retry=AGAIN)
def later(delay: float = 0.0) -> None:
    """Ask to be tried later, once."""
    say("begun")
    if current_run.attempt == 1:
        raise RetryLater(delay, "not yet")
    say("ended")


@jobs.task
def discard() -> None:
    """Not wanted any more."""
    say("begun")
    raise Discard("not wanted")


@jobs.task(retry=AGAIN)
def effect(key: str, in_doubt: str = "skip", seconds: float = 0.0) -> object:
    """Do the effect *key*, which says ``effect``, once; then sleep and say ``ended``."""

    def do() -> str:
        say("effect", key=key)
        return key

    result: object = jobs.once(key, do, in_doubt=in_doubt)  # type: ignore[arg-type]
    nap(seconds)
    say("ended", key=key)
    return result


@jobs.task(retry=AGAIN, atomic=True)
def atomic_entry(label: str, seconds: float = 0.0) -> None:
    """Insert an `Entry`, which commits together with the run's success."""
    db.session.add(Entry(label=label, run_id=current_run.id))
    db.session.flush()
    say("begun", label=label)
    nap(seconds)


@jobs.task(retry=AGAIN)
def entry(label: str) -> None:
    """Insert an `Entry` and commit it."""
    db.session.add(Entry(label=label, run_id=current_run.id))
    db.session.commit()
    say("note", label=label)


@jobs.task(retry=AGAIN, concurrency=1, concurrency_key="key:{key}")
def one_at_a_time(key: str, seconds: float = 0.02, label: str = "") -> None:
    """Say ``begun``, sleep, say ``ended``; one of a key at a time."""
    say("begun", key=key, label=label)
    nap(seconds)
    say("ended", key=key, label=label)


@jobs.task(retry=AGAIN)
def on_schedule(name: str) -> None:
    """What the scheduled definitions run: says ``slot``."""
    say("slot", name=name, slot=current_run.scheduled_for.isoformat())


for number in range(5):
    on_schedule.schedule(
        "* * * * *", name=f"scheduled-{number}", payload={"name": f"scheduled-{number}"}
    )
