"""The app of the process tests. Environment variables configure it; see `support.Site`.

Handlers write to the trace: a file to which each appends lines of JSON, and which outlives its
process. `TRACE`, `DATABASE` and `CONFIG` are the variables. Some handlers do harm at their first
attempt, but not at later ones.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import logging
import multiprocessing
import os
import re
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from flask import Flask, current_app
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from flask_cronjobs import (
    CronJobs,
    Retry,
    RetryLater,
    current_run,
    in_run,
    run_succeeded,
    tick_finished,
)
from flask_cronjobs.core import reclaim
from flask_cronjobs.types import Outcome
from tests.features import parts

DATABASE = "JOBS_APP_DATABASE"
TRACE = "JOBS_APP_TRACE"
CONFIG = "JOBS_APP_CONFIG"
LOG_LEVEL = "JOBS_APP_LOG_LEVEL"
#: The variable that says how many connections the app's pool holds when its tick begins.
CONNECTED = "JOBS_APP_CONNECTED"

# On SQLite, reclaiming waits for living workers to renew; here, no lock keeps them from it.
vars(reclaim)["renewal_window"] = lambda lease: 0.2
if "FAKETIME" in os.environ:
    # libfaketime breaks the call by which Python sleeps if it leaves the monotonic clock alone.
    time.sleep = lambda seconds: select.select([], [], [], float(seconds))  # type: ignore[assignment]

AGAIN = Retry(max_attempts=5, backoff="fixed", base=0, jitter=False)

db = SQLAlchemy()
jobs = CronJobs()


class Entry(db.Model):  # type: ignore[name-defined,misc]
    """A row of the app's own table, for handlers that work in ``db.session``."""

    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    label: Mapped[str] = mapped_column(String)
    run_id: Mapped[int] = mapped_column(Integer)


def create_app(
    url: str | None = None, trace: Path | None = None, config: Mapping[str, Any] | None = None
) -> Flask:
    """Make the app on *url*; by default the environment configures it."""
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url or os.environ[DATABASE]
    app.config["JOBS_APP_TRACE"] = str(trace or os.environ[TRACE])
    app.config.update(json.loads(os.environ.get(CONFIG, "{}")) if config is None else config)
    if level := os.environ.get(LOG_LEVEL):
        logging.basicConfig(level=level)
    db.init_app(app)
    jobs.init_app(app)
    run_succeeded.connect(be_slow, app)
    if CONNECTED in os.environ:
        with app.app_context():
            say_backends()
        tick_finished.connect(say_backends, app)
    return app


def say(what: str, **more: object) -> None:
    """Append one line to the trace."""
    line = {"what": what, "pid": os.getpid(), "at": time.time(), **more}
    if in_run():
        line |= {"run": current_run.id, "attempt": current_run.attempt}
    file = os.open(current_app.config["JOBS_APP_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # One write to a file opened for appending is not mixed with another's.
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def told(**more: object) -> Generator[None]:
    """Say ``begun`` and ``ended``; if interrupted, say ``interrupted`` and the exception."""
    say("begun", **more)
    try:
        yield
    except BaseException as error:
        say("interrupted", by=type(error).__name__, **more)
        raise
    say("ended", **more)


def nap(seconds: float) -> None:
    """Sleep in short pieces.

    A signal that arrived just before a sleep is handled only when the sleep has ended.
    """
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, 0.05))


def wait_for_file(path: str) -> None:
    """Wait until the file *path* exists, but not forever."""
    until = time.monotonic() + 120
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.02)


def kill() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def backend() -> int:
    """Return the id of the server process behind the session's connection."""
    result = db.session.connection().exec_driver_sql("SELECT pg_backend_pid()")
    return int(result.scalar_one())


def say_backends(sender: Flask | None = None, **details: Any) -> None:
    """Say ``connected``, with the server processes behind the pool's connections."""
    connections = [db.engine.connect() for _ in range(int(os.environ[CONNECTED]))]
    pids = [c.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for c in connections]
    for connection in connections:
        connection.close()
    say("connected", backends=sorted(pids))


# Plain work


@jobs.task(retry=AGAIN)
def note(label: str = "") -> str:
    """Say ``note``."""
    say("note", label=label)
    return label


