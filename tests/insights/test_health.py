"""Schedules without ticks, failing ticks and missed slots: all of them are reported."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, DatabaseTrouble
from flask_cronjobs.core import tick as tick_module
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.health_checks import Finding
from flask_cronjobs.insights.tick_views import list_gaps
from flask_cronjobs.models import JobDefinition, JobTick
from tests.rows import Rows, ago

HOUR = 3600.0


def findings(state: State) -> dict[str, Finding]:
    return {finding.id: finding for finding in examine(state)}


def word(app: Flask) -> str:
    return read_verdict(state_of(app)).word


@pytest.fixture
def admin(app: Flask, jobs: CronJobs) -> Callable[..., Result]:
    def admin(*args: str) -> Result:
        return app.test_cli_runner().invoke(args=["jobs", "admin", *args])

    return admin


# The verdict


@pytest.mark.parametrize(
    ("age", "word", "message"),
    [
        (None, "never", "No tick has run yet"),
        (12, "ok", "from web-1"),
        (170, "ok", "from web-1"),
        (200, "late", "ticks have stopped"),
    ],
)
def test_verdict_goes_by_the_age_of_the_last_tick(
    state: State, rows: Rows, age: float | None, word: str, message: str
) -> None:
    if age is not None:
        rows.tick(age=age)
    verdict = read_verdict(state)
    assert (verdict.word, verdict.ok) == (word, word == "ok")
    assert (verdict.headline == "All is well") == verdict.ok
    assert verdict.age == (None if age is None else pytest.approx(age, abs=5))
    assert (verdict.last_tick_at is None, verdict.host) == (age is None, age and "web-1")
    assert message in verdict.sentence


def test_verdict_goes_by_the_tick_seen_last_not_begun_last(state: State, rows: Rows) -> None:
    rows.tick(age=1, started_at=ago(600), host="resident")
    rows.tick(age=250, host="other")
    assert read_verdict(state).host == "resident"


def test_verdict_is_overdue_when_work_waits_though_ticks_come(state: State, rows: Rows) -> None:
    rows.tick()
    rows.run(age=590)
    assert read_verdict(state).ok
    rows.run(age=660)
    verdict = read_verdict(state)
    assert verdict.word == "overdue"
    (finding,) = verdict.findings
    assert finding.since is not None
    assert (verdict.now - finding.since).total_seconds() == pytest.approx(660, abs=5)


def test_findings_say_how_many(state: State, rows: Rows) -> None:
    rows.tick()
    for status in ("queued", "queued", "failed"):
        rows.run(status, age=3600)
    rows.run(age=5)
    rows.run(age=-3600)
    rows.run("running")
    rows.run("running", locked_until=ago(5))
    for age in (3600, 2 * 86400):
        rows.run("dead", age=age)
    rows.run(
        "skipped",
        age=3600,
        error_type="Missed",
        result={"skipped": 4, "from": ago(7200).isoformat()},
    )
    numbers = {row.id: row.number for row in read_verdict(state).findings}
    assert numbers == {"overdue": 3, "dead": 1, "stale-runs": 1, "missed-slots": 4}


class TestScheduleWithoutTick:
    @pytest.mark.parametrize("column", ["paused_at", "next_run_at"])
    def test_paused_or_just_due_is_well(self, state: State, rows: Rows, column: str) -> None:
        rows.tick(age=5)
        rows.definition("mails", **{"next_run_at": ago(HOUR), column: ago(60)})
        assert read_verdict(state).ok

    def test_declared_schedule_that_no_tick_ever_recorded_is_an_error_in_a_process_that_waited(
        self, app: Flask, jobs: CronJobs, state: State, rows: Rows
    ) -> None:
        jobs.task(name="mails", schedule="@daily")(lambda: None)
        rows.tick(age=5)
        assert word(app) == "ok", "it may have been deployed just now"
        app.extensions["cronjobs"] = replace(state, started=time.monotonic() - HOUR)
        verdict = read_verdict(state_of(app))
        assert (verdict.word, "'mails'" in verdict.sentence) == ("overdue", True)
        rows.definition("mails")
        assert word(app) == "ok"

    def test_declared_schedule_whose_name_the_database_has_taken_is_an_error(
        self, app: Flask, jobs: CronJobs, state: State, rows: Rows
    ) -> None:
        jobs.task(name="mails", schedule="@daily")(lambda: None)
        rows.tick(age=5)
        rows.definition("mails", origin="database")
        app.extensions["cronjobs"] = replace(state, started=time.monotonic() - HOUR)
        (finding,) = read_verdict(state_of(app)).findings
        assert finding.id == "late-definition"
        assert "If add_definition has made another one of that name, rename" in finding.todo


@pytest.mark.pages
def test_run_of_a_lost_worker_is_not_said_to_run(
    app: Flask, state: State, rows: Rows, admin: Callable[..., Result]
) -> None:
    run = rows.run("running", age=HOUR, locked_until=ago(HOUR / 2))
    page = app.test_client().get(f"/jobs/runs/{run}").text
    assert "Run 1, worker lost" in page
    assert "was lost in attempt 1 of 10: the lease ended 30" in page.replace("\xa0", " ")
    assert "It is running" not in page
    assert "worker lost" in app.test_client().get("/jobs/runs").text
    assert "worker lost" in admin("list").output
    assert "running, but its worker was lost" in admin("show", str(run)).output


class TestTicksThatFail:
    def test_ticks_that_cannot_record_slots_count_as_no_ticks(
        self,
        app: Flask,
        context: None,
        jobs: CronJobs,
        db: SQLAlchemy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        jobs.tick()
        assert word(app) == "ok"
        db.session.execute(
            update(JobTick).values(started_at=ago(HOUR), seen_at=ago(HOUR), finished_at=ago(HOUR))
        )
        db.session.commit()

        def fail(*args: object) -> None:
            raise DatabaseTrouble("read-only")

        monkeypatch.setattr(tick_module, "enqueue_slots", fail)
        with pytest.raises(DatabaseTrouble):
            jobs.tick()
        verdict = read_verdict(state_of(app))
        assert verdict.word == "late"
        assert "ticks start, but fail" in verdict.sentence
        finding = findings(state_of(app))["ticks"]
        assert (finding.level, "by hand" in finding.todo) == ("error", True)

    def test_first_ticks_that_fail_are_distinguished_from_no_ticks(
        self, state: State, rows: Rows
    ) -> None:
        rows.tick(age=1, started_at=ago(1), seen_at=ago(1), finished_at=None)
        verdict = read_verdict(state)
        assert verdict.word == "never"
        assert verdict.sentence == "Ticks start, but none has done its work yet"

    def test_tick_that_is_at_work_for_long_is_well(self, state: State, rows: Rows) -> None:
        rows.tick(started_at=ago(HOUR), seen_at=ago(20), finished_at=None)
        assert read_verdict(state).ok


class TestMissed:
    def test_missed_slots_make_the_verdict_amber_with_count_and_span(
        self,
        app: Flask,
        context: None,
        jobs: CronJobs,
        db: SQLAlchemy,
        admin: Callable[..., Result],
    ) -> None:
        jobs.task(name="hourly", schedule="0 * * * *")(lambda: None)
        jobs.tick()
        row = db.session.scalars(select(JobDefinition)).one()
        first = ago(26 * HOUR).replace(minute=0, second=0, microsecond=0)
        row.next_run_at, row.considered_until = first, first - timedelta(minutes=1)
        db.session.execute(update(JobTick).values(started_at=ago(27 * HOUR)))
        db.session.commit()
        jobs.tick()
        verdict = read_verdict(state_of(app))
        assert (verdict.ok, verdict.tone) == (True, "warn")
        (missed,) = verdict.findings
        assert (missed.number in (26, 27), missed.since) == (True, first)
        message = f"slots of hourly were missed, from {first:%Y-%m-%d %H:%M} UTC to"
        assert message in missed.what
        assert admin().output.startswith("WARN")
        assert message in admin().output
        assert findings(state_of(app))["missed-slots"].level == "warning"

    @pytest.mark.parametrize(
        ("kind", "result", "slots"),
        [
            *((kind, {"skipped": 3}, None) for kind in ("Paused", "Undeclared", "Overlap")),
            ("Missed", ["edited"], 1),
        ],
    )
    def test_only_missed_slots_count_and_a_result_that_was_edited_is_one(
        self, state: State, rows: Rows, kind: str, result: object, slots: int | None
    ) -> None:
        rows.run("skipped", error_type=kind, result=result)
        rows.tick()
        assert [row.number for row in read_verdict(state).findings] == ([slots] if slots else [])

    def test_gaps_of_ticks_are_listed_also_the_current_one(self, state: State, rows: Rows) -> None:
        for age in (600, 660, 720, 4400, 4460):
            rows.tick(age=age)
        rows.tick(age=300, started_at=ago(300), seen_at=ago(300), finished_at=None)
        current, past = list_gaps(state).rows
        assert current.end is None
        assert (ago() - current.start).total_seconds() == pytest.approx(600, abs=5)
        assert past.end is not None
        assert (past.end - past.start).total_seconds() == pytest.approx(3680, abs=5)
