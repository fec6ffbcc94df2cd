"""What ran and what will run, by definition."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from flask_cronjobs.jobs.agenda import (
    RUNS_SHOWN,
    Agenda,
    ClockChange,
    Lane,
    find_clock_changes,
    read_agenda,
)
from flask_cronjobs.jobs.state import State
from tests.rows import Rows, ago, now


def lane_of(agenda: Agenda, name: str) -> Lane:
    (found,) = (lane for lane in agenda.lanes if lane.name == name)
    return found


def test_lane_has_what_ran_what_was_missed_and_what_is_to_come(state: State, rows: Rows) -> None:
    id_ = rows.definition("report", schedule="0 * * * *")
    for age, took in ((3600, 10), (7200, 30), (100_000, 20)):
        ended = ago(age)
        rows.run("succeeded", definition_id=id_, scheduled_for=ended, finished_at=ended,
                 started_at=ended - timedelta(seconds=took))  # fmt: skip
    rows.run("skipped", 10_000, definition_id=id_, error_type="Missed")
    rows.run("skipped", 11_000, definition_id=id_, error_type="Overlap")
    running = rows.run("running", 60, definition_id=id_)
    rows.definition("paused", paused_at=ago())

    agenda = read_agenda(state)
    lane = lane_of(agenda, "report")
    assert [lane.name for lane in agenda.lanes] == ["report"]
    assert [piece.kind for piece in lane.pieces[:4]] == [
        "missed",
        "succeeded",
        "succeeded",
        "running",
    ]
    assert lane.pieces[3].run_id == running
    assert lane.pieces[3].end == agenda.now
    assert lane.expected == pytest.approx(20)
    assert not lane.capped
    coming = lane.of("planned")
    assert len(coming) == 12
    assert coming[0].start > agenda.now
    assert coming[0].end - coming[0].start == timedelta(seconds=20)


def test_many_slots_are_a_band_and_many_runs_are_capped(state: State, rows: Rows) -> None:
    id_ = rows.definition("each", schedule="* * * * *")
    for number in range(RUNS_SHOWN):
        rows.run("succeeded", 60 * number, definition_id=id_)
    rows.definition("broken", schedule="x", timezone="Nowhere/Here")
    agenda = read_agenda(state, now() + timedelta(hours=2))
    lane = lane_of(agenda, "each")
    (band,) = lane.of("planned", "band")
    assert (band.kind, band.number) == ("band", 120)
    assert lane.capped
    assert lane_of(agenda, "broken").pieces == ()


def test_definitions_that_begin_at_once_are_more_than_the_workers(state: State, rows: Rows) -> None:
    for name in ("b", "a"):
        rows.definition(name, schedule="30 * * * *")
    rows.definition("alone", schedule="31 * * * *")
    collisions = read_agenda(state, now() + timedelta(minutes=59)).collisions
    assert [each.names for each in collisions] in ([], [("a", "b")])
    assert {each.names for each in read_agenda(state).collisions} == {("a", "b")}


def test_delayed_runs_are_grouped_by_task(state: State, rows: Rows) -> None:
    for minutes in (5, 60):
        rows.run("queued", job_type="mail", run_at=ago(minutes=-minutes))
    rows.run("failed", job_type="sync", run_at=ago(minutes=-30), concurrency_key="k",
             concurrency_limit=1)  # fmt: skip
    rows.run("queued", job_type="mail")
    rows.run("queued", job_type="mail", run_at=ago(hours=-13))
    mail, sync = read_agenda(state).delayed
    assert (mail.task, str(mail.count), sync.task, str(sync.count)) == ("mail", "2", "sync", "1")
    assert mail.last - mail.first > timedelta(minutes=50)


def test_clock_change_is_found_to_the_minute() -> None:
    def changes(zone: str, start: datetime) -> list[ClockChange]:
        lane = Lane("a", "a", zone, (), None, False)
        return list(find_clock_changes([lane, lane], start, start + timedelta(hours=24)))

    eve = datetime(2026, 10, 24, 18, 7, 30, tzinfo=timezone.utc)
    at = datetime(2026, 10, 25, 1, tzinfo=timezone.utc)
    assert changes("Europe/Berlin", eve) == [ClockChange(at, "Europe/Berlin", -3600)]
    assert changes("UTC", eve) == changes("Europe/Berlin", eve + timedelta(days=7)) == []