@jobs.task(retry=AGAIN, concurrency_key="account:{account}", order="strict")
def book(account: str, number: int) -> None:
    """Say ``booked``; the runs of an account are in strict order, and some fail at first."""
    if number % 3 == 1 and current_run.attempt == 1:
        raise RuntimeError("as it was asked to")
    say("booked", account=account, number=number)


@jobs.task(retry=AGAIN)
def sleep(seconds: float = 300.0) -> None:
    """Sleep in short pieces."""
    with told():
        nap(seconds)


@jobs.task(retry=AGAIN)
def wait_for(path: str) -> None:
    """Report progress, and wait until the file *path* exists."""
    current_run.progress(0.5, "half")
    with told():
        wait_for_file(path)


@jobs.task(retry=AGAIN, timeout=300)
async def async_wait(path: str = "/nowhere", seconds: float = 120.0) -> None:
    """Wait until the file *path* exists, at most *seconds*."""
    with told():
        until = time.monotonic() + seconds
        while not Path(path).exists() and time.monotonic() < until:
            await asyncio.sleep(0.02)


@jobs.task(retry=AGAIN)
def wait_once() -> None:
    """Sleep at the first attempt; at later ones say ``redone`` at once."""
    if current_run.attempt > 1:
        say("redone")
        return
    with told():
        nap(300.0)


@jobs.task(retry=AGAIN)
def fail(attempts: int = 1000) -> None:
    """Raise at each of the first *attempts*."""
    if current_run.attempt <= attempts:
        raise RuntimeError("as asked")


@jobs.task(retry=AGAIN)
def later(delay: float = 0.0) -> None:
    """Snooze once."""
    if current_run.attempt == 1:
        raise RetryLater(delay, "not yet")


@jobs.task(retry=AGAIN)
def effect(key: str) -> object:
    """Perform the effect *key* once; it says ``effect``."""
    return jobs.once(key, lambda: say("effect", key=key))


@jobs.task(retry=AGAIN)
async def async_effect(key: str) -> None:
    """Perform an effect between two waits."""
    await asyncio.sleep(0.05)
    jobs.once(key, lambda: say("effect", key=key))
    await asyncio.sleep(0.05)


@jobs.task(retry=AGAIN, atomic=True)
def atomic_entry(label: str) -> None:
    """Insert an `Entry`, which commits together with the run's success."""
    db.session.add(Entry(label=label, run_id=current_run.id))
    db.session.flush()


@jobs.task(retry=AGAIN)
def close_month(steps: int, chunks: int) -> list[int]:
    """Insert an `Entry` in each of several steps and chunks; then wait for a signal, and sleep."""

    def insert(label: str) -> int:
        db.session.add(Entry(label=label, run_id=current_run.id))
        db.session.flush()
        return len(label)

    results = [jobs.step(f"step {number}", insert, f"s{number}") for number in range(steps)]
    for (number,) in jobs.each("chunks", lambda after: range((after or 0) + 1, chunks + 1)[:1]):
        insert(f"c{number}")
    jobs.signal(current_run.id, "go", "gone")
    db.session.commit()
    assert jobs.wait("go") == "gone"
    jobs.sleep("nap", 0)
    return results


@jobs.task(retry=AGAIN)
def entry(label: str = "", with_backend: bool = False) -> None:
    """Insert an `Entry`, commit it, and say so; on request, name the server process."""
    db.session.add(Entry(label=label, run_id=current_run.id))
    by = backend() if with_backend else None
    db.session.commit()
    say("note", backend=by)


@jobs.task(retry=AGAIN, concurrency=1, concurrency_key="key:{key}")
def one_at_a_time(key: str, seconds: float = 0.02, harm: bool = False) -> None:
    """Sleep, one run of a key at a time. On request, kill the process instead."""
    if harm:
        kill()
    with told(key=key):
        nap(seconds)


@jobs.task(retry=AGAIN)
def on_schedule(name: str) -> None:
    """Say ``slot``. This is the task of the definitions."""
    say("slot", name=name, slot=current_run.scheduled_for.isoformat())


for number in range(5):
    name = f"scheduled-{number}"
    on_schedule.schedule("* * * * *", name=name, payload={"name": name})


