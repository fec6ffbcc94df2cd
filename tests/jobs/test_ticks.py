"""Rows of ticks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from flask_cronjobs.jobs.ticks import begin, finish, seen
from flask_cronjobs.models import JobTick
from flask_cronjobs.types import TickReport
from tests.kit import Kit
from tests.rows import ago

DAY = 86400.0
FORTNIGHT, QUARTER = 14 * DAY, 90 * DAY


def ticks(kit: Kit) -> list[JobTick]:
    with Session(kit.engine) as session:
        return list(session.scalars(select(JobTick).order_by(JobTick.id)))


def finished(kit: Kit, status: str, days: float, **values: Any) -> int:
    return kit.run(status=status, finished_at=ago(days=days), attempts=1, **values)


def ids(kit: Kit) -> list[int]:
    return [row.id for row in kit.all_rows()]


def test_tick_leaves_a_row_of_who_when_and_what(kit: Kit) -> None:
    before = kit.definitions.now()
    row = begin(kit.books, "host:7", "host", 7)
    assert before <= row.now <= kit.definitions.now()
    (begun,) = ticks(kit)
    assert (begun.worker, begun.host, begun.pid) == ("host:7", "host", 7)
    assert begun.finished_at is None

    report = TickReport("host:7", recorded=1, skipped=2, reclaimed=3, succeeded=4, failed=5, dead=6,
                        cancelled=7, released=8, snoozed=9, lost=10, pruned=11)  # fmt: skip
    finish(kit.books, row.id, report, 0.25)
    (done,) = ticks(kit)
    assert done.finished_at is not None
    assert done.clock_offset == 0.25
    counts = ("recorded", "skipped", "reclaimed", "succeeded", "failed", "dead", "cancelled",
              "released", "snoozed", "lost", "pruned")  # fmt: skip
    assert [getattr(done, name) for name in counts] == list(range(1, 12))


def test_tick_says_that_it_is_alive(kit: Kit) -> None:
    row = begin(kit.books, "host:7", "host", 7)
    kit.sql("UPDATE job_ticks SET seen_at = '2000-01-01'")
    seen(kit.books, row.id)
    assert ticks(kit)[0].seen_at.year > 2000
