"""What the pages that read show: the overview, and what all of them have in common."""

from __future__ import annotations

import gzip
import re
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs

from .conftest import NOW, Pages


@pytest.mark.parametrize(
    ("ticked", "run", "title", "icon", "part"),
    [
        (None, {}, "No tick has run yet", "bad", "flask jobs admin crontab"),
        (5, {}, "All is well", "good", "from web-1"),
        (5, {"status": "dead"}, "Ticks are running, but 1 run ended dead in the last 24 h", "warn",
         "Retry"),
        (5, {"status": "running", "locked_until": NOW - timedelta(minutes=5)},
         "Ticks are running, but a worker was lost", "warn", "status=running"),
    ],
)  # fmt: skip
def test_the_verdict_is_first_in_title_and_icon(
    pages: Pages, ticked: int | None, run: dict[str, Any], title: str, icon: str, part: str
) -> None:
    if ticked is not None:
        pages.tick(ticked)
    if run:
        pages.add(**run)
    tab = f"{title} · Jobs" if icon == "good" else f"(1) Jobs · {title}"
    pages.shows("", f"<title>{tab}</title>", f"icon-{icon}.svg", part)


def test_what_needs_a_person_is_a_list_with_the_worst_first(pages: Pages) -> None:
    pages.tick(5)
    with pages.app.app_context():
        pages.jobs.pause(task="break_down")
    pages.add(run_at=NOW - timedelta(hours=1))
    pages.add(status="dead")
    pages.effect("e", state="in_doubt")
    page = pages.shows("", "<title>(4) Jobs · 4 things need you</title>", "icon-bad.svg")
    links = re.findall(r'<li class="(bad|warn)">\s*<a href="([^"]+)">', page)
    assert links == [
        ("bad", "/jobs/runs?overdue=1"),
        ("warn", "/jobs/runs?status=dead&amp;newer=24h"),
        ("warn", "/jobs/effects"),
        ("warn", "/jobs/runs?task=break_down"),
    ]
    assert 'value="task:break_down"' in page
    assert "/jobs/runs/bulk?do=retry&amp;status=dead&amp;newer=24h" in page
    found = pages.data("")["verdict"]["findings"]
    assert [each["id"] for each in found] == ["overdue", "dead", "effects-in-doubt", "paused"]
    assert all(each["since"] for each in found)


def test_the_empty_page_teaches(pages: Pages) -> None:
    declared = "declares 1 schedule; the next tick records it"
    pages.shows("", declared, "flask jobs tick", hides=["schedule=", "Dead"])
    pages.jobs._registry.declarations.clear()
    pages.shows("", "Add <code>schedule=</code> to a task, and the next tick records it")
    pages.shows("runs", ".enqueue(")
    pages.shows("ticks", "flask jobs admin crontab")
    pages.shows("effects", "No effect is in doubt")
    pages.shows("effects?all=1", "jobs.once(")


def test_a_definition_shows_its_schedule_outcomes_and_slots(pages: Pages) -> None:
    definition = pages.define()
    for hours in (3, 2):
        slot = NOW - timedelta(hours=hours)
        pages.add("succeeded", definition_id=definition, scheduled_for=slot)
    pages.add("dead", definition_id=definition)
    page = pages.shows("", "<code>0 7 * * *</code> Europe/Berlin")
    cells, _, legend = page.partition("Legend")
    assert cells.count('class="cell succeeded"') == 2
    assert cells.count('class="cell dead"') == 1
    assert legend.count('class="cell ') == 2
    # In its zone, with UTC on hover.
    shown = r'<time datetime="([^"]*)T0[56]:00:00\+00:00" title="\1 0[56]:00:00 UTC">[^<]*07:00<'
    assert len(re.findall(shown, page)) == 3


