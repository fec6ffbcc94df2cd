"""Rate limits, as ticks and tests of an app see them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun
from tests.jobs.test_rates import refuse_too_early

pytestmark = pytest.mark.usefixtures("context")


def slots(db: Any, period: float, burst: int = 1) -> int:
    """How many attempts began, none of them too early."""
    found = db.session.scalars(select(JobRun.started_at).where(JobRun.started_at.is_not(None)))
    times = sorted(found)
    refuse_too_early(times, period, burst)
    return len(times)


def test_tick_goes_on_while_slots_come(jobs: CronJobs, db: Any) -> None:
    @jobs.task(rate="10/s", burst=2)
    def send() -> None:
        pass

    send.using(commit=True).enqueue_many([{}] * 5)
    report = jobs.tick(budget=10)
    assert report.succeeded == 5
    assert slots(db, 0.1, burst=2) == 5
