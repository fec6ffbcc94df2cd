"""The app of the soak: its tasks write what they do to a trace, a file that outlives any fault.

Times in the trace are the machine's monotonic clock, one for all processes and never faked.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask, current_app
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from flask_cronjobs import CronJobs, Retry, Snooze, current_run
from flask_cronjobs.models import JobRun
from tests.features import parts
from tests.soak.timeline import append

DATABASE = "SOAK_DATABASE"
TRACE = "SOAK_TRACE"
#: The URL of Celery's broker, if Celery is to execute runs.
BROKER = "SOAK_BROKER"
#: The queues whose runs Celery executes, with commas.
HANDED = "SOAK_HANDED"

#: The variable with the soak's seed, which makes attempts random, and the same in a repeated soak.
SEED = "SOAK_SEED"

LEASE = 3.0
#: The retention of ended work, in seconds: so short that much is pruned during the soak.
RETENTION = 30.0
#: How long a tick claims runs, and how long a handler of this app takes at most, in seconds.
BUDGET = 3.0
#: The `Entry.run_id` of rows that are rolled back.
ROLLED_BACK = 0
#: So many attempts that faults alone do not use them up, except for runs that are meant to die.
AGAIN = Retry(max_attempts=40, backoff="fixed", base=0.1)

db = SQLAlchemy()
jobs = CronJobs()

Nonce = dict[str, object]


class Entry(db.Model):  # type: ignore[name-defined,misc]
    """A row of an atomic run, or of a step of another run: each leaves exactly one."""

    __tablename__ = "soak_entries"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    run_id: Mapped[int] = mapped_column(Integer)
    step: Mapped[str] = mapped_column(String(20), default="")


def create_app(isolation: str | None = None) -> Flask:
    """Make the app as the environment variables say.

    :param isolation: the isolation level of its engine; by default the engine's own.
    """
    app = Flask(__name__)
    if isolation is not None:
        app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"isolation_level": isolation}
    app.config.update(
        SQLALCHEMY_DATABASE_URI=os.environ[DATABASE],
        SOAK_TRACE=os.environ[TRACE],
        CRONJOBS_LEASE=LEASE,
        CRONJOBS_SHUTDOWN_GRACE=1,
        CRONJOBS_TIMEOUT=20,
        CRONJOBS_RETENTION=RETENTION,
        CRONJOBS_RETENTION_DEAD=RETENTION,
    )
    broker = os.environ.get(BROKER)
    if broker:
        queues = os.environ[HANDED].split(",")
        app.config["CRONJOBS_EXECUTORS"] = dict.fromkeys(queues, "celery")
    db.init_app(app)
    jobs.init_app(app)
    if broker:
        from celery import Celery

        from flask_cronjobs.executors.celery import init

        celery = Celery("soak", broker=broker)
        # Messages of killed workers are redelivered soon, and so come twice.
        celery.conf.broker_transport_options = {"visibility_timeout": 2}
        init(celery, app)
    return app


def chance() -> random.Random:
    """Return the source of chance for this attempt of this run."""
    return random.Random(f"{os.environ.get(SEED)}:{current_run.id}:{current_run.attempt}")


def say(what: str, **more: object) -> None:
    """Append one line about the current run to the trace."""
    line = {
        "what": what,
        "at": time.monotonic(),
        "pid": os.getpid(),
        "run": current_run.id,
        "attempt": current_run.attempt,
        "token": current_run.claim.token,
        **more,
    }
    append(current_app.config["SOAK_TRACE"], json.dumps(line))


@contextmanager
def performing(**more: object) -> Iterator[Nonce]:
    """Say ``begun`` and ``ended`` around the work; yield the result that the handler is to return.

    The token in it tells the checker which execution's success the database accepted.
    """
    say("begun", **more)
    yield {"token": current_run.claim.token}
    say("ended")


@jobs.task(retry=AGAIN)
def plain() -> Nonce:
    """Only begin and end."""
    with performing() as nonce:
        return nonce


@jobs.task(retry=AGAIN)
def joining() -> Nonce:
    """Follow a batch: one run of this task for each batch that has ended."""
    with performing() as nonce:
        assert current_run.batch is not None
        return nonce


@jobs.task(retry=AGAIN)
def slow(steps: int) -> Nonce:
    """Work for a while, and report progress."""
    with performing() as nonce:
        for step in range(steps):
            time.sleep(0.1)
            say("step")
            current_run.progress((step + 1) / steps)
        return nonce


@jobs.task(retry=AGAIN)
async def waiting(steps: int, key: str) -> Nonce:
    """Wait for a while beside other runs, and perform the effect *key* in the middle."""

    def do() -> int:
        say("effect", key=key)
        return 1

    with performing() as nonce:
        for step in range(steps):
            await asyncio.sleep(0.1)
            say("step")
            current_run.progress((step + 1) / steps)
            if step == steps // 2:
                jobs.once(key, do)
        return nonce


@jobs.task(retry=AGAIN)
def effect(key: str) -> Nonce:
    """Perform the effect *key*, which other runs may share; at times fail before it."""

    by = chance()

    def do() -> int:
        if by.random() < 0.2:
            raise ConnectionError("not this time")
        time.sleep(by.choice([0.01, 0.2]))
        say("effect", key=key)
        time.sleep(by.choice([0.01, 0.2]))
        return 1

    with performing() as nonce:
        jobs.once(key, do)
        return nonce


@jobs.task(retry=AGAIN, atomic=True)
def atomic(steps: int) -> Nonce:
    """Leave one row, committed together with the success."""
    with performing() as nonce:
        for _ in range(steps):
            time.sleep(0.02)
        db.session.add(Entry(run_id=current_run.id))
        db.session.flush()
        return nonce


#: The entries of the steps of a run of `in_steps`, in order: three steps, and three chunks.
STEPS = ("step 1", "step 2", "step 3", "chunk 1", "chunk 2", "chunk 3")


@jobs.task(retry=AGAIN)
def in_steps() -> Nonce:
    """Leave one row for each step and chunk, committed together with it."""

    def leave(step: str) -> None:
        time.sleep(0.02)
        db.session.add(Entry(run_id=current_run.id, step=step))

    with performing() as nonce:
        for step in STEPS[:3]:
            jobs.step(step, leave, step)
        for chunk in jobs.each("chunks", lambda after: range((after or 0) + 1, 4)[:1]):
            leave(f"chunk {chunk[0]}")
        jobs.sleep("nap", 0.1)
        return nonce


@jobs.task(retry=AGAIN, concurrency=1, concurrency_key="one:{key}")
def one_at_a_time(key: str) -> Nonce:
    """Run alone among the runs of a key."""
    with performing(key=key) as nonce:
        time.sleep(0.03)
        say("step")
        return nonce


@jobs.task(
    retry=Retry(max_attempts=3, backoff="fixed", base=0.1),
    concurrency_key="order:{key}",
    order="strict",
)
def in_order(key: str) -> Nonce:
    """Run after the earlier runs of the key; at times fail."""
    with performing(key=f"order:{key}") as nonce:
        time.sleep(0.02)
        if chance().random() < 0.3:
            raise RuntimeError("as it was asked to")
        return nonce


@jobs.task(retry=AGAIN, concurrency=2)
def two_at_a_time() -> Nonce:
    """Run beside at most one other run."""
    with performing() as nonce:
        time.sleep(0.05)
        return nonce


@jobs.task(retry=Retry(max_attempts=3, backoff="fixed", base=0.1))
def failing() -> Nonce:
    """Fail more often than not, so that some of these runs die."""
    with performing() as nonce:
        if chance().random() < 0.6:
            raise RuntimeError("as it was asked to")
        return nonce


@jobs.task(retry=AGAIN)
def snoozing() -> Nonce:
    """Snooze twice."""
    with performing() as nonce:
        if current_run.snoozes < 2:
            raise Snooze(1)
        return nonce


@jobs.task(retry=AGAIN)
def killing() -> Nonce:
    """Kill the process at the first attempt."""
    with performing() as nonce:
        if current_run.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return nonce


@jobs.task(retry=AGAIN, timeout=0.3)
def overlong() -> Nonce:
    """Run into the timeout at the first attempt."""
    with performing() as nonce:
        if current_run.attempt == 1:
            time.sleep(30)
        return nonce


@jobs.task(retry=AGAIN)
def own_row(seconds: float) -> Nonce:
    """Change this run's own row, and keep the transaction open for a while at the first attempt."""
    with performing() as nonce:
        row = db.session.get_one(JobRun, current_run.id)
        row.progress_message = "changed by its handler"
        db.session.flush()
        if db.engine.dialect.name == "sqlite":  # On SQLite, the lock is on the whole file.
            say("locked")
        time.sleep(seconds if current_run.attempt == 1 else 0.1)
        if current_run.id % 2:
            db.session.commit()
        else:
            db.session.rollback()
        return nonce


@jobs.task(retry=AGAIN)
def scheduled() -> Nonce:
    """The task of all definitions."""
    with performing() as nonce:
        return nonce


for part in parts("soak"):
    part.declare()
