"""What the pages that read show, on both databases."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from jinja2 import StrictUndefined
from sqlalchemy import event, text

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobEffect, JobFailure

from .conftest import NOW, OWN


@pytest.fixture(autouse=True)
def strict(app: Flask) -> None:
    """Nothing that a template names may be missing."""
    app.jinja_env.undefined = StrictUndefined


def _title(page: str) -> str:
    found = re.search("<title>(.*?)</title>", page)
    assert found
    return found[1]


def test_the_verdict_is_first_in_title_and_icon(
    client: FlaskClient, ticked: Callable[..., None]
) -> None:
    page = client.get("/jobs/").text
    assert _title(page) == "No tick has run yet · Jobs"
    assert "icon-bad.svg" in page
    ticked(600)
    page = client.get("/jobs/").text
    assert _title(page) == "Ticks have stopped · Jobs"
    assert "icon-bad.svg" in page
    ticked(5)
    page = client.get("/jobs/").text
    assert _title(page) == "All is well · Jobs"
    assert "icon-good.svg" in page
    assert "from web-1" in page


def test_work_that_waits_too_long_is_said(
    client: FlaskClient, ticked: Callable[..., None], add: Callable[..., int]
) -> None:
    ticked()
    add("queued", run_at=NOW - timedelta(hours=1))
    page = client.get("/jobs/").text
    assert _title(page) == "Work is waiting too long · Jobs"
    assert 'href="/jobs/runs?overdue=1"' in page
    assert "remind" in client.get("/jobs/runs?overdue=1").text


def test_all_is_not_well_while_runs_die(
    client: FlaskClient, ticked: Callable[..., None], add: Callable[..., int]
) -> None:
    ticked()
    add("dead")
    page = client.get("/jobs/").text
    assert _title(page) == "Ticks are running, but 1 run ended dead in the last 24 h · Jobs"
    assert "icon-warn.svg" in page


def test_a_lost_worker_is_said(
    client: FlaskClient, ticked: Callable[..., None], add: Callable[..., int]
) -> None:
    ticked()
    add("running", locked_until=NOW - timedelta(minutes=5))
    page = client.get("/jobs/").text
    assert _title(page) == "Ticks are running, but a worker was lost · Jobs"
    assert "1 stale" in page
    assert "ran out" in client.get("/jobs/runs/1").text


def test_the_empty_page_teaches(client: FlaskClient, jobs: CronJobs) -> None:
    page = client.get("/jobs/").text
    assert "declares 1 schedule; the next tick records it" in page
    assert "schedule=" not in page
    jobs._registry.declarations.clear()
    page = client.get("/jobs/").text
    assert "Add <code>schedule=</code> to a task, and the next tick records it" in page
    assert "flask jobs tick" in page
    assert "Dead" not in page
    assert ".enqueue(" in client.get("/jobs/runs").text
    assert "flask jobs admin crontab" in client.get("/jobs/ticks").text
    assert "No effect is in doubt" in client.get("/jobs/effects").text
    assert "jobs.once(" in client.get("/jobs/effects?all=1").text


def test_a_definition_shows_its_schedule_outcomes_and_slots(
    client: FlaskClient, define: Callable[..., int], add: Callable[..., int]
) -> None:
    definition = define()
    for hours in (3, 2):
        slot = NOW - timedelta(hours=hours)
        add("succeeded", definition_id=definition, scheduled_for=slot)
    add("dead", definition_id=definition)
    page = client.get("/jobs/").text
    assert "<code>0 7 * * *</code> Europe/Berlin" in page
    cells, _, legend = page.partition("Legend")
    assert cells.count('class="cell succeeded"') == 2
    assert cells.count('class="cell dead"') == 1
    assert legend.count('class="cell ') == 2
    assert len(re.findall(r"<time [^>]*>[^<]*07:00</time>", page)) == 3
    assert page.partition('id="paused"')[0].count("Pause") == 1


def test_times_are_in_the_definitions_zone_with_utc_on_hover(
    client: FlaskClient, define: Callable[..., int]
) -> None:
    define(timezone="Asia/Tokyo")
    page = client.get("/jobs/").text
    found = re.search(r'<time datetime="([^"]*)T22:00:00\+00:00" title="\1 22:00:00 UTC">', page)
    assert found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"schedule": "61 * * * *"}, "61"),
        ({"timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"job_type": "gone"}, "declares no task gone"),
        ({"name": "old"}, "no longer declares it"),
        ({"paused_at": NOW - timedelta(hours=5)}, "paused</span>"),
        ({"next_run_at": None, "schedule": "0 0 29 2 *"}, "29 Feb"),
    ],
)
def test_what_is_wrong_with_a_definition_is_said_beside_it(
    client: FlaskClient, define: Callable[..., int], values: dict[str, Any], said: str
) -> None:
    define(**values)
    answer = client.get("/jobs/")
    assert answer.status_code == 200
    assert said in answer.text


def test_dead_runs_are_grouped_by_task_and_error(
    client: FlaskClient, add: Callable[..., int]
) -> None:
    add("dead"), add("dead"), add("dead", error_type="KeyError"), add("dead", error_type=None)
    page = client.get("/jobs/").text
    assert page.count("Retry all") == 1
    assert "2 runs" in page
    assert "no error type" in page
    assert "KeyError" in client.get("/jobs/runs?status=dead&error_type=KeyError").text
    assert "#4" in client.get("/jobs/runs?status=dead&error_type=").text
    assert "#1<" not in client.get("/jobs/runs?status=dead&error_type=").text


def test_orphans_and_doubts_are_shown(
    app: Flask, db: SQLAlchemy, client: FlaskClient, add: Callable[..., int]
) -> None:
    add("queued", job_type="renamed_since")
    with app.app_context():
        db.session.add(JobEffect(key="charge:1", state="in_doubt"))
        db.session.commit()
    page = client.get("/jobs/").text
    assert "renamed_since" in page
    assert "1 effect in doubt" in page
    assert "charge:1" in client.get("/jobs/effects").text


def test_the_chart_tells_its_numbers_without_being_seen(
    client: FlaskClient, ticked: Callable[..., None]
) -> None:
    ticked(3 * 3600, succeeded=40, failed=3, dead=2)
    ticked(5)
    page = client.get("/jobs/").text
    assert "40 succeeded, 3 failed and will be retried, 2 dead" in page
    assert page.count("<rect") == 24 + 3
    assert "2 hours without a tick" in page or "1 hour without a tick" in page


def test_runs_are_filtered(client: FlaskClient, add: Callable[..., int]) -> None:
    add("queued"), add("dead", queue="mail"), add("succeeded", job_type="break_down")

    def shown(query: str) -> set[str]:
        return set(re.findall(r"#(\d+)", client.get(f"/jobs/runs?{query}").text))

    assert shown("") == {"1", "2", "3"}
    assert shown("status=dead") == {"2"}
    assert shown("task=break_down") == {"3"}
    assert shown("queue=mail") == {"2"}
    assert shown("error=VALUE") == {"2"}
    assert shown("older=1d") == set()
    assert shown("newer=1h") == {"1", "2", "3"}
    assert shown("status=&task=&queue=&error=&newer=&older=") == {"1", "2", "3"}
    assert "No runs match" in client.get("/jobs/runs?task=nothing").text


def test_runs_come_in_pages_by_key(client: FlaskClient, add: Callable[..., int]) -> None:
    for _ in range(5):
        add("succeeded")
    page = client.get("/jobs/runs?limit=2&status=succeeded").text
    assert re.findall(r">#(\d+)", page) == ["5", "4"]
    assert "before=4" in page
    later = client.get("/jobs/runs?limit=2&status=succeeded&before=4").text
    assert re.findall(r">#(\d+)", later) == ["3", "2"]
    assert "Newest" in later
    assert "no older runs" in client.get("/jobs/runs?status=succeeded&before=1").text


def test_a_query_that_cannot_be_read_is_400(client: FlaskClient) -> None:
    for query in [
        "runs?status=bogus",
        "runs?before=x",
        "runs?before=0",
        "runs?before=-1",
        "runs?before=9223372036854775808",
        "runs?before=٣",
        "runs?limit=many",
        "runs?older=soon",
        "runs?newer=1y",
        "runs?overdue=perhaps",
        "runs?task=%00",
        "runs?task=" + "x" * 501,
        "definitions?search=%00",
        "definitions?page=0",
        "definitions?state=happy",
        "definitions?sort=color",
        "definition?name=" + "x" * 501,
        "runs/bulk?do=dance",
        "?zone=Mars/Olympus",
        "effects?before=x",
    ]:
        answer = client.get(f"/jobs/{query}")
        assert answer.status_code == 400, query
        assert "must be" in answer.text, query


def test_numbers_are_clamped(client: FlaskClient, add: Callable[..., int]) -> None:
    add()
    query = "limit=999999999&older=0s&newer=999999999w&before=9223372036854775807"
    assert client.get(f"/jobs/runs?{query}").status_code == 200


def test_an_unknown_run_is_404_in_our_layout(client: FlaskClient) -> None:
    for number in ("7", "0", "99999999999999999999999999"):
        answer = client.get(f"/jobs/runs/{number}")
        assert answer.status_code == 404
        assert "There is no run" in answer.text
        assert "Back to the overview" in answer.text


def test_a_run_shows_its_attempts_with_stacks(
    app: Flask, db: SQLAlchemy, client: FlaskClient, add: Callable[..., int]
) -> None:
    run_id = add("dead", attempts=2, max_attempts=2, payload={"user": 1, "api_token": "s3cr3t"})
    with app.app_context():
        for attempt in (1, 2):
            db.session.add(
                JobFailure(
                    run_id=run_id,
                    attempt=attempt,
                    worker=f"web-{attempt}:7:ab",
                    started_at=NOW - timedelta(seconds=90 - attempt),
                    failed_at=NOW - timedelta(seconds=80),
                    error_type="ValueError",
                    error=f"no {attempt}",
                    stack=f"Traceback {attempt}",
                )
            )
        db.session.commit()
    page = client.get(f"/jobs/runs/{run_id}").text
    assert page.index("Attempt 2 failed") < page.index("Attempt 1 failed")
    assert "Traceback 1" in page
    assert "Traceback 2" in page
    assert "web-1:7" in page
    assert "web-1:7:ab" not in page
    assert "&#34;user&#34;: 1" in page
    assert "s3cr3t" not in page
    assert "***" in page
    assert "after attempt 2 of 2" in page


@pytest.mark.parametrize(
    ("status", "said", "buttons"),
    [
        ("queued", "It is waiting for a worker", ["Cancel", "Run again"]),
        ("running", "It is running on web-1:7", ["Cancel", "Run again"]),
        ("succeeded", "It succeeded", ["Run again"]),
        ("failed", "The next one is", ["Try now", "Cancel", "Run again"]),
        ("dead", "It gave up", ["Retry", "Discard", "Run again"]),
        ("cancelled", "It was cancelled", ["Retry", "Run again"]),
        ("skipped", "Its slot was skipped", ["Run again"]),
    ],
)
def test_a_run_of_each_status_has_its_story_and_its_buttons(
    client: FlaskClient, add: Callable[..., int], status: str, said: str, buttons: list[str]
) -> None:
    page = client.get(f"/jobs/runs/{add(status)}").text
    assert said in page
    assert re.findall("<button[^>]*>([^<]*)", page) == buttons


def test_progress_is_shown(client: FlaskClient, add: Callable[..., int]) -> None:
    run_id = add("running", progress=0.25, progress_message="a quarter")
    page = client.get(f"/jobs/runs/{run_id}").text
    assert 'value="0.25"' in page
    assert "25 %, a quarter" in page
    assert "25 %" in client.get("/jobs/runs").text


class TestHidden:
    """Without CRONJOBS_SHOW_PAYLOAD."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {}

    def test_payload_result_and_stack_are_not_shown(
        self, app: Flask, db: SQLAlchemy, client: FlaskClient, add: Callable[..., int]
    ) -> None:
        run_id = add("dead", payload={"word": "p4yload"}, result="r3sult")
        with app.app_context():
            db.session.add(
                JobFailure(
                    run_id=run_id, attempt=1, worker="w", error_type="E", error="e", stack="st4ck"
                )
            )
            db.session.commit()
        page = client.get(f"/jobs/runs/{run_id}").text
        assert "p4yload" not in page
        assert "r3sult" not in page
        assert "st4ck" not in page
        assert "CRONJOBS_SHOW_PAYLOAD" in page

    def test_the_values_of_a_statement_that_failed_are_not_shown(
        self, app: Flask, db: SQLAlchemy, client: FlaskClient, jobs: CronJobs
    ) -> None:
        @jobs.task(retry=1)
        def register(word: str) -> None:
            db.session.execute(text("CREATE TABLE people (word text, age integer NOT NULL)"))
            db.session.execute(text("INSERT INTO people (word) VALUES (:word)"), {"word": word})

        with app.app_context():
            jobs.enqueue("register", {"word": "p4yload"}, commit=True)
            jobs.tick()
        page = client.get("/jobs/runs/1").text
        assert "INSERT INTO people" in page
        assert "p4yload" not in page
        with app.app_context():
            failure = db.session.query(JobFailure).one()
            assert "p4yload" not in f"{failure.error} {failure.stack}"


