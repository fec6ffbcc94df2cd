"""Times, queries and the chart, without an app."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest

from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.tick_views import Bucket
from flask_cronjobs.web import format
from flask_cronjobs.web.charts import HEIGHT, chart
from flask_cronjobs.web.params import BadQuery, filter_args, run_filter, text

NOW = datetime(2026, 11, 20, 12, 6, 3, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("moment", "zone", "shown"),
    [
        (NOW, "UTC", "today 12:06:03"),
        (NOW, "Europe/Berlin", "today 13:06:03"),
        (NOW + timedelta(hours=11), "Europe/Berlin", "tomorrow 00:06:03"),
        (NOW - timedelta(days=1), "UTC", "yesterday 12:06:03"),
        (NOW + timedelta(days=3), "UTC", "Mon 23 Nov 12:06:03"),
        (NOW + timedelta(days=60), "UTC", "Tue 19 Jan 2027 12:06:03"),
        (NOW.replace(second=0), "UTC", "today 12:06"),
        (NOW.replace(year=9999, month=12, day=31), "Asia/Tokyo", "Fri 31 Dec 9999 21:06:03"),
        (NOW.replace(9999, 12, 31, 23), "Asia/Tokyo", "Fri 31 Dec 9999 23:06:03"),
        (NOW, "No/Such", "today 12:06:03"),
        (NOW, "../etc", "today 12:06:03"),
        (NOW, "", "today 12:06:03"),
        (NOW, "x\0", "today 12:06:03"),
    ],
)
def test_the_clock_of_a_zone(moment: datetime, zone: str, shown: str) -> None:
    assert format.clock(moment, zone, NOW) == shown


def test_a_sentence_has_the_pages_clock_code_and_numbers_with_their_units() -> None:
    sentence = "<b> missed at 2026-11-20 05:00 UTC; `flask jobs tick` 3 min 20 s; 2 days; 7 d"
    time = (
        '<time datetime="2026-11-20T05:00:00+00:00" title="2026-11-20 05:00 UTC">today 06:00</time>'
    )
    expected = (
        f"&lt;b&gt; missed at {time}; <code>flask jobs tick</code> 3\xa0min 20\xa0s; 2 days; 7\xa0d"
    )
    assert format.prose(sentence, "Europe/Berlin", NOW) == expected


@pytest.mark.parametrize("name", ["2026-02-30 10:00 UTC", "0001-01-01 00:00 UTC"])
def test_a_name_that_looks_like_a_moment_and_is_none_stays_as_it_is(name: str) -> None:
    sentence = f"the queue {name} is paused"
    assert format.prose(sentence, "America/New_York", NOW) == sentence


def test_a_filter_survives_the_way_through_a_url() -> None:
    texts = {"task": "a&b", "queue": "q", "error": "e", "error_type": "", "definition": "d"}
    ages = {"older_than": 5400.0, "newer_than": 86400.0}
    filters = RunFilter(status="dead", overdue=True, stale=True, **texts, **ages)  # type: ignore[arg-type]
    assert run_filter(filter_args(filters)) == filters
    assert filter_args(RunFilter()) == {}


def _buckets(**hours: Bucket) -> list[Bucket]:
    starts = [NOW + timedelta(hours=number - 23) for number in range(24)]
    return [hours.get(f"h{number}", Bucket(start)) for number, start in enumerate(starts)]


def test_the_chart_fits_its_box_and_shows_the_seldom() -> None:
    busy = Bucket(NOW, succeeded=100_000, failed=1, dead=1, ticks=60)
    drawn = chart(_buckets(h3=busy, h5=Bucket(NOW, succeeded=3), h23=Bucket(NOW, 1, ticks=1)))
    assert drawn.peak == 100_002
    assert [tone for tone, _, _ in drawn.bars[3].blocks] == ["good", "warn", "bad"]
    for _, top, high in (block for bar in drawn.bars for block in bar.blocks):
        assert high >= 1
        assert top >= 0
        assert top + high <= HEIGHT + 3
        for number in (top, high):  # Each line can be an attribute.
            assert re.fullmatch(r"\d+(\.\d+)?", str(number))
    assert sum(bar.silent for bar in drawn.bars) == 19


@pytest.mark.parametrize("value", ["a\0", "\ud800", "x" * 501])
def test_a_text_that_no_database_takes_is_refused(value: str) -> None:
    with pytest.raises(BadQuery, match="task must be valid text"):
        text({"task": value}, "task")


def test_a_docstring_flows_where_only_its_source_is_broken() -> None:
    doc = "Send a\nreport.\n\nTo each:\n- users\n- staff\n    code\n:param day: of it\nor the next"
    flowing = (
        "Send a report.\n\nTo each:\n- users\n- staff\n    code\n:param day: of it or the next"
    )
    assert format.flowing(doc) == flowing


def test_a_long_name_is_cut_in_the_middle_and_whole_as_its_title() -> None:
    name = f"{'a' * 40}<{'b' * 40}"
    text = format.short(name)
    assert f"{'a' * 30}…{'b' * 30}" in text
    assert f'title="{"a" * 40}&lt;{"b" * 40}"' in text
    assert "…" not in format.short("a" * 60)
