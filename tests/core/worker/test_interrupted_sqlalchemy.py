"""An interruption between two steps of SQLAlchemy breaks none of its promises."""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any, cast

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import delete, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flask_cronjobs import CronJobs, TimedOut, current_run
from flask_cronjobs.models import JobRun
from tests.handlers import ends
from tests.marks import on_postgresql

pytestmark = pytest.mark.usefixtures("context")

#: The moments of a handler are divided into this many parts; one moment of each is tried.
PARTS = 40


class Base(DeclarativeBase):
    """The base class of the test's own table."""


class Work(Base):
    """A row that the handler writes and reads."""

    __tablename__ = "work"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class Moments:
    """Interrupts the running handler at one of the moments at which Python handles signals.

    These are the calls and the returns of SQLAlchemy's functions, and of those that they call.

    :ivar seen: how many moments there were.
    :ivar interrupted: whether the handler was interrupted.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.interrupted = False

    @contextmanager
    def interrupting(self, number: int) -> Iterator[None]:
        """Interrupt the handler at the moment *number* of this block."""
        self.seen, self.interrupted = 0, False
        ring = cast("Any", signal.getsignal(signal.SIGALRM))
        requested: dict[object, BaseException] = ring.__self__.requested
        identity = current_run.claim.identity

        def hear(frame: FrameType, event: str, argument: object) -> None:
            # Python handles a signal when a call returns, but never just before a call of a
            # function in C. An exception there could prevent the `__exit__` of a lock, which would
            # stay locked.
            if event == "c_call":
                return
            self.seen += 1
            # Checking each frame would take most of the test's time.
            if 0 < number <= self.seen and is_in_sqlalchemy(frame):
                sys.setprofile(None)
                self.interrupted = True
                requested[identity] = TimedOut("now")
                ring(signal.SIGALRM, frame)

        sys.setprofile(hear)
        try:
            yield
        finally:
            sys.setprofile(None)


def is_in_sqlalchemy(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("sqlalchemy."):
            return True
        frame = frame.f_back
    return False


def work(db: SQLAlchemy) -> None:
    """Use the ORM: a flush, a query, rows one by one, and a savepoint."""
    db.session.add(Work(number=1))
    db.session.flush()
    assert db.session.scalars(select(Work).limit(50)).all()
    # If psycopg's cursor is interrupted, it warns, although it ends with its transaction.
    one_by_one = {"yield_per": 1} if db.engine.dialect.name == "sqlite" else {}
    for row in db.session.scalars(select(Work), execution_options=one_by_one):
        row.number += 1
    with db.session.begin_nested():
        db.session.add(Work(number=2))


def work_and_commit(db: SQLAlchemy) -> None:
    work(db)
    db.session.commit()
    assert db.session.scalars(select(Work).limit(5)).all()
    db.session.rollback()


def is_locked(db: SQLAlchemy) -> bool:
    """Return whether a lock is held for long, even if only by a reader.

    The worker's own transactions hold it for a moment, which may be long on a busy machine.
    """
    if db.engine.dialect.name != "sqlite":
        return False
    path = db.engine.url.database or ""
    with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
        return False


@pytest.fixture
def points(request: pytest.FixtureRequest) -> int:
    """The number of moments to try."""
    return int(getattr(request, "param", PARTS))


# An interrupted query has lost its connection, and the generators of psycopg find it closed.
@pytest.mark.filterwarnings(r"ignore:Exception ignored in. <generator object")
# An object that was interrupted between two changes of its state has no key when it is collected.
@pytest.mark.filterwarnings(r"ignore:Exception ignored in. <bound method InstanceState._cleanup")
@pytest.mark.parametrize(
    ("atomic", "do"), [(True, work), (False, work_and_commit)], ids=["atomic", "plain"]
)
@pytest.mark.parametrize(
    "points", [PARTS, pytest.param(400, marks=pytest.mark.slow)], indirect=True
)
def test_interruption_inside_sqlalchemy_ends_the_run_and_leaves_nothing(
    jobs: CronJobs,
    db: SQLAlchemy,
    atomic: bool,
    do: Callable[[SQLAlchemy], None],
    points: int,
) -> None:
    Base.metadata.create_all(db.engine)
    moments = Moments()
    locked_after: list[int] = []
    not_reached: list[int] = []  # SQLAlchemy's caches make the handler a little shorter.

    @jobs.task(retry=False, atomic=atomic)
    def it(number: int) -> None:
        if is_locked(db):
            locked_after.append(number)
        with moments.interrupting(number):
            do(db)
        if not moments.interrupted:
            not_reached.append(number)

    it.using(commit=True).enqueue_many([{"number": 0}] * 2)
    assert jobs.tick().succeeded == 2  # The first one fills SQLAlchemy's caches.
    not_reached.clear()
    db.session.execute(delete(JobRun))
    step = max(1, moments.seen // points)
    tried = range(1, moments.seen, step)
    it.using(commit=True).enqueue_many({"number": number} for number in tried)
    # A profiled run takes 0.1 s on a busy machine, so all runs take longer than a usual budget.
    jobs.tick(budget=600)
    assert len(not_reached) <= len(tried) / 20
    timed_out = len(tried) - len(not_reached)
    expected = [("dead", "TimedOut")] * timed_out + [("succeeded", None)] * len(not_reached)
    assert sorted(ends(db)) == sorted(expected)
    assert locked_after == []
    db.session.remove()
    assert cast("Any", db.engine.pool).checkedout() == 0


@on_postgresql
@pytest.mark.parametrize("moment", [("return", "_enter_gen"), ("call", "_exit")])
def test_interruption_of_a_pipeline_breaks_no_later_run(
    jobs: CronJobs, db: SQLAlchemy, moment: tuple[str, str]
) -> None:
    """psycopg sends several rows in a pipeline.

    An interrupted connection stayed in that mode when it returned to its pool.
    """
    Base.metadata.create_all(db.engine)
    heard: list[str] = []

    def hear(frame: FrameType, event: str, argument: object) -> None:
        if (event, frame.f_code.co_name) == moment:
            sys.setprofile(None)
            heard.append(event)
            ring: Any = signal.getsignal(signal.SIGALRM)
            ring.__self__.requested[current_run.claim.identity] = TimedOut("now")
            ring(signal.SIGALRM, frame)

    @jobs.task(retry=False)
    def it(interrupts: bool) -> None:
        sys.setprofile(hear if interrupts else None)
        try:
            db.session.execute(text("DELETE FROM work"))
            db.session.add_all([Work(number=1), Work(number=2)])
            db.session.flush()
            for row in db.session.scalars(select(Work)):
                row.number += 1
            db.session.commit()
        finally:
            sys.setprofile(None)

    it.using(commit=True).enqueue_many(
        {"interrupts": interrupts} for interrupts in (True, False, False)
    )
    jobs.tick()
    assert heard == [moment[0]]
    assert ends(db) == [("dead", "TimedOut"), *[("succeeded", None)] * 2]
