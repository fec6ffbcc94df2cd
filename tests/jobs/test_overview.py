"""Every read for people: bounded, of one moment, and without a write."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, event

from flask_cronjobs import CronJobs, DatabaseTrouble, TablesMissing
from flask_cronjobs.config import Settings
from flask_cronjobs.jobs.definitions.views import definitions_by_name, next_slots
from flask_cronjobs.jobs.effects import list_effects
from flask_cronjobs.jobs.health import read_verdict, read_verdict_and_figures
from flask_cronjobs.jobs.humanize import ago as ago_words
from flask_cronjobs.jobs.humanize import duration, late, parse_age, plural, print_age
from flask_cronjobs.jobs.overview import dead_groups, list_orphans, read_overview
from flask_cronjobs.jobs.reader import Count, reading
from flask_cronjobs.jobs.runs.detail import find_run
from flask_cronjobs.jobs.runs.filters import RunFilter
from flask_cronjobs.jobs.runs.list import list_runs, matching_ids
from flask_cronjobs.jobs.state import State, state_of
from flask_cronjobs.jobs.ticks import read_activity
from flask_cronjobs.text import redacted
from tests.rows import Rows, ago


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_: Any, __: Any, sql: str, *___: Any) -> None:
        sent.append(sql)

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


# The verdict


@pytest.mark.parametrize(
    ("age", "word", "said"),
    [
        (None, "never", "No tick has run yet"),
        (12, "ok", "from web-1"),
        (170, "ok", "from web-1"),
        (200, "late", "ticks have stopped"),
    ],
)
def test_verdict_goes_by_the_age_of_the_last_tick(
    state: State, rows: Rows, age: float | None, word: str, said: str
) -> None:
    if age is not None:
        rows.tick(age=age)
    verdict = read_verdict(state)
    assert (verdict.word, verdict.ok) == (word, word == "ok")
    assert verdict.age == (None if age is None else pytest.approx(age, abs=5))
    assert (verdict.last_tick_at is None, verdict.host) == (age is None, age and "web-1")
    assert said in verdict.sentence


def test_verdict_goes_by_the_tick_seen_last_not_begun_last(state: State, rows: Rows) -> None:
    rows.tick(age=1, started_at=ago(600), host="resident")
    rows.tick(age=250, host="other")
    assert read_verdict(state).host == "resident"


def test_verdict_is_overdue_when_work_waits_though_ticks_come(state: State, rows: Rows) -> None:
    rows.tick()
    rows.run(age=590)
    key: dict[str, Any] = {"concurrency_key": "user:1", "concurrency_limit": 1}
    rows.run("running", **key, concurrency_share=1)
    rows.run(age=3600, **key)
    assert read_verdict(state).ok, "it waits behind a full concurrency key"
    rows.run(age=660, concurrency_key="user:2", concurrency_limit=1)
    verdict = read_verdict(state)
    assert verdict.word == "overdue"
    assert verdict.oldest == pytest.approx(660, abs=5)


# The figures


def test_figures_count_what_waits_runs_and_died(state: State, rows: Rows) -> None:
    for _ in range(2):
        rows.run(age=3600)
    rows.run(age=5)
    rows.run(age=-3600)
    rows.run("failed", age=3600)
    rows.run("running")
    rows.run("running", locked_until=ago(5))
    rows.run("dead", age=3600)
    rows.run("dead", age=2 * 86400)
    _, figures = read_verdict_and_figures(state)
    assert figures.overdue == Count(3)
    assert figures.oldest == pytest.approx(3600, abs=5)
    assert figures.running == Count(2)
    assert figures.stale == Count(1)
    assert figures.dead == Count(1)


def test_counts_stop_at_the_cap(state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_cronjobs.jobs.reader.CAP", 2)
    for _ in range(4):
        rows.run("dead")
    _, figures = read_verdict_and_figures(state)
    assert figures.dead == Count(2, capped=True)
    assert str(Count(1000, capped=True)) == "1,000+"
    assert (figures.oldest, bool(figures.overdue), str(figures.overdue)) == (None, False, "0")


# Definitions


def test_definitions_show_outcomes_oldest_first_and_the_next_slots(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="report")(lambda: None)
    made = rows.definition("report", schedule="0 7 * * *", timezone="Europe/Berlin")
    for day in range(12):
        status = "dead" if day == 11 else "succeeded"
        rows.run(status, age=86400.0 * (12 - day), definition_id=made, job_type="report")
    (view,) = definitions_by_name(state).rows
    assert [cell.status for cell in view.cells] == ["succeeded"] * 9 + ["dead"]
    assert view.last_seconds == pytest.approx(2, abs=0.1)
    assert [slot.hour for slot in view.next_slots] == [7, 7, 7]
    assert str(view.next_slots[0].tzinfo) == "Europe/Berlin"
    assert (view.broken, view.orphaned) == (None, False)


def test_each_definition_has_its_own_outcomes(state: State, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="known", schedule="@daily")(lambda: None)
    known = rows.definition("known")
    run = rows.run("succeeded", definition_id=known)
    other = rows.run("skipped", definition_id=rows.definition("gone"))
    rows.definition("bad cron", schedule="61 * * * *")
    rows.definition("bad zone", timezone="Mars/Olympus")
    rows.definition("paused", paused_at=ago(5))
    views = {view.name: view for view in definitions_by_name(state).rows}
    assert [cell.id for cell in views["known"].cells] == [run]
    assert [cell.id for cell in views["gone"].cells] == [other]
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
    views = definitions_by_name(state).rows
    assert [view.name for view in views if view.elsewhere] == ["theirs"]


def test_next_slots_are_found_anew_once_the_first_has_come() -> None:
    moment = datetime(2026, 1, 1, 12, 2, tzinfo=timezone.utc)
    first = next_slots("*/5 * * * *", "UTC", moment)
    assert [slot.minute for slot in first] == [5, 10, 15]
    assert next_slots("*/5 * * * *", "UTC", first[0] - timedelta(seconds=1)) == first
    assert next_slots("*/5 * * * *", "UTC", first[0])[0] == first[1]
    earlier = next_slots("*/5 * * * *", "UTC", moment - timedelta(minutes=5))
    assert earlier[0].minute == 0


def test_definitions_come_page_by_page(state: State, rows: Rows) -> None:
    for name in "abcde":
        rows.definition(name)
    first = definitions_by_name(state, limit=2)
    second = definitions_by_name(state, after=first.next, limit=2)
    third = definitions_by_name(state, after=second.next, limit=2)
    names = [view.name for page in (first, second, third) for view in page.rows]
    assert names == list("abcde")
    assert third.next is None


# Groups, orphans, activity, effects, ticks


def test_dead_runs_are_grouped_by_task_and_error(state: State, rows: Rows) -> None:
    rows.run("dead", age=50, error_type="ValueError")
    message = "no domain\n\n[SQL: SELECT 1]"
    newest = rows.run("dead", age=5, error_type="ValueError", last_error=message)
    rows.run("dead", age=20, error_type="OSError")
    rows.run("dead", age=90, error_type=None)
    first, second, third = dead_groups(state)
    assert (first.error_type, first.count, first.sample_id) == ("ValueError", Count(2), newest)
    assert first.message == "no domain"
    assert (second.error_type, second.message) == ("OSError", None)
    assert third.error_type is None


def test_orphans_are_waiting_runs_of_unknown_tasks(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    rows.run()
    rows.run(job_type="gone")
    rows.run("failed", job_type="gone", age=100)
    rows.run(job_type="gone", concurrency_key="k", concurrency_limit=1)
    rows.run("succeeded", job_type="gone")
    (orphan,) = list_orphans(state)
    assert (orphan.task, orphan.count) == ("gone", Count(3))


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
    assert read_verdict_and_figures(state)[1].doubts == Count(4)
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


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (RunFilter(status="queued"), {"queued", "keyed", "overdue"}),
        (RunFilter(status="failed"), {"failed"}),
        (RunFilter(status="running"), {"running", "stale"}),
        (RunFilter(status="succeeded"), {"succeeded"}),
        (RunFilter(status="dead"), {"dead", "bare"}),
        (RunFilter(status="cancelled"), {"cancelled"}),
        (RunFilter(status="skipped"), {"skipped"}),
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
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, RunFilter) else "",
)
def test_a_filter_finds_its_runs(
    state: State, several: dict[str, int], which: RunFilter, expected: set[str]
) -> None:
    names = {run_id: name for name, run_id in several.items()}
    page = list_runs(state, which)
    assert {names[row.id] for row in page.rows} == expected
    assert [row.id for row in page.rows] == sorted((row.id for row in page.rows), reverse=True)
    assert {names[run_id] for run_id in matching_ids(state, which)} == expected


def test_a_row_names_its_definition_and_cuts_its_error(state: State, rows: Rows) -> None:
    made = rows.definition("report", timezone="Asia/Tokyo")
    rows.run("dead", definition_id=made, last_error="x" * 400 + "\nsecond line")
    (row,) = list_runs(state, RunFilter(definition="report")).rows
    assert (row.definition, row.timezone) == ("report", "Asia/Tokyo")
    assert row.last_error == "x" * 300


def test_a_limit_is_held_within_bounds(state: State, rows: Rows) -> None:
    rows.run()
    rows.run()
    assert len(list_runs(state, limit=-5).rows) == 1
    assert len(list_runs(state, limit=10**9).rows) == 2


# One run


def test_a_run_is_shown_with_its_attempts_and_redacted(state: State, rows: Rows) -> None:
    run_id = rows.run(
        "succeeded",
        attempts=3,
        payload={"user": 1, "api_token": "abc", "nested": [{"Password": "x"}]},
        result={"secret": 1, "sent": 2},
    )
    rows.failure(run_id, 1)
    rows.failure(run_id, 2, error_type="OSError")
    view = find_run(state, run_id)
    assert view is not None
    assert view.payload == {"user": 1, "api_token": "***", "nested": [{"Password": "***"}]}
    assert view.result == {"secret": "***", "sent": 2}
    assert [(a.number, a.outcome) for a in view.attempts] == [
        (3, "succeeded"),
        (2, "failed"),
        (1, "failed"),
    ]
    assert view.attempts[0].seconds == pytest.approx(2, abs=0.1)
    assert view.attempts[1].error_type == "OSError"
    assert view.attempts[2].stack == "Traceback: boom"


def test_an_attempt_without_a_failure_is_shown_while_it_runs(state: State, rows: Rows) -> None:
    dead = rows.run("dead")
    rows.failure(dead, 1)

    def attempts(run_id: int) -> list[tuple[object, ...]]:
        view = find_run(state, run_id)
        assert view is not None
        return [(each.number, each.outcome, each.worker, each.seconds) for each in view.attempts]

    assert attempts(rows.run("running")) == [(1, "running", "web-1:7", None)]
    assert attempts(rows.run()) == []
    assert [each[:2] for each in attempts(dead)] == [(1, "failed")]
    assert find_run(state, 4711) is None


# How it reads


def test_the_overview_sends_few_statements_over_one_connection_and_writes_nothing(
    state: State, rows: Rows
) -> None:
    rows.tick()
    for number in range(3):
        rows.run("succeeded", definition_id=rows.definition(f"d{number}"))
    taken: list[object] = []
    event.listen(state.engine.pool, "checkout", lambda *args: taken.append(args))
    with statements(state.engine) as sent:
        overview = read_overview(state)
    assert len(overview.definitions.rows) == 3
    assert len(sent) <= 17
    assert len(taken) == 1
    assert all(sql.lstrip().startswith(("SELECT", "WITH")) for sql in sent)


def test_reports_that_share_a_reader_are_of_one_moment(state: State) -> None:
    with reading(state) as reader:
        assert read_verdict(reader).now == list_runs(reader).now


def test_missing_tables_are_named_as_such(app: Flask, db: SQLAlchemy) -> None:
    CronJobs(app)
    with pytest.raises(TablesMissing, match="flask jobs admin init"):
        read_overview(state_of(app))


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


# Words and redaction


def test_redaction_stops_at_a_depth_instead_of_the_stack() -> None:
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    shown = redacted(deep, ())
    assert "bottom" not in str(shown)
    assert "…" in str(shown)


PLAIN = {"name": "ada", "value": "x", "key": 1, "monkey": [None, True, 2.5], "": ""}


@pytest.mark.parametrize(
    ("payload", "names", "shown"),
    [
        ({"token": "abc", "ok": [1, None]}, ("token",), {"token": "***", "ok": [1, None]}),
        *(
            ({"xApiKey": 1, "b": 2}, (name,), {"xApiKey": "***", "b": 2})
            for name in ("Api-Key", "api_key", "API KEY")
        ),
        ({"dsn": "postgresql://ada:s3cret@db/a"}, (), {"dsn": "postgresql://***@db/a"}),
        ({"json": '{"password": "s3cret"}'}, (), {"json": '{"password": ***'}),
        (PLAIN, Settings().redact, PLAIN),
    ],
)
def test_redaction(payload: Any, names: tuple[str, ...], shown: Any) -> None:
    before = copy.deepcopy(payload)
    assert redacted(payload, names) == shown
    assert payload == before


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "user_password", "passwd", "pwd", "passphrase", "apiKey", "api-key",
     "X-Api-Key", "api key", "private_key", "privateKey", "AWS_ACCESS_KEY_ID", "credentials",
     "Set-Cookie", "session_id", "jwt", "client_secret", "refreshToken", "Authorization"],
)  # fmt: skip
def test_by_default_no_name_of_a_secret_shows_its_value(name: str) -> None:
    names = Settings().redact
    assert redacted({name: "s3cret"}, names) == {name: "***"}
    assert redacted({name: {"a": ["s3cret"]}}, names) == {name: "***"}
    for label in ("name", "Key"):
        pair: Any = {label: name, "value": "s3cret", "a": 1}
        assert redacted([pair], names) == [{label: name, "value": "***", "a": 1}]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.04, "40 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.7, "1 h"),
        (3600, "1 h"),
        (7380, "2 h 3 min"),
        (86399, "1 d"),
        (187200, "2 d 4 h"),
        (-90, "1 min 30 s"),
        (400 * 86400, "400 d"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        ("0s", 0, "0s"),
        ("90", 90, "90s"),
        ("90s", 90, "90s"),
        ("120s", 120, "2m"),
        ("2MIN", 120, "2m"),
        ("1.5 h", 5400, "90m"),
        ("24h", 86400, "1d"),
        ("12d", 12 * 86400, "12d"),
        ("1036801s", 1036801, "1036801s"),
        ("2w", 14 * 86400, "14d"),
        ("0.25s", 0.25, "0.25s"),
        ("0.333333d", 28799.9712, "28799.9712s"),
        ("123456789.123456s", 123456789.123456, "123456789.123456s"),
        ("999999999w", 3660 * 86400, "3660d"),
    ],
)
def test_a_printed_age_is_read_back_as_the_same(text: str, seconds: float, printed: str) -> None:
    assert parse_age(text, unit="s") == seconds
    assert print_age(seconds) == printed
    assert parse_age(printed) == seconds


@pytest.mark.parametrize("text", ["", "90", "h", "2y", "-2h", "1e3s", "٢h", "1.s"])
def test_what_is_no_age_is_not_read(text: str) -> None:
    assert parse_age(text) is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (ago_words(190), "3 min ago"),
        (ago_words(12), "12 s ago"),
        (ago_words(-180), "in 3 min"),
        (ago_words(0.2), "just now"),
        (late(190), "3 min late"),
        (late(-60), "in 1 min"),
        (late(0), "due now"),
        (plural(1, "run"), "1 run"),
        (plural(1200, "run"), "1,200 runs"),
    ],
)
def test_distances_are_for_people(words: str, text: str) -> None:
    assert words == text
