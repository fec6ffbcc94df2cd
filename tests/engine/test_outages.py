"""A database or a broker that is away: said once, then each minute, and when it is back."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, DatabaseTrouble
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine import hand_over as hand_over_module
from flask_cronjobs.engine import resident as resident_module
from flask_cronjobs.engine.resident import serve
from flask_cronjobs.engine.tick import TickOptions
from flask_cronjobs.engine.worker.keeper import Keeper
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.log import Outage
from flask_cronjobs.models import JobRun
from tests.executors.threads import Threads
from tests.process.support import wait_until
from tests.tables import make_tables

#: How often each thread tries in vain, before what is away comes back.
TRIES = 15


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_it_is_said_once_a_minute_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("flask_cronjobs.log.time.monotonic", lambda: now[0])
    outage = Outage()
    outage.over("It")
    for second in range(125):
        now[0] = 1000.0 + second
        outage.say("away, %d", second)
    outage.over("It")
    outage.over("It")
    assert warnings(caplog) == ["away, 0", "away, 60", "away, 120", "It is back, after 124 s"]


def test_one_that_comes_and_goes_is_said_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("flask_cronjobs.log.time.monotonic", lambda: now[0])
    outage = Outage()
    for second in range(70):
        now[0] = 1000.0 + second
        outage.say("away, %d", second)
        outage.over("It")
    back = "It is back, after 0 s"
    assert warnings(caplog) == ["away, 0", back, "away, 60", back]


def test_a_short_outage_is_not_told_of_where_only_a_long_one_is_to_be(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("flask_cronjobs.log.time.monotonic", lambda: now[0])
    outage = Outage()
    for seconds in (4.0, 4.0, 6.0):
        outage.say("locked", after=5.0)
        now[0] += seconds
        outage.say("locked", after=5.0)
        outage.over("It")
    assert warnings(caplog) == ["locked", "It is back, after 6 s"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each thread try again soon."""
    for module in (resident_module, hand_over_module):
        monkeypatch.setattr(module, "RETRY", 0.01)
        monkeypatch.setattr(module, "LOOK_EVERY", 0.01)


@pytest.fixture
def resident(app: Flask, quick: None) -> Iterator[Callable[[], None]]:
    """Start a resident worker in a thread; it ends with the test."""
    threads: list[threading.Thread] = []

    def start() -> None:
        thread = threading.Thread(target=serve, args=(state_of(app), TickOptions(workers=1)))
        thread.start()
        threads.append(thread)

    yield start
    for keeper in [each for each in threading.enumerate() if isinstance(each, Keeper)]:
        keeper.stop()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_no_thread_of_a_worker_repeats_itself_while_the_database_is_away(
    app: Flask,
    db: SQLAlchemy,
    resident: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Threads(app)
    app.config["CRONJOBS_EXECUTORS"] = {"far": engine}
    jobs = CronJobs(app)
    jobs.task(name="near")(lambda: None)
    make_tables(app, db)
    call, tries = Bookkeeping.call, Counter[str]()
    away = threading.Event()
    away.set()

    def call_if_there(self: Bookkeeping, *args: Any, **more: Any) -> Any:
        if not away.is_set():
            return call(self, *args, **more)
        tries[threading.current_thread().name] += 1
        raise DatabaseTrouble("no database", transient=True)

    monkeypatch.setattr(Bookkeeping, "call", call_if_there)
    resident()
    names = ("cronjobs-keeper", "cronjobs-minutes")
    wait_until(lambda: all(tries[name] > TRIES for name in names))
    away.clear()
    with app.app_context():
        jobs.enqueue("near", commit=True)
        wait_until(lambda: db.session.query(JobRun.status).scalar() == "succeeded")
        back = "The database is back"
        wait_until(lambda: sum(back in each for each in warnings(caplog)) == len(names))
    said = Counter(each.partition(" no database")[0] for each in warnings(caplog))
    assert said["Trying again."] == 1
    assert said["The work of the minute is tried again."] == 1
    engine.close()


def test_a_broker_that_is_away_is_not_told_at_each_try(
    app: Flask,
    db: SQLAlchemy,
    resident: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries: list[str] = []

    class Counting(Threads):
        def waiting(self, queue: str) -> int:
            tries.append(queue)
            return super().waiting(queue)

    engine = Counting(app)
    engine.unreachable = ConnectionRefusedError("no broker")
    app.config["CRONJOBS_EXECUTORS"] = {"far": engine}
    jobs = CronJobs(app)
    jobs.task(name="far", queue="far")(lambda: None)
    with app.app_context():
        db.create_all()
        jobs.enqueue("far", commit=True)
        resident()
        wait_until(lambda: len(tries) > TRIES)
        engine.unreachable = None
        wait_until(lambda: db.session.query(JobRun.status).scalar() == "succeeded")
    away, back = warnings(caplog)
    assert "threads cannot be reached, so the queue far waits" in away
    assert "threads is back, after" in back
    engine.close()
