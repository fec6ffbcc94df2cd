"""Status, Workers and the page of a schedule, by the questions that they answer, and the shell."""

from __future__ import annotations

import gzip
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.insights.run_actions import RETRY

from .conftest import NOW, Pages

# Is something wrong, and since when?


@pytest.mark.parametrize(
    ("ticked", "run", "tab", "icon", "part"),
    [
        (None, {}, "(1) No tick has run yet", "bad", "flask jobs tick</code></pre>"),
        (5, {}, "All is well", "good", "from web-1"),
        (5, {"status": "dead"}, "(1) 1 run died in the last 24 h", "warn", "Retry"),
        (400, {}, "(1) Ticks have stopped", "bad", "<code>flask jobs admin crontab</code>"),
    ],
)
def test_the_verdict_is_first_in_title_and_icon(
    pages: Pages, ticked: int | None, run: dict[str, Any], tab: str, icon: str, part: str
) -> None:
    if ticked is not None:
        pages.tick(ticked)
    if run:
        pages.add(**run)
    pages.shows("", f"<title>{tab} · Jobs</title>", f"icon-{icon}.svg", part)


def test_a_schedule_that_no_tick_has_recorded_leads_to_a_page(pages: Pages) -> None:
    pages.tick(5)
    with pages.app.app_context():
        state = state_of()
        object.__setattr__(state, "started", state.started - 3600)
    page = pages.shows(
        "", "No tick has recorded the definition &#39;remind&#39;", hides=["pause it"]
    )
    (link,) = re.findall(r'<li class="error">\s*<p><a href="/jobs/([^"]+)">', page)
    pages.shows(link, "web-1")


def test_what_needs_attention_is_a_list_with_the_worst_first(pages: Pages) -> None:
    pages.tick(5)
    with pages.app.app_context():
        pages.jobs.pause(task="break_down")
    pages.add(run_at=NOW - timedelta(hours=1))
    pages.add(status="dead")
    page = pages.shows("", "<title>(3) 3 things need attention · Jobs</title>", "icon-bad.svg")
    needs = page.partition('<ol class="needs">')[2].partition("</ol>")[0]
    assert re.findall(r'<li class="(\w+)">\s*<p><a href="([^"]+)">', needs) == [
        ("error", "/jobs/runs?overdue=1"),
        ("warning", "/jobs/runs?status=dead&amp;newer=24h"),
        ("warning", "/jobs/runs?task=break_down"),
    ]
    assert needs.count("<time ") == 3
    assert 'value="task:break_down"' in needs
    assert "/jobs/runs/bulk?do=retry&amp;status=dead&amp;newer=24h" in needs
    pages.rights.discard("act")
    pages.shows("", "break_down is paused by", hides=["Resume", "Retry", "<button"])


