"""What ran and what will run, by definition."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest
from flask import Flask

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.agenda import (
    RUNS_SHOWN,
    Agenda,
    ClockChange,
    Lane,
    Span,
    clock_changes,
    next_runs,
    read_agenda,
    span_of,
)
from flask_cronjobs.jobs.reader import Count
from flask_cronjobs.jobs.state import State
from tests.rows import Rows, ago, now


def until(**parts: float) -> Span:
    """Twelve hours back, and *parts* of a `timedelta` ahead."""
    return Span(ago(hours=12), now() + timedelta(**parts), "UTC")


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
    assert ([lane.name for lane in agenda.lanes], agenda.number) == (["report"], Count(1))
    assert [piece.kind for piece in lane.pieces[:4]] == [
        "missed",
        "succeeded",
        "succeeded",
        "running",
    ]
    assert lane.pieces[3].run_id == running
    assert lane.pieces[3].end == agenda.now
    assert lane.expected == pytest.approx(20)
    coming = lane.of("planned")
    assert len(coming) == 12
    assert coming[0].start > agenda.now
    assert coming[0].end - coming[0].start == timedelta(seconds=20)


def test_many_slots_are_a_band_and_many_runs_are_capped(state: State, rows: Rows) -> None:
    id_ = rows.definition("each", schedule="* * * * *")
    for number in range(RUNS_SHOWN):
        rows.run("succeeded", 60 * number, definition_id=id_)
    rows.definition("broken", schedule="x", timezone="Nowhere/Here")
    agenda = read_agenda(state, until(hours=2))
    lane = lane_of(agenda, "each")
    (band,) = lane.of("planned", "band")
    assert (band.kind, band.number) == ("band", 120)
    (older,) = lane.of("older")
    assert older.start == agenda.start < older.end <= lane.of("succeeded")[0].end
    yesterday = Span(ago(hours=20), ago(hours=10), "UTC")
    assert lane_of(read_agenda(state, yesterday), "each").pieces == ()
    assert lane_of(agenda, "broken").pieces == ()


def test_definitions_that_begin_at_once_are_more_than_the_workers(state: State, rows: Rows) -> None:
    for name in ("b", "a"):
        rows.definition(name, schedule="30 * * * *")
    rows.definition("alone", schedule="31 * * * *")
    collisions = read_agenda(state, until(minutes=59)).collisions
    assert [each.names for each in collisions] in ([], [("a", "b")])
    (each,) = read_agenda(state).collisions
    assert (each.names, each.number) == (("a", "b"), 12)
    assert each.last - each.at == timedelta(hours=11)


@pytest.mark.parametrize(("minutes", "is_late"), [(9, False), (11, True)])
def test_a_lane_says_since_when_its_slot_is_due(
    app: Flask, jobs: CronJobs, state: State, rows: Rows, minutes: int, is_late: bool
) -> None:
    due = ago(minutes=minutes)
    rows.definition("a", schedule="30 * * * *", next_run_at=due)
    lane = lane_of(read_agenda(state), "a")
    assert lane.late == (due if is_late else None)
    printed = app.test_cli_runner().invoke(args=["jobs", "admin", "agenda"]).output
    assert ("a has been due since" in printed) == is_late


def test_delayed_runs_are_grouped_by_task(state: State, rows: Rows) -> None:
    for minutes in (5, 60):
        rows.run("queued", job_type="mail", run_at=ago(minutes=-minutes))
    rows.run("failed", job_type="sync", run_at=ago(minutes=-30), concurrency_key="k",
             concurrency_limit=1)  # fmt: skip
    rows.run("queued", job_type="sync", run_at=ago(minutes=-31), rate_key="r", rate_mark="waits")
    rows.run("queued", job_type="mail")
    rows.run("queued", job_type="mail", run_at=ago(hours=-13))
    agenda = read_agenda(state)
    mail, sync = agenda.delayed
    assert (mail.task, str(mail.count), sync.task, str(sync.count)) == ("mail", "2", "sync", "2")
    assert mail.last - mail.first > timedelta(minutes=50)
    assert agenda.number == Count(0)


def test_clock_change_is_found_to_the_minute() -> None:
    def changes(start: datetime, *zones: str) -> list[ClockChange]:
        return list(clock_changes(zones, start, start + timedelta(hours=24)))

    eve = datetime(2026, 10, 24, 18, 7, 30, tzinfo=timezone.utc)
    at = datetime(2026, 10, 25, 1, tzinfo=timezone.utc)
    assert changes(eve, "Europe/Berlin", "UTC") == [ClockChange(at, "Europe/Berlin", -3600)]
    assert changes(eve, "UTC", "Nowhere/Here") == changes(eve + timedelta(days=7), "Europe/Berlin")
    (change,) = changes(eve, "Europe/Berlin")
    assert str(change) == "On Sun 25 Oct the clocks in Europe/Berlin go back, from 03:00 to 02:00"
    howe = datetime(2026, 4, 4, 12, tzinfo=timezone.utc)
    (half,) = changes(howe, "Australia/Lord_Howe")
    (lost,) = changes(howe - timedelta(days=7), "Europe/Berlin")
    assert str(lost) == (
        "On Sun 29 Mar the clocks in Europe/Berlin go forward, from 02:00 to 03:00"
    )
    assert (half.at.hour, half.seconds) == (15, -1800)


NOON = datetime(2026, 10, 24, 10, tzinfo=timezone.utc)  # In Berlin; its clocks go back at night.


@pytest.mark.parametrize(
    ("now", "start", "end", "from_hour", "until_hour"),
    [
        (NOON, None, None, -12, 12),
        (NOON, "22:00", "08:00", 10, 21),
        (NOON + timedelta(hours=16), "22:00", "08:00", -6, 5),
        (NOON, "9:30", None, -2.5, 12),
        (NOON, None, "12:00", -12, 25),
        (NOON, "1h", "24h", -1, 24),
        (NOON, "90d", "90d", -168, 168),
        (NOON, "2026-10-24T08:00", "2026-10-24T18:00Z", -4, 8),
        (NOON, "2026-10-25", "2026-10-26T00:00+01:00", 12, 37),
        (NOON, "1999-01-01T00:00Z", "2999-12-31T00:00", -168, 168),
    ],
)
def test_span_is_read_in_the_zone(
    now: datetime, start: str | None, end: str | None, from_hour: float, until_hour: float
) -> None:
    span = span_of(now, "Europe/Berlin", start, end)
    assert span.start - now == timedelta(hours=from_hour)
    assert span.end - now == timedelta(hours=until_hour)


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (None, "25:00", "'25:00' is not a time. Write 08:00, 24h or 2026-11-20T06:00."),
        ("tomorrow", None, "'tomorrow' is not a time"),
        ("0001-01-01T00:00+23:00", None, "is not a time"),
        ("2026-10-25T00:00", "2026-10-24T00:00", "is not before 2026-10-24T00:00."),
        (None, "2020-01-01T00:00Z", "Twelve hours ago is not before 2020"),
    ],
)
def test_wrong_span_is_refused_with_what_to_write(
    start: str | None, end: str | None, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        span_of(NOON, "Europe/Berlin", start, end)


def test_next_runs_are_those_of_all_definitions_soonest_first(state: State, rows: Rows) -> None:
    minute = now().replace(second=0, microsecond=0)
    rows.definition("late", schedule="0 0 1 1 *", next_run_at=ago(minutes=3))
    for name, step in (("each", "*"), ("broken", "x"), ("yearly", "59 23 31 12")):
        schedule = f"{step} * * * *" if step != "59 23 31 12" else f"{step} *"
        rows.definition(name, schedule=schedule, next_run_at=minute + timedelta(minutes=1))
    rows.definition("paused", paused_at=ago())
    found = next_runs(state, 6)
    assert [each.definition for each in found] == ["late", *["each"] * 5]
    assert [each.at - found[1].at for each in found[2:4]] == [
        timedelta(minutes=1),
        timedelta(minutes=2),
    ]
    assert {each.definition for each in next_runs(state, 1_000)} == {"late", "each"}
