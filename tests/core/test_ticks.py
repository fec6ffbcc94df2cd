"""The rows of ticks: the contents of each, and that there are never many."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from flask_cronjobs import DatabaseTrouble
from flask_cronjobs.core import ticks as ticks_module
from flask_cronjobs.core.ticks import TICK_COUNTS, add, finish, seen
from flask_cronjobs.models import JobTick
from flask_cronjobs.types import TickReport
from tests.kit import Kit, lose_answer
from tests.marks import on_postgresql
from tests.rows import ago


def ticks(kit: Kit) -> list[JobTick]:
    with Session(kit.engine) as session:
        return list(session.scalars(select(JobTick).order_by(JobTick.id)))


def test_tick_leaves_a_row_of_who_when_and_what(kit: Kit) -> None:
    before = kit.definitions.now()
    row = ticks_module.begin(
        kit.books, "host:7", "host", 7, queues=["mail", "a"], version="1", resident=True
    )
    assert before <= row.now <= kit.definitions.now()
    (tick,) = ticks(kit)
    assert (tick.worker, tick.host, tick.pid) == ("host:7", "host", 7)
    assert (tick.queues, tick.version, tick.resident) == (["a", "mail"], "1", True)
    assert tick.finished_at is None

    report = TickReport("host:7", recorded=1, skipped=2, reclaimed=3, succeeded=4, failed=5, dead=6,
                        cancelled=7, released=8, snoozed=9, lost=10, pruned=11)  # fmt: skip
    finish(kit.books, row.id, report, 0.25)
    (tick,) = ticks(kit)
    assert tick.finished_at is not None
    assert tick.clock_offset == 0.25
    assert [getattr(tick, name) for name in TICK_COUNTS] == list(range(1, 12))


def test_counts_are_added_once_though_the_answers_are_lost(kit: Kit) -> None:
    row = ticks_module.begin(kit.books, "host:7", "host", 7, resident=True)
    sent = lose_answer(kit, "UPDATE job_ticks", times=(1, 2))
    with pytest.raises(DatabaseTrouble) as trouble:
        add(kit.books, "host", {"succeeded": 3})
    assert trouble.value.unknown
    finish(kit.books, row.id, TickReport("host:7", succeeded=4), 0.0)
    assert [tick.succeeded for tick in ticks(kit)] == [7]
    assert len(sent) == 3


def test_tick_says_that_it_is_alive(kit: Kit) -> None:
    row = ticks_module.begin(kit.books, "host:7", "host", 7)
    assert ticks(kit)[0].queues is None
    kit.sql("UPDATE job_ticks SET seen_at = '2000-01-01'")
    seen(kit.books, row.id)
    assert ticks(kit)[0].seen_at.year > 2000


def begin(kit: Kit, hours: float = 0, finished: bool = False) -> int:
    """Begin a tick that started *hours* ago; return its id."""
    row = ticks_module.begin(kit.books, "host:7", "host", 7)
    if finished:
        finish(kit.books, row.id, TickReport("host:7"), 0.0)
    with kit.engine.begin() as connection:
        aged = update(JobTick).where(JobTick.id == row.id).values(started_at=ago(hours=hours))
        connection.execute(aged)
    return row.id


def tick_ids(kit: Kit) -> list[int]:
    return [row.id for row in kit.sql("SELECT id FROM job_ticks ORDER BY id")]


class TestGrowth:
    def test_rows_are_kept_for_a_day_and_go_as_ticks_begin(self, kit: Kit) -> None:
        begin(kit, 30, finished=True)
        begin(kit, 26, finished=True)
        kept_ids = [begin(kit, 23, finished=True), begin(kit)]
        assert tick_ids(kit) == kept_ids

    def test_the_last_tick_that_finished_stays_until_another_has(self, kit: Kit) -> None:
        last = begin(kit, 50, finished=True)
        begin(kit, 40)
        unfinished = begin(kit)
        assert tick_ids(kit) == [last, unfinished]
        later = begin(kit, 1, finished=True)
        assert tick_ids(kit) == [last, unfinished, later]
        now = begin(kit)
        assert tick_ids(kit) == [unfinished, later, now]

    @on_postgresql
    def test_a_locked_row_is_skipped(self, kit: Kit) -> None:
        locked, free = begin(kit), begin(kit)
        kit.sql("UPDATE job_ticks SET started_at = '2000-01-01'")
        with kit.engine.begin() as operator:
            operator.execute(text(f"SELECT 1 FROM job_ticks WHERE id = {locked} FOR UPDATE"))
            now = begin(kit)
            assert free not in tick_ids(kit)
        assert tick_ids(kit) == [locked, now]
        begin(kit)
        assert locked not in tick_ids(kit)
