"""The app of the fuzz. Its handlers work until they are interrupted; the next attempt is short."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from traceback import walk_tb

from flask import Flask, current_app
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import BigInteger, Integer, insert, select, text, update
from sqlalchemy.orm import Mapped, mapped_column

from flask_cronjobs import CronJobs, Retry, current_run
from tests.fuzz.inspection import Frames
from tests.fuzz.moments import Moments
from tests.soak.timeline import append

#: The modules that a query goes through, from its beginning to its last row.
QUERYING = "sqlalchemy.engine"
#: The variable with a seed, which makes what a handler does random, and the same in a repeated
#: fuzz.
SEED = "FUZZ_SEED"

LEASE = 5.0
#: The timeouts of the tasks that are to reach them, in seconds.
TIMEOUTS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05)
#: How long a handler waits for its interruption, in seconds.
PATIENCE = 1.5
#: So many attempts that a run ends well although each interruption uses up one.
AGAIN = Retry(max_attempts=4, backoff="fixed", base=0)

db = SQLAlchemy()
jobs = CronJobs()


class Entry(db.Model):  # type: ignore[name-defined,misc]
    """One of the two rows that a step writes."""

    __tablename__ = "fuzz_entries"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    run_id: Mapped[int] = mapped_column(Integer)
    token: Mapped[str]
    step: Mapped[int] = mapped_column(Integer)


class Shared(db.Model):  # type: ignore[name-defined,misc]
    """The row that every step writes to, so that a lock that stays is a lock on this row."""

    __tablename__ = "fuzz_shared"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, default=0)


class Fuzz:
    """The state that handlers share in one worker process.

    :ivar seen: the runs that were begun in this process; their next attempts are to end.
    :ivar effects: the last effect that each run began.
    :ivar interrupted: the kind of each interrupted run, what interrupted it, and the exception.
    :ivar unheard: runs whose interruption did not come.
    :ivar queries: whether victims query until they are interrupted, and only interruptions of
        queries count.
    :ivar querying_until: until when they query.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.effects: dict[int, int] = {}
        self.interrupted: list[tuple[str, str, str]] = []
        self.unheard: list[str] = []
        self.frames = Frames()
        self.moments = Moments()
        self.calm = False
        self.queries = False
        self.querying_until = 0.0
        self.inspect: Callable[[str], None] = lambda what: None


fuzz = Fuzz()


class Burden:
    """Something that a handler holds in its frame."""


def create_app(database: str, folder: str) -> Flask:
    """Make the app on a database.

    :param folder: for the log of effects.
    """
    app = Flask(__name__)
    app.config.update(
        SQLALCHEMY_DATABASE_URI=database,
        FUZZ_FOLDER=folder,
        CRONJOBS_LEASE=LEASE,
        CRONJOBS_SHUTDOWN_GRACE=0,
        CRONJOBS_TIMEOUT=20,
    )
    db.init_app(app)
    jobs.init_app(app)
    return app


def _halves(step: int, choose: random.Random, savepoint: bool) -> None:
    """Write two rows in one transaction, with a query between them."""
    half = {"run_id": current_run.id, "token": current_run.claim.token, "step": step}
    with db.session.begin_nested() if savepoint else nullcontext():
        db.session.execute(insert(Entry), half)
    db.session.execute(update(Shared).values(number=Shared.number + 1))
    _query(choose)
    db.session.add(Entry(**half))
    db.session.flush()
    assert db.session.scalars(select(Entry).limit(50)).all()


def _session(step: int, choose: random.Random) -> None:
    _halves(step, choose, savepoint=False)
    if choose.random() < 0.7:
        db.session.commit()
        current_run.heartbeat()  # A cancel is then noticed soon.
    else:
        db.session.rollback()


def _query(choose: random.Random) -> None:
    """Query, and repeat it as long as only queries are to be interrupted."""
    _query_once(choose)
    while time.monotonic() < fuzz.querying_until:
        _query_once(choose)


