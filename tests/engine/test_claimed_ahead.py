"""A tick does not end while another worker may give back runs that it has claimed ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, TickReport
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.engine.worker.claims import WorkerClaims
from flask_cronjobs.engine.worker.outcomes import released
from flask_cronjobs.jobs.runs.claim import ClaimRequest, record_and_claim
from flask_cronjobs.jobs.runs.look import QueueLook, look_at_queue
from flask_cronjobs.types import Claim

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def other(db: SQLAlchemy) -> Iterator[Bookkeeping]:
    """Another worker, which claims runs and calls none."""
    with Bookkeeping(db.engine) as books:
        yield books


def claimed(
    other: Bookkeeping, db: SQLAlchemy, jobs: CronJobs, token: str = "b:1:x"
) -> list[Claim]:
    """Enqueue three runs that the other worker then claims."""
    jobs.get("it").enqueue_many([{}] * 3)
    db.session.commit()
    claims = record_and_claim(other, [], ClaimRequest(limit=9, token=token, tasks=("it",))).claims
    assert len(claims) == 3
    return list(claims)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a tick has found nothing but what another worker has just claimed."""
    event = threading.Event()

    def note(books: Bookkeeping) -> QueueLook:
        found = look_at_queue(books)
        if found.just_claimed and not found.may_find:
            event.set()
        return found

    for module in ("tick", "worker.claims"):
        monkeypatch.setattr(f"flask_cronjobs.engine.{module}.look_at_queue", note)
    return event


@pytest.mark.parametrize("own", [0, 2])
def test_what_another_gives_back_runs_in_the_tick_that_is_there(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, other: Bookkeeping, looked: threading.Event,
    monkeypatch: pytest.MonkeyPatch, own: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("flask_cronjobs.jobs.runs.look.AHEAD_FOR", 600.0)
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
    record_and_claim(other, [released(each) for each in claims], None)
    thread.join()
    assert [report.succeeded for report in reports] == [3 + own]


def test_what_another_gives_back_between_claim_and_look_runs_in_the_tick_that_is_there(
    db: SQLAlchemy, jobs: CronJobs, other: Bookkeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.jobs.runs.look.AHEAD_FOR", 600.0)
    jobs.task(name="it")(lambda: None)
    claims = claimed(other, db, jobs)
    look = WorkerClaims.may_come_back

    def give_back_and_look(own: WorkerClaims) -> bool:
        while claims:
            record_and_claim(other, [released(claims.pop())], None)
        return look(own)

    monkeypatch.setattr(WorkerClaims, "may_come_back", give_back_and_look)
    assert jobs.tick(budget=60).succeeded == 3


@pytest.mark.parametrize("token", ["b:1:x", "handed:celery:b:1:x"])
def test_tick_ends_while_others_work_on_what_they_claimed_before_or_handed_on(
    db: SQLAlchemy, jobs: CronJobs, other: Bookkeeping, looked: threading.Event,
    monkeypatch: pytest.MonkeyPatch, token: str,
) -> None:  # fmt: skip
    if token.startswith("handed"):
        monkeypatch.setattr("flask_cronjobs.jobs.runs.look.AHEAD_FOR", 600.0)
    jobs.task(name="it")(lambda: None)
    claimed(other, db, jobs, token)
    if not token.startswith("handed"):
        db.session.execute(text("UPDATE job_runs SET started_at = '2020-01-01 00:00:00.000000'"))
        db.session.commit()
    jobs.tick(budget=300)
    assert not looked.is_set()