@pytest.mark.parametrize("path", ["", "runs", "runs?task=remind", "runs/1", "effects", "ticks"])
def test_a_page_costs_few_statements_however_much_it_shows(
    app: Flask,
    db: SQLAlchemy,
    client: FlaskClient,
    add: Callable[..., int],
    define: Callable[..., int],
    path: str,
) -> None:
    for number in range(5):
        definition = define(f"d{number}")
        add("succeeded", definition_id=definition)
        add("dead", error_type=f"E{number}")
    sent: list[str] = []
    with app.app_context():
        event.listen(db.engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    assert client.get(f"/jobs/{path}").status_code == 200
    assert 0 < len(sent) <= 15
    assert not [text for text in sent if text.lstrip().upper().startswith(("INSERT", "UPDATE"))]


def test_ticks_show_host_and_what_they_did(
    client: FlaskClient, ticked: Callable[..., None]
) -> None:
    ticked(5, host="db-7", succeeded=1200, dead=1, clock_offset=-90.0)
    ticked(65, finished_at=None)
    page = client.get("/jobs/ticks").text
    assert "db-7" in page
    assert "1,200 succeeded, 1 dead" in page
    assert "nothing was due" in page
    assert "behind" in page


def test_effects_come_in_pages(app: Flask, db: SQLAlchemy, client: FlaskClient) -> None:
    with app.app_context():
        for number in range(3):
            db.session.add(JobEffect(key=f"key{number}", state="done", done_at=NOW))
        db.session.commit()
    page = client.get("/jobs/effects?all=1&limit=2").text
    assert "key2" in page
    assert "key0" not in page
    assert "before=2" in page
    assert "key0" in client.get("/jobs/effects?all=1&limit=2&before=2").text


def test_missing_tables_say_what_to_run(app: Flask, db: SQLAlchemy) -> None:
    app.testing = False
    CronJobs(app, authorize=lambda action: True)
    answer = app.test_client().get("/jobs/")
    assert answer.status_code == 503
    assert "flask jobs admin init" in answer.text


def test_missing_tables_do_not_name_the_database_to_readers(
    app: Flask, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    app.testing = False
    CronJobs(app, authorize=lambda action: True)
    with app.app_context():
        database = db.engine.url.database
    assert database is not None
    for path in ("/jobs/", "/jobs/metrics"):
        assert database not in app.test_client().get(path).text
    assert database in caplog.text


def test_a_result_of_megabytes_is_cut(client: FlaskClient, add: Callable[..., int]) -> None:
    run_id = add("succeeded", result=["x" * 2_000_000, "the end"], payload={"y": "y" * 2_000_000})
    text = client.get(f"/jobs/runs/{run_id}").text
    assert len(text) < 60_000
    assert "characters left out" in text
    assert "the end" in text


def test_an_error_of_ours_becomes_a_page_that_tells_nothing(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("flask_cronjobs.web.views.read_overview", fail)
    answer = client.get("/jobs/")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Something went wrong" in answer.text


def test_the_apps_own_handlers_leave_our_pages_alone(app: Flask, client: FlaskClient) -> None:
    @app.errorhandler(404)
    def theirs(error: Exception) -> tuple[str, int]:
        return "theirs", 404

    assert "There is no run" in client.get("/jobs/runs/7").text
    assert client.get("/elsewhere").text == "theirs"


def test_nothing_inline_and_every_id_once(
    client: FlaskClient,
    add: Callable[..., int],
    define: Callable[..., int],
    ticked: Callable[..., None],
) -> None:
    add("dead")
    define()
    ticked()
    add("queued", job_type="gone")
    for path in ("", "runs", "runs/1", "effects", "ticks"):
        page = client.get(f"/jobs/{path}", headers=OWN).text
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?! src=)|javascript:", page)
        ids = re.findall(r'\sid="([^"]*)"', page)
        assert len(ids) == len(set(ids))


def test_a_cancelled_run_s_duration_is_not_told_since_it_may_have_waited(
    client: FlaskClient, add: Callable[..., int]
) -> None:
    """Released by a worker that stopped, a run keeps the time at which it had begun."""
    add("cancelled")
    assert "took 2.0 s" not in client.get("/jobs/runs").text
    add("succeeded")
    assert "took 2.0 s" in client.get("/jobs/runs").text


def test_a_definition_that_will_not_run_shows_no_slot(
    client: FlaskClient, define: Callable[..., int]
) -> None:
    define("gone", job_type="gone")
    shown = client.get("/jobs/").text
    assert "Nothing is scheduled" in shown