@jobs.task(retry=AGAIN)
def hold(megabytes: int, seconds: float) -> None:
    """Hold *megabytes* of memory for *seconds*."""
    with told():
        block = b"x" * (megabytes << 20)
        nap(seconds)
        assert len(block) == megabytes << 20


@jobs.task(retry=AGAIN)
def work_on(seconds: float) -> None:
    """Say ``at work`` again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        say("at work")
        time.sleep(0.05)


@jobs.task(retry=AGAIN)
def tells(path: str, often: bool) -> None:
    """Report progress: often, before the file *path* exists, or once afterwards."""
    say("begun")
    for step in range(1, 10) if often else ():
        current_run.progress(step / 10)
    wait_for_file(path)
    if not often:
        current_run.progress(1)


@jobs.task(retry=False, timeout=1)
def print_much(lines: int = 10_000) -> None:
    """Print more than a pipe holds; the last line is not ended."""
    for number in range(lines):
        print("much, much output", number)
    print("and no end of it", end="")


@jobs.task(retry=False, timeout=2)
def with_a_slow_receiver() -> None:
    """Work long enough to be watched. Its signal is received by `be_slow`."""
    time.sleep(1.5)


def be_slow(sender: Flask, outcome: Outcome) -> None:
    """Outlast the timeout of `with_a_slow_receiver`, its grace and the watchdog's margin."""
    if outcome.job_type == "with_a_slow_receiver":
        time.sleep(7)
        say("received")


# Handlers that do not end by themselves, or not when they are told to


@jobs.task(retry=AGAIN)
def stubborn() -> None:
    """Swallow every interruption at the first attempt, and say ``swallowed``."""
    say("begun")
    until = time.monotonic() + (300 if current_run.attempt == 1 else 0)
    while (remaining := until - time.monotonic()) > 0:
        try:
            nap(remaining)
        except BaseException as error:
            say("swallowed", by=type(error).__name__)


@jobs.task(retry=AGAIN)
async def async_stubborn() -> None:
    """Swallow every interruption on the event loop at the first attempt."""
    say("begun")
    until = time.monotonic() + (300 if current_run.attempt == 1 else 0)
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError as error:
            say("swallowed", by=type(error).__name__)


@jobs.task(retry=AGAIN)
def in_c() -> None:
    """Compute in C forever at the first attempt; no exception can be raised there."""
    say("begun")
    if current_run.attempt == 1:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


@jobs.task(retry=AGAIN)
async def async_in_c() -> None:
    """Compute in C forever on the event loop at the first attempt."""
    say("begun")
    await asyncio.sleep(0.3)
    if current_run.attempt == 1:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


@jobs.task(retry=AGAIN)
def hold_the_interpreter() -> None:
    """Loop in C at the first attempt: no signal is handled, and the interpreter's lock is kept."""
    if current_run.attempt == 1:
        deque(repeat(None, 10**15), maxlen=0)


@jobs.task(retry=AGAIN)
async def async_hold_the_interpreter() -> None:
    """Loop in C on the event loop at the first attempt, and keep the interpreter's lock."""
    hold_the_interpreter()


@jobs.task(retry=AGAIN)
def backtrack(seconds: float) -> None:
    """Match a regular expression that backtracks, each time longer, until it takes *seconds*."""
    with told():
        length, took = 16, 0.0
        while took < seconds:
            length += 1
            began = time.monotonic()
            re.match("(a+)+$", "a" * length + "b")
            took = time.monotonic() - began


@jobs.task(retry=False, timeout=1)
def write_and_query_on() -> None:
    """Write in ``db.session``, then keep querying in the same transaction until the timeout."""
    db.session.execute(text("INSERT INTO entries (label, run_id) VALUES ('open', 0)"))
    slow = text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
        " SELECT count(*) FROM n"
    )
    while True:
        db.session.execute(slow).scalar()


@jobs.task(retry=AGAIN)
def locks_its_own_row() -> None:
    """Change the run's own row at the first attempt without a commit, and wait."""
    if current_run.attempt > 1:
        return
    db.session.execute(
        text("UPDATE job_runs SET priority = 5 WHERE id = :id"), {"id": current_run.id}
    )
    with told():
        time.sleep(60)


# Handlers that end their process


@jobs.task(retry=AGAIN)
def kill_self(attempts: int = 1000) -> None:
    """Kill the process at each of the first *attempts*; afterwards say ``survived``."""
    say("begun")
    if current_run.attempt <= attempts:
        kill()
    say("survived")


