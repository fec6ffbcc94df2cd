"""A tick does not end while another worker may give back runs that it has claimed ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, TickReport
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.worker.exchanger import Exchanger
from flask_cronjobs.engine.worker.outcomes import released
from flask_cronjobs.jobs.runs.claim import ClaimRequest
from flask_cronjobs.jobs.runs.exchange import Claims
from flask_cronjobs.types import Claim

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def other(db: SQLAlchemy) -> Iterator[Claims]:
    """Another worker, which claims runs and calls none."""
    with Bookkeeping(db.engine) as books:
        yield Claims(books)


def claimed(other: Claims, db: SQLAlchemy, jobs: CronJobs, token: str = "b:1:x") -> list[Claim]:
    """Enqueue three runs that the other worker then claims."""
    jobs.get("it").enqueue_many([{}] * 3)
    db.session.commit()
    claims = other.exchange([], ClaimRequest(limit=9, token=token, tasks=("it",))).claims
    assert len(claims) == 3
    return list(claims)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a tick has found nothing but what another worker has just claimed."""
    event = threading.Event()
    front = Claims.front

    def note(claims: Claims) -> Any:
        found = front(claims)
        if found.ahead and not found.may_find:
            event.set()
        return found

    monkeypatch.setattr(Claims, "front", note)
    return event


@pytest.mark.parametrize("own", [0, 2])
def test_what_another_gives_back_runs_in_the_tick_that_is_there(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, other: Claims, looked: threading.Event,
    monkeypatch: pytest.MonkeyPatch, own: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("flask_cronjobs.jobs.runs.exchange.AHEAD_FOR", 600.0)
    jobs.task(name="it")(lambda: None)
    claims = claimed(other, db, jobs)
    jobs.get("it").enqueue_many([{}] * own)
    db.session.commit()
    reports: list[TickReport] = []

    def tick() -> None:
        with app.app_context():
            reports.append(jobs.tick(budget=60))

    thread = threading.Thread(target=tick)
    thread.start()
    assert looked.wait(60)
    other.exchange([released(each) for each in claims], None)
    thread.join()
    assert [report.succeeded for report in reports] == [3 + own]


def test_what_another_gives_back_between_claim_and_look_runs_in_the_tick_that_is_there(
    db: SQLAlchemy, jobs: CronJobs, other: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.jobs.runs.exchange.AHEAD_FOR", 600.0)
    jobs.task(name="it")(lambda: None)
    claims = claimed(other, db, jobs)
    look = Exchanger.may_come_back

    def give_back_and_look(exchanger: Exchanger) -> bool:
        while claims:
            other.exchange([released(claims.pop())], None)
        return look(exchanger)

    monkeypatch.setattr(Exchanger, "may_come_back", give_back_and_look)
    assert jobs.tick(budget=60).succeeded == 3


@pytest.mark.parametrize("token", ["b:1:x", "handed:celery:b:1:x"])
def test_tick_ends_while_others_work_on_what_they_claimed_before_or_handed_on(
    db: SQLAlchemy, jobs: CronJobs, other: Claims, looked: threading.Event,
    monkeypatch: pytest.MonkeyPatch, token: str,
) -> None:  # fmt: skip
    if token.startswith("handed"):
        monkeypatch.setattr("flask_cronjobs.jobs.runs.exchange.AHEAD_FOR", 600.0)
    jobs.task(name="it")(lambda: None)
    claimed(other, db, jobs, token)
    if not token.startswith("handed"):
        db.session.execute(text("UPDATE job_runs SET started_at = '2020-01-01 00:00:00.000000'"))
        db.session.commit()
    jobs.tick(budget=300)
    assert not looked.is_set()
