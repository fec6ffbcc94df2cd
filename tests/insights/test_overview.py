"""Every read for people is bounded, of one moment, and without a write."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs, DatabaseTrouble
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.insights.effects import list_effects
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.health_checks import findings
from flask_cronjobs.insights.overview import dead_groups, read_overview
from flask_cronjobs.insights.reader import Count, reading
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import list_runs
from flask_cronjobs.insights.schedule_views import list_definitions, next_slots
from flask_cronjobs.insights.tick_views import read_activity
from tests.plans import sent_by
from tests.rows import Rows, ago, all_of, view_of

# Definitions


def test_each_definition_has_its_own_outcomes(state: State, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="known", schedule="@daily")(lambda: None)
    known = rows.definition("known")
    runs = [rows.run("succeeded", age=-n, definition_id=known) for n in range(12)]
    skipped = rows.run("skipped", definition_id=rows.definition("gone"))
    rows.definition("bad cron", schedule="61 * * * *")
    rows.definition("bad zone", timezone="Mars/Olympus")
    rows.definition("paused", paused_at=ago(5))
    views = {view.name: view for view in list_definitions(state).rows}
    assert [cell.id for cell in views["known"].cells] == runs[2:]
    assert views["known"].last_seconds == pytest.approx(2, abs=0.1)
    assert [cell.id for cell in views["gone"].cells] == [skipped]
    assert views["gone"].last_seconds is None
    assert {name for name, view in views.items() if view.broken} == {"bad cron", "bad zone"}
    assert {name for name, view in views.items() if view.next_slots} == {"known", "gone"}
    assert {name: len(view.next_slots) for name, view in views.items()}["known"] == 3
    assert views["paused"].paused_at is not None
    without = {name for name, view in views.items() if view.orphaned and view.undeclared}
    assert without == views.keys() - {"known"}


def test_definition_of_another_app_is_elsewhere_until_its_code_drops_it(
    state: State, rows: Rows
) -> None:
    rows.definition("theirs", origin="code", app="theirs")
    rows.definition("dropped", origin="code", app="theirs", undeclared_since=ago(5))
    rows.definition("unknown", origin="code")
    rows.definition("made", origin="database", app="theirs")
    views = list_definitions(state).rows
    assert [view.name for view in views if view.elsewhere] == ["theirs"]


def test_next_slots_are_found_anew_once_the_first_has_come() -> None:
    moment = datetime(2026, 1, 1, 12, 2, tzinfo=timezone.utc)
    first = next_slots("*/5 * * * *", "UTC", moment)
    assert [slot.minute for slot in first] == [5, 10, 15]
    assert next_slots("*/5 * * * *", "UTC", first[0] - timedelta(seconds=1)) == first
    assert next_slots("*/5 * * * *", "UTC", first[0])[0] == first[1]
    earlier = next_slots("*/5 * * * *", "UTC", moment - timedelta(minutes=5))
    assert earlier[0].minute == 0


# Groups, orphans, activity, effects, ticks


def test_dead_runs_are_in_groups_of_which_the_newest_comes_first(state: State, rows: Rows) -> None:
    failures = (50, "ValueError"), (90, None), (20, "OSError"), (5, "ValueError")
    ids = [rows.run("dead", age=age, error_type=error_type) for age, error_type in failures]
    (first, second, third), total = dead_groups(state)
    assert (total.value, first.count, first.sample_id) == (3, Count(2), ids[-1])
    types = [row.error_type for row in (first, second, third)]
    assert types == ["ValueError", "OSError", None]
    assert (first.newest - first.oldest).total_seconds() == pytest.approx(45, abs=1)


def test_group_of_dead_runs_says_for_whom_they_were(state: State, rows: Rows) -> None:
    for age, label in enumerate(("a", "b", "b", None, "c", "d")):
        rows.run("dead", age=age, label=label, error_type="ValueError", fingerprint="f1")
    rows.run("dead", age=9, label="e", error_type="ValueError", fingerprint="f2")
    rows.run("dead", age=10, error_type="ValueError")
    groups, _ = dead_groups(state)
    assert [group.labels for group in groups] == [("a", "b", "c", "d"), ("e",), ()]
    assert [group.fingerprint for group in groups] == ["f1", "f2", None]


def test_activity_has_24_hours_summed_from_ticks(state: State, rows: Rows) -> None:
    rows.tick(succeeded=3, failed=1)
    rows.tick(succeeded=4, dead=2)
    rows.tick(age=5 * 3600, succeeded=10, skipped=1, cancelled=1)
    rows.tick(age=30 * 3600, succeeded=100)
    buckets = read_activity(state)
    assert len(buckets) == 24
    assert sum(bucket.succeeded for bucket in buckets) == 17
    assert sum(bucket.ticks for bucket in buckets) == 3
    assert all(b.start - a.start == timedelta(hours=1) for a, b in pairwise(buckets))
    assert {bucket.start.minute for bucket in buckets} == {0}


def test_an_effect_is_in_doubt_once_its_owner_is_gone(state: State, rows: Rows) -> None:
    alive = rows.run("running", locked_by="web-1:7:alive")
    rows.effect("alive", run_id=alive, locked_by="web-1:7:alive")
    rows.effect("other claim", run_id=alive, locked_by="web-1:7:before")
    rows.effect("run ended", run_id=rows.run("dead"), locked_by="web-1:7:x")
    rows.effect("lease over", locked_by="me", locked_until=ago(5))
    rows.effect("lease holds", locked_by="me", locked_until=ago(-60))
    rows.effect("marked", state="in_doubt")
    rows.effect("done", state="done", done_at=ago(1))
    states = {effect.key: effect.state for effect in list_effects(state).rows}
    assert states == {
        "alive": "begun",
        "other claim": "in_doubt",
        "run ended": "in_doubt",
        "lease over": "in_doubt",
        "lease holds": "begun",
        "marked": "in_doubt",
        "done": "done",
    }
    numbers = {row.id: row.number for row in findings(state)}
    assert numbers["effects-in-doubt"] == 4
    assert "done" not in {effect.key for effect in list_effects(state, open_only=True).rows}


# Runs


@pytest.fixture
def several(rows: Rows) -> dict[str, int]:
    return {
        "queued": rows.run(),
        "keyed": rows.run(concurrency_key="k", concurrency_limit=1),
        "failed": rows.run("failed", age=-50, error_type="OSError", last_error="100% full"),
        "overdue": rows.run(age=3600, queue="mail"),
        "running": rows.run("running"),
        "stale": rows.run("running", locked_until=ago(5)),
        "succeeded": rows.run("succeeded", age=7200),
        "dead": rows.run("dead", age=60, error_type="ValueError", last_error="Boom\nat noon"),
        "bare": rows.run("dead", age=60, job_type="other"),
        "cancelled": rows.run("cancelled"),
        "skipped": rows.run("skipped"),
    }


#: Filters, and the runs of `several` that each finds.
FILTERS: list[tuple[RunFilter, set[str]]] = [
    (RunFilter(status="queued"), {"queued", "keyed", "overdue"}),
    (RunFilter(status="failed"), {"failed"}),
    (RunFilter(status="running"), {"running", "stale"}),
    (RunFilter(status="dead"), {"dead", "bare"}),
    (RunFilter(status="cancelled"), {"cancelled"}),
    (RunFilter(overdue=True), {"overdue"}),
    (RunFilter(overdue=True, queue="default"), set()),
    (RunFilter(stale=True), {"stale"}),
    (RunFilter(task="other"), {"bare"}),
    (RunFilter(queue="mail"), {"overdue"}),
    (RunFilter(error="BOOM"), {"dead"}),
    (RunFilter(error="valueerr"), {"dead"}),
    (RunFilter(error="%"), {"failed"}),
    (RunFilter(status="dead", error_type="ValueError"), {"dead"}),
    (RunFilter(status="dead", error_type=""), {"bare"}),
    (RunFilter(older_than=3000), {"overdue", "succeeded"}),
    (RunFilter(status="dead", newer_than=3000), {"dead", "bare"}),
    (RunFilter(newer_than=3000, older_than=30), {"dead", "bare"}),
    (RunFilter(task="nobody"), set()),
    (RunFilter(definition="nobody"), set()),
]


def test_a_filter_finds_its_runs(state: State, several: dict[str, int]) -> None:
    for filters, expected in FILTERS:
        newest = sorted((several[name] for name in expected), reverse=True)
        assert [row.id for row in list_runs(state, filters).rows] == newest, filters
        assert sorted(all_of(state, filters), reverse=True) == newest, filters


def test_a_limit_is_held_within_bounds(state: State, rows: Rows) -> None:
    rows.run()
    rows.run()
    assert len(list_runs(state, limit=-5).rows) == 1
    assert len(list_runs(state, limit=10**9).rows) == 2


# One run


def test_an_attempt_without_a_failure_is_shown_while_it_runs(state: State, rows: Rows) -> None:
    dead = rows.run("dead")
    rows.failure(dead, 1)

    def attempts(run_id: int) -> list[tuple[object, ...]]:
        past = view_of(state, run_id).attempts
        return [(row.number, row.outcome, row.worker, row.seconds) for row in past]

    assert attempts(rows.run("running")) == [(1, "running", "web-1:7", None)]
    assert attempts(rows.run()) == []
    assert [row[:2] for row in attempts(dead)] == [(1, "failed")]
    assert find_run(state, 4711) is None


# How the reads are done


def test_the_overview_sends_few_statements_over_one_connection_and_writes_nothing(
    state: State, rows: Rows
) -> None:
    rows.tick(age=7200)
    rows.tick(age=60, finished_at=None, seen_at=ago(61))
    for number in range(3):
        rows.run("succeeded", definition_id=rows.definition(f"d{number}"))
    rows.run("dead")
    rows.run(job_type="gone", age=3600)
    read_overview(state)  # A process reads some things only once.
    checkouts: list[object] = []
    event.listen(state.engine.pool, "checkout", lambda *args: checkouts.append(args))
    with sent_by(state.engine) as sent:
        overview = read_overview(state)
    assert len(overview.definitions.rows) == 3
    assert overview.verdict.headline.endswith("things need attention")
    assert len(sent.statements) <= 25
    assert len(checkouts) == 1
    assert all(sql.lstrip().startswith(("SELECT", "WITH")) for sql, _ in sent.statements)


def test_reports_that_share_a_reader_are_of_one_moment(state: State) -> None:
    with reading(state) as reader:
        assert read_verdict(reader).now == list_runs(reader).now


def test_a_shared_connection_is_read_unless_it_has_uncommitted_work(db: SQLAlchemy) -> None:
    app = Flask("memory")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db.init_app(app)
    jobs = CronJobs(app)
    task = jobs.task(name="task")(lambda: None)
    with app.app_context():
        db.create_all()
        assert read_verdict(state_of(app)).word == "never"
        run = task.enqueue()
        with pytest.raises(DatabaseTrouble, match=r"in memory.*uncommitted work there"):
            read_verdict(state_of(app))
        db.session.commit()
        assert find_run(state_of(app), run.id) is not None
    with app.app_context():
        db.engine.dispose()