def _query_once(choose: random.Random) -> None:
    """Query, and read the rows one by one."""
    if db.engine.dialect.name == "postgresql":
        seconds = choose.choice([0, 0.002, 0.005, 0.01, 0.01, 0.01, 1.0])
        db.session.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})
    numbers = "SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < :most"
    query = text(f"WITH RECURSIVE numbers(i) AS ({numbers}) SELECT i FROM numbers")
    for _ in db.session.execute(query, {"most": choose.choice([10, 1000, 20000])}):
        pass


def _once(step: int, choose: random.Random) -> None:
    """Perform an effect, or find that it is done."""
    run_id = current_run.id
    fuzz.effects[run_id] = max(step, fuzz.effects.get(run_id, 0))
    key = f"{run_id}:{step}"
    pause = choose.choice([0, 0.001, 0.003])
    jobs.once(key, _do, key, pause, in_doubt="redo" if step % 2 else "skip")
    if choose.random() < 0.2:
        current_run.heartbeat()


def _do(key: str, pause: float) -> int:
    append(Path(current_app.config["FUZZ_FOLDER"]) / "effects", key)
    time.sleep(pause)
    return 1


def _atomic(step: int, choose: random.Random) -> None:
    _halves(step, choose, savepoint=choose.random() < 0.3)
    if choose.random() < 0.2:
        current_run.heartbeat()


STEPS: dict[str, Callable[[int, random.Random], None]] = {
    "session": _session,
    "once": _once,
    "atomic": _atomic,
}


def _victim(kind: str, how: str, after: float) -> None:
    """Work until interrupted; later attempts, and all at the end of the fuzz, work only briefly."""
    fuzz.frames.check(f"run {current_run.id}")
    burden = Burden()
    fuzz.frames.keep(burden, f"run {current_run.id} ({kind}, {how})")
    choose = random.Random(f"{os.environ.get(SEED)}:{current_run.id}:{current_run.attempt}")
    if fuzz.calm or current_run.id in fuzz.seen:
        last = fuzz.effects.get(current_run.id, 0)
        for step in range(max(0, last - 1), last + 1):
            STEPS[kind](step, choose)
        return
    fuzz.seen.add(current_run.id)
    comes = fuzz.moments.interrupt_run(how, current_run.id, after)
    until = time.monotonic() + (PATIENCE if comes else 0)
    fuzz.querying_until = until if fuzz.queries else 0.0
    step = 0
    try:
        while True:  # This is done once even without an interruption: the checker expects rows.
            STEPS[kind](step, choose)
            step += 1
            if time.monotonic() >= until:
                break
    except BaseException:
        error = sys.exc_info()[1]
        if not fuzz.queries or _is_in_a_query(error):
            fuzz.interrupted.append((kind, how, type(error).__name__))
        raise
    finally:
        fuzz.querying_until = 0.0
    if comes:
        fuzz.unheard.append(f"run {current_run.id} ({kind}, {how})")


def _is_in_a_query(error: BaseException | None) -> bool:
    """Return whether a statement or its result was being processed when *error* was raised.

    On SQLite it is raised when a part of the query has ended.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__ if error else None)]
    return any(
        frame.f_code is _query_once.__code__
        or frame.f_globals.get("__name__", "").startswith(QUERYING)
        for frame in frames
    )


def _declare(kind: str, timeout: float | None) -> str:
    name = kind if timeout is None else f"{kind}-{timeout * 1000:g}"

    def victim(how: str, after: float) -> None:
        _victim(kind, how, after)

    jobs.task(name=name, retry=AGAIN, timeout=timeout or 20, atomic=kind == "atomic")(victim)
    return name


#: The tasks of each kind by their timeouts; None if something other than a timeout interrupts it.
TASKS = {
    (kind, timeout): _declare(kind, timeout) for kind in STEPS for timeout in (None, *TIMEOUTS)
}


@jobs.task
def inspect() -> None:
    """Run after each victim, and search for what it has left behind."""
    fuzz.inspect(f"run {current_run.id}")
