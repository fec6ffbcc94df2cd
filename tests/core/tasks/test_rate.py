"""Rates, and when they let attempts begin."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_cronjobs import CronJobs, TaskError
from flask_cronjobs.core.tasks.rate import Rate, read_rate
from tests.rates import refuse_too_early

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100/minute", 0.6), ("5/s", 0.2), ("1000/hour", 3.6), ("20/10s", 0.5), ("1/day", 86400)],
)
def test_rate_is_read(text: str, seconds: float) -> None:
    assert read_rate(text) == Rate(timedelta(seconds=seconds), 1)


def test_odd_rate_is_never_exceeded() -> None:
    assert read_rate("7/s").period * 7 > timedelta(seconds=1)


@given(
    burst=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.integers(0, 1500), st.sampled_from(["take", "hold", "late"])),
        max_size=60,
    ),
)
def test_no_window_has_more_than_its_rate_and_the_burst(
    burst: int, steps: list[tuple[int, str]]
) -> None:
    """The rate holds even if starts are given back, and if a claim takes its start late."""
    rate = Rate(timedelta(milliseconds=600), burst)
    tat: datetime | None = None
    now, starts = START, list[datetime]()
    for milliseconds, action in steps:
        now += timedelta(milliseconds=milliseconds)
        at = now - timedelta(milliseconds=700) if action == "late" else now
        if action == "hold":
            end = now + timedelta(seconds=1)
            tat = max(tat or START, end + rate.ahead)
            assert rate.start(tat, end - timedelta(microseconds=1)) is None
        elif (after := rate.start(tat, at)) is not None:
            assert rate.free(tat, at) > 0
            tat = after
            starts.append(at)
        else:
            assert tat is not None
            assert rate.free(tat, at) == 0
            assert rate.start(tat, rate.opens(tat)) is not None
    refuse_too_early(sorted(starts), 0.6, burst)


@pytest.mark.parametrize(
    ("budget", "burst", "number"), [(60, 1, 1000), (50, 17, 1000), (50, 1, 840)]
)
def test_ticks_reach_a_rate_if_budget_or_burst_covers_the_whole_minute(
    budget: int, burst: int, number: int
) -> None:
    """The rate is 100 a minute, with one tick a minute for ten minutes."""
    rate, tat, starts = Rate(timedelta(seconds=0.6), burst), None, 0
    for minute in range(10):
        for tenth in range(budget * 10):
            at = START + timedelta(minutes=minute, seconds=tenth / 10)
            while (after := rate.start(tat, at)) is not None:
                tat, starts = after, starts + 1
    assert number <= starts <= number + burst


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "fast"}, "rate is 'fast'. Give a number and a time, such as '100/minute'"),
        ({"rate": 5}, "rate is 5. Give a number and a time"),
        ({"rate": "0/s"}, "rate is '0/s'.* The number must be from 1 to 999,999"),
        ({"rate": "1000000/s"}, "The number must be from 1 to 999,999"),
        ({"rate": "1.5/s"}, "'1.5' is not a whole number. Give a longer time"),
        ({"rate": "5/fortnight"}, "'fortnight' is not a unit. The units are: s, second, min"),
        ({"rate": "5/10000s"}, "The time must be from 1 to 9,999 units"),
        ({"rate": "5 / s"}, "Write it without spaces or leading zeros"),
        ({"rate": "5/s", "rate_key": lambda mail: "x"}, "rate_key is <function.*Give a string of"),
        ({"rate": "5/s", "burst": 0}, "burst is 0"),
        ({"rate": "1/day", "burst": 9999}, "ten years until a burst of 9999 is available"),
        ({"burst": 2}, "burst has no effect without rate"),
        ({"rate_key": "mail"}, "rate_key has no effect without rate"),
        ({"rate": "5/s", "rate_key": "{nobody}"}, "nobody"),
    ],
)
def test_wrong_rate_is_refused(jobs: CronJobs, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message.replace("(", r"\(")):
        jobs.task(name="it", **options)(lambda: None)


def test_tasks_share_a_rate_key_only_with_one_rate(jobs: CronJobs) -> None:
    for name in ("one", "two"):
        jobs.task(name=name, rate="5/s", rate_key="mail")(lambda: None)
    with pytest.raises(TaskError, match="share the rate_key 'mail', so they need the same rate"):
        jobs.task(name="three", rate="6/s", rate_key="mail")(lambda: None)