def test_an_effect_in_doubt_is_answered_at_once(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.web.status.DOUBTS_SHOWN", 2)
    pages.tick(5)
    run_id = pages.add("succeeded")
    pages.effect("busy", locked_by="me", locked_until=datetime.now(timezone.utc) + timedelta(1))
    pages.effect("charge:1", state="in_doubt", run_id=run_id)
    pages.shows("", ">charge:<wbr>1</b>", f"/jobs/runs/{run_id}", "It was done", "It was not done",
                "(1) 1 effect is in doubt", hides=["busy", "admin effects"])  # fmt: skip
    pages.effect("e2", state="in_doubt")
    pages.effect("e3", state="in_doubt")
    pages.shows("", "3 effects are in doubt. All of them: <code>flask jobs admin effects")


# What failed, why, and for whom?


def test_dead_runs_are_grouped_by_task_and_error(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours, label in ((15, "user 1"), (14, "user 2"), (13, "user 1"), (12, None)):
        pages.add("dead", label=label, finished_at=NOW - timedelta(hours=hours),
                  last_error="no domain\nmore", fingerprint="f1")  # fmt: skip
    pages.add("dead", error_type=None, last_error=None, finished_at=NOW)
    page = pages.shows("", "no error type", "ValueError: no domain</p>", "4 dead", "1 dead")
    first, second = page.partition('<ol class="rows failed">')[2].split("<li>")[1:3]
    assert "no error type" in first
    assert re.findall(r'<span class="label">([^<]*)', second) == ["user 1", "user 2"]
    assert ">15 h<" in re.sub(r"\s", " ", second)
    assert page.count("Retry all") == 1
    href = "/jobs/runs/bulk?do=discard&amp;status=dead&amp;task=remind&amp;error_type=ValueError"
    assert f'href="{href}&amp;fingerprint=f1"' in page
    monkeypatch.setattr("flask_cronjobs.web.status.GROUPS_SHOWN", 1)
    pages.shows("", "1 of 2 groups", "All dead runs", hides=["no domain"])


def test_group_that_is_retried_is_of_one_fingerprint(pages: Pages) -> None:
    """Groups of an older version have no fingerprint, and are grouped by their error type."""
    first, second = pages.add("dead", fingerprint="f1"), pages.add("dead", fingerprint="f2")
    old = pages.add("dead")
    form = {"task": "remind", "error_type": "ValueError"}
    pages.post("/jobs/dead/retry", **form, fingerprint="f1")
    pages.post("/jobs/dead/retry", **form, fingerprint="")
    assert [pages.status(run_id) for run_id in (first, second, old)] == ["queued", "dead", "queued"]


# What comes next?


def _names(page: str) -> list[str]:
    """Return the schedules of a page, in their order."""
    listed = page.partition('<ol class="rows schedules">')[2]
    return re.findall(r'<div class="what">\s*<p><a href="/jobs/definition\?name=([^"]*)"', listed)


def test_a_schedule_shows_its_outcomes_and_its_next_slot(pages: Pages) -> None:
    pages.app.config["CRONJOBS_TIMEZONE"] = "Europe/Berlin"
    definition = pages.define()
    for hours in (3, 2):
        slot = NOW - timedelta(hours=hours)
        pages.add("succeeded", definition_id=definition, scheduled_for=slot)
    pages.add("dead", definition_id=definition)
    page = pages.shows("", "<code>0 7 * * *</code> Europe/Berlin", ">Pause<span", ">Run now<span")
    cells, _, legend = page.partition("Legend")
    assert cells.count('class="cell succeeded"') == 2
    assert cells.count('class="cell dead"') == 1
    assert legend.count('class="cell ') == 2
    # UTC is in the title; the pages use the app's zone.
    assert re.search(r'title="[^"]* 0[56]:00:00 UTC">\w+ 0[56]:00<', page)


def test_schedules_that_need_attention_are_first_or_those_that_are_next(pages: Pages) -> None:
    for hours, name in ((3, "a"), (2, "b")):
        pages.define(name, next_run_at=NOW + timedelta(hours=hours))
    pages.add("dead", definition_id=pages.define("z", next_run_at=NOW + timedelta(hours=9)))
    pages.define("paused", paused_at=NOW)
    assert _names(pages.shows("", ">dead runs</span>")) == ["z", "a", "b", "paused"]
    page = pages.shows("?sort=next", 'sort=next#schedules" aria-current="true">next due first')
    assert _names(page) == ["b", "a", "z", "paused"]


def test_schedules_come_in_pages_both_ways(pages: Pages) -> None:
    for number in range(60):
        pages.define(f"d{number:02}")
    first = pages.shows("", "1 of 3", 'page=2&amp;sort=need#schedules">Next', hides=["Previous"])
    assert _names(first) == [f"d{number:02}" for number in range(25)]
    last = pages.shows("?page=9", "3 of 3", ">Previous<", hides=[">Next<"])
    assert _names(last)[-1] == "d59"


# What is this schedule, and what is its task?


def test_a_schedule_tells_its_runs_slots_and_task(pages: Pages) -> None:
    payload = {"token": "x", "days": 3}
    definition = pages.define("nightly", origin="database", payload=payload)
    for hours in range(1, 12):
        slot = NOW - timedelta(hours=hours)
        times = {"run_at": slot, "started_at": slot + timedelta(seconds=3)}
        times["finished_at"] = slot + timedelta(seconds=3 + hours)
        status = "dead" if hours == 4 else "succeeded"
        pages.add(status, definition_id=definition, scheduled_for=slot, **times)
    pages.add("skipped", definition_id=definition, error_type="Missed")
    page = pages.shows(
        "definition?name=nightly",
        *("<title>nightly · Jobs</title>", "<code>0 7 * * *</code> Europe/Berlin"),
        *("Missed slots", "2.0 s</td>", "&#34;token&#34;: &#34;***&#34;", "icon-warn.svg"),
        *('href="/jobs/runs?task=remind"', 'href="/jobs/runs?definition=nightly"'),
        "10 attempts, exponential delays",
    )
    assert page.partition('id="next"')[2].partition("</ol>")[0].count("<li>") == 3
    assert page.partition("<tbody>")[2].count("<tr>") == 10
    pages.hide_payloads()
    pages.shows("definition?name=nightly", "Payloads are hidden", hides=["&#34;days"])


def test_a_schedule_says_what_is_wrong(pages: Pages) -> None:
    # Use the current time, not the time of collection.
    ago = datetime.now(timezone.utc) - timedelta(minutes=2)
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({}, "good", "No runs yet"),
        ({"paused_at": NOW}, "idle", "paused</span>"),
        ({"schedule": "61 * * * *"}, "warn", "the minute field says"),
        ({"timezone": "Mars/Olympus"}, "warn", "Mars/Olympus"),
        ({"job_type": "gone"}, "warn", "no task gone"),
        ({"origin": "code"}, "warn", "no longer declares it"),
        ({"next_run_at": ago}, "good", "2 min late"),
    ]
    for number, (values, icon, reason) in enumerate(wrong):
        pages.define(f"d{number}", **({"origin": "database"} | values))
        pages.shows(f"definition?name=d{number}", reason, f"icon-{icon}.svg")
    pages.shows("", *(reason for _, _, reason in wrong))


@pytest.mark.parametrize("values", [{"job_type": "gone"}, {"origin": "code"}])
def test_a_schedule_that_no_code_declares_promises_no_slot(
    pages: Pages, values: dict[str, Any]
) -> None:
    pages.define("d", **({"origin": "database"} | values))
    page = pages.shows("definition?name=d", "nothing is scheduled")
    assert "<time" not in page.partition('id="next"')[2].partition("</section>")[0]


def test_a_name_with_any_characters_has_a_page(pages: Pages) -> None:
    pages.define("a/../b?c=d&e#f %2F ☃")
    (name,) = _names(pages.text())
    pages.shows(f"definition?name={name}", "☃ · Jobs</title>")


@pytest.mark.parametrize("path", ["definition"])
def test_an_unknown_name_is_404_and_a_missing_one_400(pages: Pages, path: str) -> None:
    answer = pages.get(f"/jobs/{path}?name=nobody")
    assert (answer.status_code, "There is no schedule of that " in answer.text) == (404, True)
    assert pages.get(f"/jobs/{path}").status_code == 400


# How was the last day, and who did what?


def test_the_last_operations_lead_to_what_they_changed(pages: Pages) -> None:
    run_id = pages.add("dead")
    with pages.app.app_context():
        RETRY.one(state_of(pages.app), run_id, "eve")
    for name in ("q1", "q2", "q3", "q4"):
        pages.post("/jobs/pause", what=f"queue:{name}")
    page = pages.shows("", "ada paused", f'href="/jobs/runs/{run_id}">')
    page = page.partition('id="operations"')[2]
    assert page.index("runs?queue=q4") < page.index("runs?queue=q1")
    pages.post("/jobs/pause", what="queue:q5")
    pages.shows("", "admin operations", hides=["eve retried"])


# Is a worker alive, and who serves this queue?


def test_workers_show_what_waits_and_who_serves_it(pages: Pages) -> None:
    pages.shows("workers", "No host has ticked", "<b>default</b>", hides=['class="trouble">served'])
    pages.tick(5, host="db7", queues=["mail", "slow"], version="1.2")
    pages.add("running", locked_by="db7:7:secret")
    pages.add("queued")
    parts = [
        "db7",
        "mail, slow",
        "version 1.2",
        "1 waiting",
        "1 due",
        'class="trouble">no worker serves it',
    ]
    pages.shows("workers", *parts, hides=["secret"])
    answer = pages.post("/jobs/pause", what="queue:default", back="workers?")
    assert answer.location.endswith("/jobs/workers#message")
    assert pages.said(answer) == "The queue default is paused. Its runs wait until it is resumed."
    pages.shows("workers", "by ada", ">Resume<", hides=["no worker serves it"])
    pages.rights.discard("act")
    pages.shows("workers", "by ada", hides=["Resume"])


def test_a_queue_whose_runs_were_not_counted_is_not_said_to_be_empty(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.insights.backlog.COUNTED", 1)
    for queue in ("default", "default", "mail"):
        pages.add(queue=queue)
    pages.shows("workers", "1+ waiting", "0+ waiting", hides=["empty</span>"])


def test_pauses_of_a_task_or_queue_begin_and_end(pages: Pages) -> None:
    pages.tick(5)
    pages.post("/jobs/pause", what="task:remind")
    pages.shows("", "The task remind is paused. Its runs wait until it is resumed.", ">Resume<")
    for flash in ("is resumed.", "was not paused."):
        pages.post("/jobs/resume", what="task:remind")
        pages.shows("", f"The task remind {flash}")
    for target in ("task:nobody", "definition:remind", "step:remind", "queue:", ""):
        pages.post("/jobs/pause", what=target)
    assert pages.contents()["job_pauses"] == []


# The shell, and what all pages have in common


def test_an_empty_app_shows_only_what_it_uses(pages: Pages) -> None:
    declared = "declares 1 schedule; the next tick records it"
    unused = ["What failed", "The last 24 hours", "Who did what", "class=&#34;needs&#34;"]
    pages.shows("", declared, "flask jobs tick", hides=["schedule=", *unused])
    pages.jobs._registry.declarations.clear()
    pages.shows("", "Add <code>schedule=</code> to a task, and the next tick records it")
    pages.shows("workers", "flask jobs admin crontab")


def test_each_page_marks_its_tab(pages: Pages) -> None:
    pages.define()
    run = pages.add("dead")
    marks = {
        "": 'page">Status', "runs": 'page">Runs', "workers": 'page">Workers',
        "definition?name=remind": 'true">Status', "run?name=remind": 'true">Status',
        f"runs/{run}": 'true">Runs', f"runs/{run}/edit": 'true">Runs',
    }  # fmt: skip
    for path, mark in marks.items():
        head = pages.text(path).partition("</header>")[0]
        assert re.findall(r'aria-current="(\w+">\w+)', head) == [mark], path
        assert re.findall(r'<a href="/jobs/[^"]*"[^>]*>(\w+)', head) == [
            "Status",
            "Runs",
            "Workers",
        ]


def test_a_query_that_cannot_be_read_is_400(pages: Pages) -> None:
    for query in (
        *("runs?status=bogus", "runs?before=x", "runs?before=0", "runs?before=-1"),
        *("runs?before=9223372036854775808", "runs?before=٣", "runs?limit=many"),
        *("runs?before=1_x", "runs?before=1_-5", "runs?before=1_99999999999999999999"),
        *("runs?before=x_1", "runs?before=1_2_3", "runs?older=soon", "runs?newer=1y"),
        *("runs?overdue=perhaps", "runs?task=%00", "runs?task=" + "x" * 501, "runs/bulk?do=dance"),
        *("?page=0", "?page=x", "?sort=color", "definition?name=" + "x" * 501),
    ):
        answer = pages.get(f"/jobs/{query}")
        assert answer.status_code == 400, query
        assert "must be" in answer.text, query


def test_an_unknown_run_is_404_in_our_layout(pages: Pages) -> None:
    for number in ("7", "0", "99999999999999999999999999"):
        answer = pages.get(f"/jobs/runs/{number}")
        assert answer.status_code == 404
        assert "There is no run" in answer.text
        assert "Back to Status" in answer.text


@pytest.mark.parametrize("path", ["", "runs", "workers", "runs/1", "definition?name=d0"])
def test_a_page_costs_few_statements_however_much_it_shows(pages: Pages, path: str) -> None:
    for number in range(5):
        pages.add("succeeded", definition_id=pages.define(f"d{number}"))
        pages.add("dead", error_type=f"E{number}", label=f"user {number}")
        pages.effect(f"e{number}", state="in_doubt")
    log: list[str] = []
    with pages.app.app_context():
        event.listen(pages.db.engine, "before_cursor_execute", lambda *args: log.append(args[2]))
    pages.text(path)
    assert 0 < len(log) <= 25
    assert not [text for text in log if text.lstrip().upper().startswith(("INSERT", "UPDATE"))]


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


def test_a_page_that_is_as_it_was_is_not_sent_again_nor_kept(pages: Pages) -> None:
    pages.add("succeeded")
    first = pages.get("/jobs/runs", headers={"Accept-Encoding": "gzip"})
    assert first.headers["Content-Encoding"] == "gzip"
    assert first.headers["Cache-Control"] == "no-store"
    assert gzip.decompress(first.data).decode().count("as of ") == 1
    known = {"If-None-Match": first.headers["ETag"]}
    again = pages.get("/jobs/runs", headers=known)
    assert (again.status_code, again.data) == (304, b"")
    pages.add("dead")
    third = pages.get("/jobs/runs", headers=known)
    assert third.status_code == 200
    assert "Content-Encoding" not in third.headers


def test_a_large_result_is_cut(pages: Pages) -> None:
    long: dict[str, Any] = {"result": ["x" * 500_000, "the end"], "payload": {"y": "y" * 2**19}}
    page = pages.shows(f"runs/{pages.add('succeeded', **long)}", "characters left out", "the end")
    assert len(page) < 60_000


def test_the_apps_own_handlers_leave_our_pages_alone(pages: Pages) -> None:
    pages.app.register_error_handler(404, lambda error: ("theirs", 404))
    assert "There is no run" in pages.get("/jobs/runs/7").text
    assert pages.get("/elsewhere").text == "theirs"
