"""A broker gets what its workers begin within the leases, however high the limit is."""

from __future__ import annotations

from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.engine import hand_over
from flask_cronjobs.engine.hand_over import FEW
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobRun
from tests.executors.threads import Threads
from tests.rows import Rows


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick end that would wait for the workers of an executor."""
    hand_on = hand_over._Queue.hand_on

    def hand_on_without_waiting(self: Any, most: int) -> str:
        found = hand_on(self, most)
        return "nothing" if found == "soon" else found

    monkeypatch.setattr(hand_over._Queue, "hand_on", hand_on_without_waiting)


@pytest.mark.usefixtures("leaving")
def test_a_queue_that_stands_still_gets_a_few(far: Any, executor: Threads, jobs: CronJobs) -> None:
    far.enqueue_many([{}] * (3 * FEW))
    for _ in range(2):
        jobs.tick()
        assert len(executor.sent) == FEW


@pytest.mark.usefixtures("leaving")
def test_a_queue_gets_as_many_more_as_ended_lately(
    far: Any, executor: Threads, jobs: CronJobs, state: State, rows: Rows
) -> None:
    lease = state.settings.lease
    for _ in range(5):
        rows.run("succeeded", queue="far")
        rows.run("succeeded", age=100 * lease, queue="far")
        rows.run("succeeded", queue="other")
        rows.run("cancelled", queue="far")
    far.enqueue_many([{}] * (3 * FEW))
    jobs.tick()
    assert len(executor.sent) == FEW + 5


def test_a_queue_that_is_worked_on_gets_all(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    executor.keep = False
    far.enqueue_many([{}] * (5 * FEW))
    jobs.tick()
    executor.results()
    db.session.expire_all()
    assert {run.status for run in db.session.query(JobRun)} == {"succeeded"}


@pytest.mark.usefixtures("leaving")
def test_stale_messages_are_worked_off_before_more_is_handed_on(
    far: Any, executor: Threads, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "waiting", lambda queue: FEW)
    far.enqueue_many([{}] * FEW)
    jobs.tick()
    assert executor.sent == []
