"""An outage of a database or a broker is logged once, then each minute, and when it ends."""

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
from flask_cronjobs.core import resident as resident_module
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.features.executors import hand_over as hand_over_module
from flask_cronjobs.log import Outage
from flask_cronjobs.models import JobRun
from tests.features.executors.threads import Threads
from tests.process.support import wait_until
from tests.resident import Resident

Start = Callable[[], Resident]
#: How often each thread fails before the outage ends.
TRIES = 15


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


#: The seconds at which something is noted, with what is noted, and the messages in the log.
OUTAGES: dict[str, tuple[list[tuple[float, str]], list[str]]] = {
    "it is said once a minute and when it is over": (
        [(0, "over"), *((second, "away") for second in range(125)), (125, "over"), (126, "over")],
        ["away, 0", "away, 60", "away, 120", "It is back, after 125 s"],
    ),
    "one that comes and goes is said once a minute": (
        [(second, word) for second in range(70) for word in ("away", "over")],
        ["away, 0", "It is back, after 0 s", "away, 60", "It is back, after 0 s"],
    ),
    "a short one is not told of where only a long one is to be": (
        [(0, "locked"), (4, "locked"), (4, "over"), (8, "locked"), (14, "locked"), (14, "over")],
        ["away, 14", "It is back, after 6 s"],
    ),
}


@pytest.mark.parametrize(("events", "messages"), OUTAGES.values(), ids=OUTAGES)
def test_outage(
    events: list[tuple[float, str]], messages: list[str],
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    outage, now = Outage(), 0.0
    monkeypatch.setattr("flask_cronjobs.log.time.monotonic", lambda: 1000.0 + now)
    for now, word in events:
        if word == "over":
            outage.over("It")
        else:
            outage.say("away, %d", now, after=5.0 if word == "locked" else 0.0)
    assert warnings(caplog) == messages


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause between two tries."""
    for module in (resident_module, hand_over_module):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)


@pytest.fixture
def executor(app: Flask) -> Iterator[Threads]:
    """The executor of the queue ``far``."""
    threads = Threads(app)
    yield threads
    threads.close()


def test_no_thread_of_a_worker_repeats_itself_while_the_database_is_away(
    executor: Threads, jobs: CronJobs, context: None, db: SQLAlchemy, resident: Start,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    near = jobs.task(name="near")(lambda: None)
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
    near.using(commit=True).enqueue()
    wait_until(lambda: succeeded(db))
    back = "The database is back"
    wait_until(lambda: sum(back in line for line in warnings(caplog)) == len(names))
    endings = Counter(line.partition(" no database")[0] for line in warnings(caplog))
    assert endings["Trying again."] == endings["This minute's work is being retried."] == 1


def succeeded(db: SQLAlchemy) -> bool:
    db.session.rollback()
    return bool(db.session.query(JobRun.status).scalar() == "succeeded")
