"""The page of tonight."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flask_cronjobs.jobs import agenda
from flask_cronjobs.jobs.agenda import Kind, Lane, Piece
from flask_cronjobs.web.charts import ACROSS, across, height, stretches

from .conftest import NOW, Pages


def test_tonight_shows_a_lane_for_each_definition(pages: Pages) -> None:
    pages.shows("tonight", "No definition is scheduled")
    id_ = pages.define("report<b>", schedule="0 * * * *", next_run_at=NOW)
    late = datetime.now(timezone.utc) - timedelta(hours=1)
    times = {"started_at": late, "finished_at": late, "scheduled_for": late}
    run = pages.add("succeeded", definition_id=id_, **times)
    soon = datetime.now(timezone.utc) + timedelta(minutes=5)
    pages.add("queued", job_type="mail", run_at=soon)
    lane = "report&lt;b&gt;", "1 ran", "and 11 more", f"/runs/{run}", 'class="good"'
    pages.shows("tonight", *lane, "1 run of", hides=["report<b>"])


def test_tonight_reads_from_and_until_in_the_page_s_zone(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.define("report", schedule="0 * * * *", timezone="Asia/Tokyo", next_run_at=NOW)
    night = pages.data("tonight?from=22:00&until=08:00&zone=Europe/Berlin")
    ends = [
        datetime.fromisoformat(night[name]).astimezone(ZoneInfo("Europe/Berlin"))
        for name in ("start", "end")
    ]
    assert [end.hour for end in ends] == [22, 8]
    tokyo = datetime.fromisoformat(pages.data("tonight?until=08:00")["end"])
    assert tokyo.astimezone(ZoneInfo("Asia/Tokyo")).hour == 8
    shown = pages.shows("tonight?from=22:00&until=08:00", 'name="until" value="08:00"')
    assert 'from=22:00&amp;until=08:00" aria-current="page">The night' in shown.replace("%3A", ":")
    refused = pages.get("/jobs/tonight?until=25:00")
    assert (refused.status_code, "Write 08:00" in refused.text) == (400, True)
    eve, end = "2026-10-24T18:00", "2026-10-25T06:00"
    changed = "On Sun 25 Oct the clocks in Europe/Berlin go back, from 03:00 to 02:00"
    monkeypatch.setattr("flask_cronjobs.jobs.agenda.LONGEST", timedelta(days=9999))
    pages.shows(f"tonight?from={eve}&until={end}&zone=Europe/Berlin", changed)


def test_cell_is_as_high_as_its_run_was_long(pages: Pages) -> None:
    runs: list[Any] = [SimpleNamespace(took=took) for took in (0.1, 6.0, 8.0, None)]
    assert [height(run.took, runs) for run in runs] == [" t1", " t3", "", ""]
    assert height(0.1, runs[:1]) == ""


def test_pieces_of_one_kind_that_are_close_are_one_node() -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def piece(kind: Kind, minute: int) -> Piece:
        at = start + timedelta(minutes=minute)
        return Piece(kind, at, at + timedelta(seconds=1), minute)

    good: list[Kind] = ["succeeded"]
    kinds: list[Kind] = [*good * 5, "dead", *good * 2]
    near = [piece(kind, 5 * at) for at, kind in enumerate(kinds)]
    lane = Lane("a", "a", "UTC", (*near, piece("succeeded", 120)), None)
    drawn = stretches(lane, start, start + timedelta(hours=24))
    assert [(each.tone, each.number) for each in drawn] == [
        ("good", 5), ("bad", 1), ("good", 2), ("good", 1),
    ]  # fmt: skip
    assert drawn[0].title("UTC", start) == "5 succeeded, today 00:00 to today 00:20"
    assert drawn[3].title("UTC", start) == "succeeded, today 02:00"
    assert drawn[0].shape.startswith("M0 2h3v16h-3zM3.5 2h3v16h-3zM6.9 2")
    assert drawn[0].shape.count("M") == 5


def test_where_lanes_are_cut_it_says_how_many_of_how_many(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agenda, "LANES", 1)
    for name in ("first", "second"):
        pages.define(name, next_run_at=datetime.now(timezone.utc) + timedelta(hours=1))
    pages.shows("tonight", "Only those that run next are shown: 1 of 2 definitions.")


def test_moment_is_inside_its_lane() -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    end = start + timedelta(hours=24)
    hours = [across(start + timedelta(hours=each), start, end) for each in (-1, 0, 6, 24, 30)]
    assert hours == [0, 0, ACROSS / 4, ACROSS, ACROSS]