def test_dead_runs_are_grouped_by_task_and_error(pages: Pages) -> None:
    for error_type in ("ValueError", "ValueError", "KeyError", None):
        pages.add("dead", error_type=error_type, last_error="no domain\nmore")
    page = pages.shows("", "2 runs", "no error type", "ValueError: no domain</span>")
    assert page.count("Retry all") == 1
    href = "/jobs/runs/bulk?do=discard&amp;status=dead&amp;task=remind&amp;error_type=ValueError"
    assert f'href="{href}&amp;fingerprint="' in page
    pages.shows("runs?status=dead&error_type=KeyError", "KeyError")
    pages.shows("runs?status=dead&error_type=", "#4", hides=["#1<"])


def test_the_chart_tells_its_numbers_without_being_seen(pages: Pages) -> None:
    pages.tick(3 * 3600, succeeded=40, failed=3, dead=2)
    pages.tick(5)
    page = pages.shows("", "40 succeeded, 3 failed and will be retried, 2 dead", "40 succeeded<")
    assert page.count("<rect") == 24 + 3
    assert "2 hours without a tick" in page or "1 hour without a tick" in page


def test_a_query_that_cannot_be_read_is_400(pages: Pages) -> None:
    for query in (
        *("runs?status=bogus", "runs?before=x", "runs?before=0", "runs?before=-1"),
        *("runs?before=9223372036854775808", "runs?before=٣", "runs?limit=many"),
        *("runs?before=1_x", "runs?before=1_-5", "runs?before=1_99999999999999999999"),
        *("runs?before=x_1", "runs?before=1_2_3", "runs?older=soon", "runs?newer=1y"),
        *("runs?overdue=perhaps", "runs?task=%00", "runs?task=" + "x" * 501, "runs/bulk?do=dance"),
        *("definitions?search=%00", "definitions?page=0", "definitions?state=happy"),
        *("definitions?sort=color", "definition?name=" + "x" * 501, "effects?before=x"),
    ):
        answer = pages.get(f"/jobs/{query}")
        assert answer.status_code == 400, query
        assert "must be" in answer.text, query
        answer = pages.get(f"/jobs/{query}&format=json")
        assert (answer.status_code, answer.mimetype) == (400, "application/json"), query
        assert "must be" in answer.get_json()["error"], query


def test_numbers_are_clamped(pages: Pages) -> None:
    pages.text("runs?limit=999999999&older=0s&newer=999999999w&before=9223372036854775807")


def test_an_unknown_run_is_404_in_our_layout(pages: Pages) -> None:
    for number in ("7", "0", "99999999999999999999999999"):
        answer = pages.get(f"/jobs/runs/{number}")
        assert answer.status_code == 404
        assert "There is no run" in answer.text
        assert "Back to the overview" in answer.text
        assert "error" in pages.get(f"/jobs/runs/{number}?format=json").get_json()


