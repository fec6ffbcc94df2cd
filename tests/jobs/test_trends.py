"""Numbers by day, and which tasks have become slower."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from flask_cronjobs.jobs.definitions.views import DefinitionFilter, list_definitions
from flask_cronjobs.jobs.history import add_mark
from flask_cronjobs.jobs.reader import reading
from flask_cronjobs.jobs.state import State
from flask_cronjobs.jobs.trends import (
    DAYS,
    read_last_hour,
    read_trend,
    read_trends,
    slow_tasks,
)
from flask_cronjobs.models import JobHour
from tests.rows import Rows, now

#: Buckets of about one, two and four seconds.
ONE, TWO, FOUR = "40", "44", "48"


def today() -> datetime:
    return now().astimezone(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)


def add_hour(state: State, days: int, bucket: str, number: int = 30, task: str = "send") -> None:
    seconds = {ONE: 1.0, TWO: 2.0, FOUR: 4.0}[bucket] * number
    row: dict[str, Any] = {
        "hour": today() - timedelta(days=days), "job_type": task, "ended": number, "dead": 1,
        "took": {bucket: number}, "took_seconds": seconds, "waited": {"0": number},
        "waited_seconds": 0,
    }  # fmt: skip
    engine: Engine = state.engine
    with engine.begin() as connection:
        connection.execute(insert(JobHour).values(row))


def test_days_begin_with_the_first_on_which_a_run_ended(state: State) -> None:
    add_hour(state, 2, ONE)
    add_hour(state, 0, FOUR, task="other")
    add_hour(state, DAYS, ONE)
    first, between, last = read_trend(state, "send").days
    assert (first.start, first.ended, first.dead) == (today() - timedelta(days=2), 30, 1)
    assert first.p50 == first.p95 == pytest.approx(1.024, rel=0.1)
    assert first.waited == 0
    assert (between.ended, between.p50, last.ended) == (0, None, 0)
    assert read_trend(state, "none").days == ()


@pytest.mark.parametrize(
    ("buckets", "factor"),
    [
        ([ONE, ONE, FOUR, FOUR], 4.0),
        ([ONE, ONE, ONE, ONE], None),
        ([ONE, ONE, FOUR, ONE], None),
        ([FOUR, FOUR, ONE, ONE], None),
    ],
)
def test_task_is_slower_if_each_day_since_then_was(
    state: State, buckets: list[str], factor: float | None
) -> None:
    for age, bucket in enumerate(reversed(buckets)):
        add_hour(state, age, bucket)
    found = read_trend(state, "send").slower
    assert (found and found.factor) == (factor and pytest.approx(factor, rel=0.05))
    if found is not None:
        since = today() - timedelta(days=1)
        assert str(found) == f"4.0 times slower since {since:%a} {since.day} {since:%b}"


def test_few_runs_tell_nothing(state: State) -> None:
    add_hour(state, 3, ONE, 19)
    add_hour(state, 0, FOUR)
    assert read_trend(state, "send").slower is None


def test_week_is_compared_with_the_one_before(state: State) -> None:
    for task, before, after in (("slow", ONE, FOUR), ("fast", TWO, ONE), ("same", ONE, ONE)):
        add_hour(state, 9, before, task=task)
        add_hour(state, 2, after, task=task)
    add_hour(state, 9, ONE, 19, task="few")
    add_hour(state, 1, FOUR, task="few")
    add_hour(state, 20, ONE, task="long ago")
    slow, same, fast, few = read_trends(state)
    assert [each.task for each in (slow, same, fast, few)] == ["slow", "same", "fast", "few"]
    assert slow.factor == pytest.approx(4, rel=0.05)
    since = today() - timedelta(days=2)
    day = f"{since:%a} {since.day} {since:%b}"
    assert str(slow) == (
        "This week 30 runs, 1 dead, median 3.8 s, 95 % within 3.8 s; "
        "last week 30 runs, 1 dead, median 939 ms, 95 % within 939 ms: "
        f"4.0 times slower since {day}."
    )
    assert (same.compared, fast.compared, few.compared) == ("about as fast", "2.0 times faster", "")
    assert str(read_trend(state, "long ago")) == "This week no runs; last week no runs."


def test_day_is_one_of_the_zone_and_has_its_marks(state: State) -> None:
    add_hour(state, 3, ONE)  # Midnight in UTC.
    add_mark(state, "v812", today() - timedelta(days=1))
    add_mark(state, "v1", today() - timedelta(days=9))
    in_utc = read_trend(state, "send", "UTC")
    west = read_trend(state, "send", "America/New_York")
    assert in_utc.days[0].start == today() - timedelta(days=3)
    assert west.days[0].start.date() == (today() - timedelta(days=4)).date()
    assert west.days[0].ended == 30
    assert [mark.name for mark in in_utc.marks] == ["v812"]


def test_definition_of_a_task_that_became_slower_needs_a_person(state: State, rows: Rows) -> None:
    rows.definition("daily", job_type="send")
    rows.definition("other", job_type="other")
    with reading(state) as reader:
        assert slow_tasks(reader) == {}
    for task, bucket in (("send", FOUR), ("other", ONE)):
        add_hour(state, 4, ONE, task=task)
        add_hour(state, 0, bucket, task=task)
    assert "slower" not in {need for row in list_definitions(state).rows for need in row.needs}
    state.slow_tasks.clear()  # As after five minutes.
    found = {row.name: row.needs for row in list_definitions(state).rows}
    assert found["daily"][-1] == "slower"
    assert "slower" not in found["other"]
    slower = list_definitions(state, DefinitionFilter(state="slower")).rows
    assert [row.name for row in slower] == ["daily"]


def test_last_hour_is_by_task(state: State) -> None:
    assert read_last_hour(state) == []
    add_hour(state, 1, ONE)
    add_hour(state, 0, FOUR, 10)
    add_hour(state, 0, TWO, 20, task="other")
    add_hour(state, 0, TWO, 30, task="")
    other, send = read_last_hour(state)
    assert (other.job_type, other.took, other.took_seconds) == ("other", {"44": 20}, 40.0)
    assert (send.job_type, send.waited) == ("send", {"0": 10})
