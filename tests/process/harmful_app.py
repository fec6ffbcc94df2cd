"""The app of the process tests, with more tasks: ones that do harm."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import re
import select
import signal
import time
from collections import deque
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

from flask import Flask
from sqlalchemy import text

from flask_cronjobs import current_run, run_succeeded, tick_finished
from flask_cronjobs.types import Outcome
from tests.process import jobs_app
from tests.process.jobs_app import AGAIN, Entry, db, jobs, say

#: How many connections the app holds in its pool when its tick begins, by this variable.
CONNECTED = "JOBS_APP_CONNECTED"


if "FAKETIME" in os.environ:
    # libfaketime lets the call that Python sleeps by fail where it leaves monotonic time alone.
    time.sleep = lambda seconds: select.select([], [], [], float(seconds))  # type: ignore[assignment]


def create_app() -> Flask:
    """The app of the process tests, as the environment says."""
    app = jobs_app.create_app()
    run_succeeded.connect(be_slow, app)
    number = int(os.environ.get(CONNECTED, "0"))
    if number:

        def say_again(sender: Flask, **details: Any) -> None:
            say_backends(number)

        with app.app_context():
            say_backends(number)
        tick_finished.connect(say_again, app, weak=False)
    return app


def say_backends(number: int) -> None:
    """Say ``connected``, and which server processes are behind the pool's connections."""
    connections = [db.engine.connect() for _ in range(number)]
    backends = [
        each.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for each in connections
    ]
    for each in connections:
        each.close()
    say("connected", backends=sorted(backends))


@jobs.task(retry=AGAIN)
def entry_of_backend(label: str) -> None:
    """Insert an `Entry`, commit it, and say which server process did it."""
    db.session.add(Entry(label=label, run_id=current_run.id))
    backend = db.session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    db.session.commit()
    say("note", backend=backend)


@jobs.task(retry=AGAIN)
def hold(megabytes: int, seconds: float) -> None:
    """Hold so much memory for *seconds*."""
    say("begun")
    held = b"x" * (megabytes << 20)
    jobs_app.nap(seconds)
    say("ended", held=len(held))


@jobs.task(retry=AGAIN)
def hold_the_interpreter() -> None:
    """At the first attempt, loop in C: no signal is handled, and the interpreter's lock is kept."""
    say("begun")
    if current_run.attempt == 1:
        deque(repeat(None, 10**15), maxlen=0)
    say("ended")


@jobs.task(retry=False, timeout=1)
def write_and_query_on() -> None:
    """Write in ``db.session``, then query on in the same transaction, until the timeout."""
    say("begun")
    db.session.execute(text("INSERT INTO entries (label, run_id) VALUES ('open', 0)"))
    slow = text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
        " SELECT count(*) FROM n"
    )
    while True:
        db.session.execute(slow).scalar()


@jobs.task(retry=AGAIN)
def work_on(seconds: float) -> None:
    """Say ``at work`` again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        say("at work")
        time.sleep(0.05)


@jobs.task(retry=False, timeout=2)
def with_a_slow_receiver() -> None:
    """Work long enough to be watched; `be_slow` hears of the end."""
    say("begun")
    time.sleep(1.5)


def be_slow(sender: Flask, outcome: Outcome) -> None:
    """Be slower than the timeout of `with_a_slow_receiver`, its grace and the watchdog's margin."""
    if outcome.job_type == "with_a_slow_receiver":
        say("receiving")
        time.sleep(7)
        say("received")


@jobs.task(retry=AGAIN)
def backtrack(seconds: float) -> None:
    """Match a regular expression that backtracks, for twice as long each time, until *seconds*."""
    say("begun")
    length, took = 16, 0.0
    while took < seconds:
        length += 1
        began = time.monotonic()
        re.match("(a+)+$", "a" * length + "b")
        took = time.monotonic() - began
    say("ended")


@jobs.task(retry=AGAIN, timeout=0.3)
def too_long_in_c() -> None:
    """Compute in C for longer than the timeout, where no exception can be raised."""
    say("begun")
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


@jobs.task(retry=AGAIN)
def end_process(how: str) -> None:
    """At the first attempt, end the process: by ``os._exit`` with a status, or by a crash in C."""
    say("begun")
    if current_run.attempt == 1:
        if how == "crash":
            ctypes.string_at(0)
        os._exit(int(how))
    say("ended")


@jobs.task(retry=AGAIN)
def killed_in_effect(key: str, in_doubt: str = "skip") -> object:
    """At the first attempt, be killed between an effect and its record."""

    def do() -> str:
        say("effect")
        if current_run.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    result = jobs.once(key, do, in_doubt=in_doubt)  # type: ignore[arg-type]
    say("ended")
    return result


@jobs.task(retry=AGAIN)
def effect_after_sleep(key: str, path: str) -> None:
    """Say ``begun``; once the file *path* is there, do an effect."""
    say("begun")
    wait_for_file(path)
    jobs.once(key, lambda: say("effect"))
    say("ended")