@pytest.mark.parametrize("path", ["", "runs", "runs?task=break_down", "runs/1", "effects", "ticks"])
def test_a_page_costs_few_statements_however_much_it_shows(pages: Pages, path: str) -> None:
    for number in range(5):
        pages.add("succeeded", definition_id=pages.define(f"d{number}"))
        pages.add("dead", error_type=f"E{number}")
    sent: list[str] = []
    with pages.app.app_context():
        event.listen(pages.db.engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    pages.text(path)
    assert 0 < len(sent) <= 20
    assert not [text for text in sent if text.lstrip().upper().startswith(("INSERT", "UPDATE"))]


def test_ticks_show_host_and_what_they_did(pages: Pages) -> None:
    pages.tick(5, host="db-7", succeeded=1200, dead=1, clock_offset=-90.0)
    pages.tick(65)
    pages.tick(125, finished_at=None)
    said = "db-7", "1,200 succeeded, 1 dead", "nothing was due", "behind", "nothing yet"
    assert pages.shows("ticks", *said).count('data-head="took"') == 2


def test_queues_show_what_waits_and_who_serves_it(pages: Pages) -> None:
    pages.shows("queues", "No host has ticked", ">default</a>", hides=['"trouble">nobody'])
    pages.tick(5, host="db7", queues=["mail", "slow"], version="1.2")
    running = pages.add("running", locked_by="db7:7:secret")
    pages.add("queued")
    parts = ["db7", "mail, slow", "1.2", f"/runs/{running}", "1 due", '"trouble">nobody']
    pages.shows("queues", *parts, hides=["secret"])
    answer = pages.post("/jobs/pause", what="queue:default", back="queues?")
    assert answer.location.endswith("/jobs/queues#message")
    assert pages.said(answer) == "The queue default is paused. Its runs wait until it is resumed."
    pages.shows("queues", "paused by ada", ">Resume<", hides=['data-head="by"><span'])
    data = pages.data("queues")
    assert [each["name"] for each in data["queues"]] == ["default"]
    assert data["hosts"][0]["queues"] == ["mail", "slow"]
    pages.rights.discard("act")
    pages.shows("queues", "paused by ada", hides=["Resume"])


def test_missing_tables_say_what_to_run_and_name_the_database_in_the_log_alone(
    app: Flask, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    app.testing = False
    CronJobs(app, authorize=lambda action: True)
    with app.app_context():
        database = db.engine.url.database
    assert database is not None
    for path in ("/jobs/", "/jobs/metrics"):
        answer = app.test_client().get(path)
        assert answer.status_code == 503
        assert "flask jobs admin init" in answer.text
        assert database not in answer.text
        renews = 'data-failed data-refresh="' in answer.text and "<noscript>" in answer.text
        assert renews == (path == "/jobs/")
    assert database in caplog.text


def test_each_page_marks_its_place_in_the_header(pages: Pages) -> None:
    pages.define()
    run = pages.add("dead")
    marks = {
        "": 'page">Overview', "definitions": 'page">Definitions', "runs": 'page">Runs',
        "definition?name=remind": 'true">Definitions', "task?name=remind": 'true">Definitions',
        f"runs/{run}": 'true">Runs', f"runs/{run}/edit": 'true">Runs', "order": 'page">Order',
    }  # fmt: skip
    for path, mark in marks.items():
        found = re.findall(r'<a href="[^"]*" aria-current="(\w+">\w+)', pages.text(path))
        assert found[0] == mark, path
        assert path == "order" or len(found) == 1, path


def test_a_page_that_is_as_it_was_is_not_sent_again_nor_kept(pages: Pages) -> None:
    pages.add("succeeded")
    first = pages.get("/jobs/runs", headers={"Accept-Encoding": "gzip"})
    assert first.headers["Content-Encoding"] == "gzip"
    assert first.headers["Cache-Control"] == "no-store"
    assert gzip.decompress(first.data).decode().count("As of ") == 1
    known = {"If-None-Match": first.headers["ETag"]}
    again = pages.get("/jobs/runs", headers=known)
    assert (again.status_code, again.data) == (304, b"")
    pages.add("dead")
    third = pages.get("/jobs/runs", headers=known)
    assert third.status_code == 200
    assert "Content-Encoding" not in third.headers


def test_a_result_of_megabytes_is_cut(pages: Pages) -> None:
    long: dict[str, Any] = {"result": ["x" * 2_000_000, "the end"], "payload": {"y": "y" * 2**21}}
    page = pages.shows(f"runs/{pages.add('succeeded', **long)}", "characters left out", "the end")
    assert len(page) < 60_000


def test_the_apps_own_handlers_leave_our_pages_alone(pages: Pages) -> None:
    pages.app.register_error_handler(404, lambda error: ("theirs", 404))
    assert "There is no run" in pages.get("/jobs/runs/7").text
    assert pages.get("/elsewhere").text == "theirs"


# JSON


def test_each_page_that_reads_is_data_for_scripts(pages: Pages) -> None:
    run_id = pages.add("dead", payload={"user": 1, "token": "hunter2"})
    pages.tick(5)
    pages.define(payload={"to": "ada"})
    keys = {
        "": "verdict", "runs": "runs", f"runs/{run_id}": "payload", "effects": "effects",
        "ticks": "ticks", "definitions": "definitions", "definition?name=remind": "view",
        "task?name=remind": "runs", "runs/bulk?do=retry&status=dead": "count", "order": "keys",
        "batches": "batches",
    }  # fmt: skip
    for path, key in keys.items():
        data = pages.data(path)
        assert key in data, path
        assert "hunter2" not in str(data)
    assert pages.data("runs")["runs"][0]["id"] == run_id
    assert pages.data("definition?name=remind")["payload"] == {"to": "ada"}
    pages.hide_payloads()
    assert pages.data("definition?name=remind")["payload"] is None
    pages.rights.clear()
    answer = pages.get("/jobs/runs?format=json")
    assert (answer.status_code, answer.mimetype) == (403, "application/json")


@pytest.mark.parametrize(
    ("path", "rows", "by"),
    [
        ("runs?status=succeeded", "runs", "before"),
        ("runs?status=dead", "runs", "before"),
        ("effects?all=1", "effects", "before"),
        ("order?all=1", "keys", "after"),
    ],
)
def test_pages_of_lists_link_on_and_are_data_by_the_same_cursor(
    pages: Pages, path: str, rows: str, by: str
) -> None:
    strict = {"concurrency_limit": 1, "on_dead": "stop"}
    for at in range(5):
        pages.add("succeeded")
        pages.add("dead", finished_at=NOW - timedelta(minutes=at))
        # Long since: how late it is does not change meanwhile.
        pages.add("queued", concurrency_key=f"k{at}", run_at=NOW.replace(year=2020), **strict)
        pages.effect(f"key{at}", state="done", done_at=NOW)
    whole = pages.data(path)[rows]
    seen: list[Any] = []
    following = ""
    while following is not None:
        asked = f"{path}&limit=2{following and f'&{by}={following}'}"
        page, data = pages.text(asked), pages.data(asked)
        assert ("data-refresh" in page) == (not following)
        seen += data[rows]
        following = data[by]
        assert ('rel="next"' in page) == (following is not None)
        assert following is None or f"{by}={following}" in page
    assert len(whole) == 5
    assert seen == whole


def test_operations_lead_to_their_runs(pages: Pages) -> None:
    run_id = pages.add("dead")
    pages.post("/jobs/runs/bulk/act", do="retry", status="dead")
    pages.post("/jobs/pause", what="queue:mail")
    shown = pages.shows("operations", "retried", "1 queued", "paused", "queue mail")
    assert "1 run, status dead" in shown
    assert "/jobs/runs?operation=1" in shown
    assert [run["id"] for run in pages.data("runs?operation=1")["runs"]] == [run_id]
    assert pages.data("operations")["operations"][1]["asked"] == 1


def test_dead_runs_are_retried_by_group(pages: Pages) -> None:
    """Those of an older version, which have none, are grouped by their type."""
    first, second = pages.add("dead", fingerprint="f1"), pages.add("dead", fingerprint="f2")
    old = pages.add("dead")
    form = {"task": "remind", "error_type": "ValueError"}
    assert len(pages.data("")["dead"]) == 3
    pages.post("/jobs/dead/retry", **form, fingerprint="f1")
    pages.post("/jobs/dead/retry", **form, fingerprint="")
    assert [pages.status(each) for each in (first, second, old)] == ["queued", "dead", "queued"]


def test_lists_that_are_cut_say_of_how_many(
    app: Flask, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.jobs.overview._GROUPS", 2)
    for number in range(3):
        pages.add("dead", error_type=f"E{number}")
        pages.add("queued", job_type=f"gone{number}")
    pages.shows("", "2 of 3 groups", "2 of 3 tasks")
    printed = app.test_cli_runner().invoke(args=["jobs", "admin"]).output
    assert ("(2 of 3 groups)" in printed, "(2 of 3 tasks)" in printed) == (True, True)