@jobs.task(retry=AGAIN)
async def async_kill() -> None:
    """Kill the process at each attempt."""
    await asyncio.sleep(0.2)
    kill()


@jobs.task(retry=AGAIN)
def end_process(how: str) -> None:
    """End the process at the first attempt: by ``os._exit`` with a status, or by a crash in C."""
    if current_run.attempt == 1:
        if how == "crash":
            ctypes.string_at(0)
        os._exit(int(how))


@jobs.task(retry=AGAIN)
def leave_a_process_and_die(path: str) -> None:
    """Fork a process at the first attempt, which stays until the file *path* exists; be killed."""
    if current_run.attempt == 1:
        if os.fork() == 0:
            wait_for_file(path)
            os._exit(0)
        kill()


@jobs.task(timeout=20)
def terminate_a_process() -> None:
    """Fork a process by multiprocessing, terminate it once it has begun, and wait for its end."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()

    def wait() -> None:
        begun.set()
        time.sleep(30)

    process = context.Process(target=wait)
    process.start()
    begun.wait()
    process.terminate()
    process.join()
    say("ended", status=process.exitcode)


@jobs.task(timeout=20)
def fork_a_process(how: str) -> None:
    """Fork a process that leaves the handler, and wait for its end."""
    leave_in_a_fork(how)


@jobs.task(timeout=20, atomic=True)
def fork_a_process_atomically(how: str) -> None:
    """As `fork_a_process`, with an entry that is committed with the success."""
    db.session.add(Entry(label="work", run_id=current_run.id))
    db.session.flush()
    leave_in_a_fork(how)


@jobs.task(timeout=20)
async def async_fork_a_process(how: str) -> None:
    """As `fork_a_process`."""
    leave_in_a_fork(how)


def leave_in_a_fork(how: str) -> None:
    """Fork a process that leaves the handler by an exit, an error or a return; say its status."""
    pid = os.fork()
    if pid:
        say("ended", status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    elif how == "exit":
        sys.exit(3)
    elif how == "raise":
        raise ValueError("in the fork")


@jobs.task(retry=AGAIN)
def killed_in_effect(in_doubt: str) -> object:
    """Be killed between an effect and its record at the first attempt."""

    def do() -> str:
        say("effect")
        if current_run.attempt == 1:
            kill()
        return "done"

    return jobs.once("k", do, in_doubt=in_doubt)  # type: ignore[arg-type]


@jobs.task(retry=AGAIN)
def effect_after_wait(path: str) -> None:
    """Perform an effect once the file *path* exists."""
    say("begun")
    wait_for_file(path)
    jobs.once("k", lambda: say("effect"))
    say("ended")


@jobs.task(retry=AGAIN)
def killed_before_payment_is_committed() -> object:
    """Perform an effect that writes in ``db.session``; be killed before the commit."""

    def pay() -> str:
        db.session.add(Entry(label="payment", run_id=current_run.id))
        db.session.flush()
        say("effect")
        return "ch_1"

    value = jobs.once("k", pay)
    if current_run.attempt == 1:
        kill()
    return value


@jobs.task(retry=AGAIN, atomic=True)
def killed_before_commit() -> None:
    """Be killed at the first attempt, when the work is done and not committed."""
    db.session.add(Entry(label="x", run_id=current_run.id))
    db.session.flush()
    say("begun")
    if current_run.attempt == 1:
        kill()


def _take_signals(how: str) -> None:
    """Install signal handlers as libraries do, and leave them behind."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM]
    if how == "block":
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        return
    handlers: dict[str, Any] = {"ignore": signal.SIG_IGN, "default": signal.SIG_DFL}
    for number in numbers:
        signal.signal(number, handlers.get(how, lambda *args: say("heard by the app")))


@jobs.task(retry=False)
def take_signals(how: str) -> None:
    """Take over all signals that a worker needs."""
    _take_signals(how)
    say("taken")


@jobs.task(retry=False)
async def async_take_signals(how: str) -> None:
    """Take over all signals that a worker needs, on the event loop."""
    _take_signals(how)
    say("taken")


for part in parts("kills"):
    part.declare(jobs, say, AGAIN)