@jobs.task(retry=AGAIN)
def locks_its_own_row() -> None:
    """At the first attempt, change its own row without a commit, and wait."""
    if current_run.attempt > 1:
        return
    db.session.execute(
        text("UPDATE job_runs SET priority = 5 WHERE id = :id"), {"id": current_run.id}
    )
    try:
        time.sleep(60)
    except BaseException:
        say("interrupted")
        raise


@jobs.task(retry=AGAIN)
def killed_before_payment_is_committed() -> object:
    """An effect that writes in ``db.session``, and no commit before the process is killed."""

    def pay() -> str:
        db.session.add(Entry(label="payment", run_id=current_run.id))
        db.session.flush()
        say("paid")
        return "ch_1"

    value = jobs.once("charge:1", pay)
    if current_run.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@jobs.task(retry=AGAIN, atomic=True)
def killed_before_commit(label: str) -> None:
    """At the first attempt, be killed when the work is done and not committed."""
    db.session.add(Entry(label=label, run_id=current_run.id))
    db.session.flush()
    say("begun")
    if current_run.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@jobs.task(retry=AGAIN)
def ended_or_waits(path: str) -> None:
    """Tell the progress, wait until the file *path* exists, end."""
    current_run.progress(0.5, "half")
    say("begun")
    wait_for_file(path)
    say("ended")


@jobs.task(retry=AGAIN, concurrency=2, concurrency_key="two:{key}")
def two_at_a_time(key: str, seconds: float) -> None:
    """Say ``begun``, sleep, say ``ended``; two of a key at a time."""
    say("begun", key=key)
    time.sleep(seconds)
    say("ended", key=key)


@jobs.task(retry=AGAIN, concurrency=1, concurrency_key="killed:{key}")
def killed_with_key(key: str, kill: bool = True) -> None:
    """Kill the process, or only say ``survived``."""
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    say("survived", key=key)


@jobs.task(retry=AGAIN)
def tells_often(path: str) -> None:
    """Tell many steps at once, then wait until the file *path* exists."""
    for step in range(1, 10):
        current_run.progress(step / 10)
    wait_for_file(path)


@jobs.task(retry=AGAIN)
def tells_at_the_end(path: str) -> None:
    """Say ``begun``, wait until the file *path* exists, tell the progress."""
    say("begun")
    wait_for_file(path)
    current_run.progress(1)


def wait_for_file(path: str, seconds: float = 60.0) -> None:
    """Wait until the file *path* exists, at most so long."""
    until = time.monotonic() + seconds
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.02)


@jobs.task(retry=AGAIN)
def leave_a_process_and_die(path: str) -> None:
    """At the first attempt, fork a process that stays until the file *path* exists; be killed."""
    say("begun")
    if current_run.attempt == 1:
        if os.fork() == 0:
            wait_for_file(path)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    say("ended")


@jobs.task(retry=False, timeout=1)
def print_much(lines: int = 10_000) -> None:
    """Print more than a pipe takes, without ending the last line."""
    say("begun")
    for number in range(lines):
        print("much, much output", number)
    print("and no end of it", end="")


@jobs.task(retry=AGAIN)
async def async_wait(path: str, seconds: float = 60.0) -> None:
    """Say ``begun``, wait until the file *path* exists, say ``ended``."""
    say("begun")
    until = time.monotonic() + seconds
    while not Path(path).exists() and time.monotonic() < until:
        await asyncio.sleep(0.02)
    say("ended")


@jobs.task(retry=AGAIN, timeout=1)
async def async_stubborn(seconds: float = 60.0) -> None:
    """Say ``begun``, and swallow what would end it, at the first attempt."""
    say("begun")
    until = time.monotonic() + (seconds if current_run.attempt == 1 else 0)
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            say("swallowed")


@jobs.task(retry=AGAIN, timeout=1)
async def async_in_c() -> None:
    """At the first attempt, compute in C for longer than the timeout; nothing can be raised."""
    say("begun")
    await asyncio.sleep(0.3)
    if current_run.attempt == 1:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


@jobs.task(retry=AGAIN)
async def async_hold_the_interpreter() -> None:
    """At the first attempt, loop in C: no signal is handled, and the interpreter's lock is kept."""
    say("begun")
    if current_run.attempt == 1:
        deque(repeat(None, 10**15), maxlen=0)
    say("ended")


@jobs.task(retry=AGAIN)
async def async_kill() -> None:
    """At each attempt, kill the process."""
    say("begun")
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.task(retry=AGAIN)
async def async_effect(key: str) -> None:
    """Do an effect, between two waits."""
    await asyncio.sleep(0.05)
    jobs.once(key, lambda: say("effect", key=key))
    await asyncio.sleep(0.05)
    say("ended")


@jobs.task(retry=AGAIN, timeout=2, keep_output=True)
def speak_stubbornly() -> None:
    """Print, say ``begun``, and go on for ever, whatever interrupts it."""
    print("last words")
    say("begun")
    while True:
        with suppress(BaseException):
            time.sleep(60)
