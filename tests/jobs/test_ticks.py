"""Rows of ticks."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from flask_cronjobs.jobs.ticks import TICK_COUNTS, begin, finish, seen
from flask_cronjobs.models import JobTick
from flask_cronjobs.types import TickReport
from tests.kit import Kit


def ticks(kit: Kit) -> list[JobTick]:
    with Session(kit.engine) as session:
        return list(session.scalars(select(JobTick).order_by(JobTick.id)))


def test_tick_leaves_a_row_of_who_when_and_what(kit: Kit) -> None:
    before = kit.definitions.now()
    row = begin(kit.books, "host:7", "host", 7, queues=["mail", "a"], version="1", resident=True)
    assert before <= row.now <= kit.definitions.now()
    (begun,) = ticks(kit)
    assert (begun.worker, begun.host, begun.pid) == ("host:7", "host", 7)
    assert (begun.queues, begun.version, begun.resident) == (["a", "mail"], "1", True)
    assert begun.finished_at is None

    report = TickReport("host:7", recorded=1, skipped=2, reclaimed=3, succeeded=4, failed=5, dead=6,
                        cancelled=7, released=8, snoozed=9, lost=10, pruned=11)  # fmt: skip
    finish(kit.books, row.id, report, 0.25)
    (done,) = ticks(kit)
    assert done.finished_at is not None
    assert done.clock_offset == 0.25
    assert [getattr(done, name) for name in TICK_COUNTS] == list(range(1, 12))


def test_tick_says_that_it_is_alive(kit: Kit) -> None:
    row = begin(kit.books, "host:7", "host", 7)
    assert ticks(kit)[0].queues is None
    kit.sql("UPDATE job_ticks SET seen_at = '2000-01-01'")
    seen(kit.books, row.id)
    assert ticks(kit)[0].seen_at.year > 2000
