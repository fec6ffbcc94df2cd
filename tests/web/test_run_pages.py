"""The list of runs, what can be done with all of it, and the page of one run."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

import flask_cronjobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.models import JobBatch, JobOutput
from flask_cronjobs.text.redaction import without_own_frames
from tests.marks import on_both

from .conftest import NOW, OWN, Pages

STACK = """Traceback (most recent call last):
  File "/srv/lib/flask_cronjobs/core/worker/runner.py", line 12, in _armed
    value = handler.call(**claim.payload)
            ^^^^^^^^^^^^
  File "/srv/shop/flask_cronjobs_tasks.py", line 3, in send
    return post()
  File "/srv/lib/flask_cronjobs/features/once/once.py", line 9, in once
    func()
ValueError: no
"""


def value(page: str, name: str) -> str:
    """Return the value of a field of the filter, or of the search."""
    match = re.search(rf'<input[^>]* name="{name}" value="([^"]*)"', page)
    assert match
    return html.unescape(match[1])


def listed(pages: Pages, query: str) -> list[int]:
    """Return the runs of a list, in its order."""
    return [int(run_id) for run_id in re.findall(r">#(\d+)<", pages.text(f"runs?{query}"))]


# The list


def test_runs_are_filtered_and_searched(pages: Pages) -> None:
    pages.add("queued")
    pages.add("dead", queue="mail", error_type="KeyError")
    pages.add("succeeded", job_type="break_down")
    for query, ids in {
        "": [3, 2, 1], "status=dead": [2], "task=break_down": [3], "queue=mail": [2],
        "error=KEYE": [2], "older=1d": [], "newer=1h": [3, 2, 1], "q=break": [3], "q=2": [2],
        "status=&task=&queue=&error=&newer=&older=": [3, 2, 1], "overdue=1": [],
        "waits=later": [], "status=succeeded&before=1": [],
    }.items():  # fmt: skip
        assert listed(pages, query) == ids, query
    pages.shows("runs?status=succeeded&before=1", "no older runs")
    pages.shows("runs?queue=nothing", "No runs match", 'href="/jobs/runs">Show all runs')
    page = pages.shows("runs?task=remnid", '<option value="break_down">')
    assert "Did you mean 'remind'?" in html.unescape(page)


def test_filters_come_back_as_they_were_typed_also_beside_one_that_cannot_be_read(
    pages: Pages,
) -> None:
    typed = {"newer": "24h", "older": "90 MIN", "q": ' "x" <y>', "error": "a+b c", "queue": "<q>"}
    page = pages.get("/jobs/runs", query_string=typed).text
    assert {name: value(page, name) for name in typed} == typed
    assert page.count("remove this filter") == 4
    answer = pages.get("/jobs/runs?older=soon&task=remind&status=dead")
    assert answer.status_code == 400
    values = {name: value(answer.text, name) for name in ("older", "task", "status")}
    assert values == {"older": "soon", "task": "remind", "status": "dead"}
    assert 'role="alert">older must be an age' in answer.text


def test_chips_count_the_runs_of_each_status_and_keep_the_filters(pages: Pages) -> None:
    for status in ("queued", "queued", "failed", "running", "dead", "succeeded"):
        pages.add(status)
    pages.add("queued", queue="mail")
    chip = r'<a class="chip" href="([^"]*)"[^>]*>([^<]*?) <\w+ class="number">([^<]*)<'
    chips = re.findall(chip, pages.text("runs"))
    assert [(word, number) for _, word, number in chips] == [
        ("waiting", "3"), ("running", "1"), ("to be retried", "1"), ("dead", "1"),
    ]  # fmt: skip
    chips = re.findall(chip, pages.text("runs?queue=mail&status=dead"))
    assert [number for _, _, number in chips] == ["1", "0", "0", "0"]
    assert chips[0][0] == "/jobs/runs?queue=mail&amp;status=queued"
    pages.shows("runs?status=succeeded", '" aria-current="page">succeeded</a>')


def test_why_a_run_waits_and_how_long_it_took_have_columns_of_their_own(pages: Pages) -> None:
    later = pages.add("queued", run_at=NOW + timedelta(hours=23, minutes=30))
    pages.add("succeeded", started_at=NOW - timedelta(seconds=72), finished_at=NOW)
    page = pages.shows("runs", "<span>Why it waits</span><span>Took</span>")
    why, took = (
        re.findall(rf'<p class="{name} soft[^>]*>(.*?)</p>', page) for name in ("why", "took")
    )
    assert [bool(reason) for reason in why] == [False, True]
    assert took == ["1 min 12 s", ""]
    assert "in 23" in why[1]
    pages.shows("runs?status=succeeded", "<span></span><span>Took</span>")
    pages.shows("runs?status=queued", "<span>Why it waits</span><span></span>", f"#{later}<")


# The subject of a list


@on_both
@pytest.mark.parametrize("which", ["overdue=1", "stale=1", "batch=b&overdue=1"])
def test_each_chip_leads_to_as_many_runs_as_it_counts(pages: Pages, which: str) -> None:
    batch = {"batch_id": pages.insert(JobBatch(key="b"))}
    pages.add("queued", run_at=NOW - timedelta(days=1), **batch)
    pages.add("running", locked_until=NOW - timedelta(seconds=5), **batch)
    for status in ("queued", "queued", "failed", "running", "dead"):
        pages.add(status, **batch)
    chip = r'<a class="chip" href="/jobs/(.*?)"[^>]*>[^<]* <\w+ class="number">(\d+)<'
    chips = re.findall(chip, pages.text(f"runs?{which}"))
    assert [number for _, number in chips] == ["3", "2", "1", "1"]
    for link, number in chips:
        runs = re.findall(r">#\d+<", pages.text(html.unescape(link)))
        assert len(runs) == int(number), link


@on_both
@pytest.mark.parametrize("status", ["queued", "running", "failed", "dead"])
def test_overdue_runs_of_a_batch_can_have_any_status(pages: Pages, status: str) -> None:
    pages.insert(JobBatch(key="b"))
    pages.shows(f"runs?batch=b&overdue=1&status={status}", "No runs match")


def test_a_batch_stands_above_its_runs(pages: Pages) -> None:
    key = "weekly:<W47>"
    with pages.app.app_context():
        remind, break_down = pages.jobs.get("remind"), pages.jobs.get("break_down")
        with pages.jobs.batch(key, then=remind):
            remind.enqueue()
            break_down.enqueue()
            remind.using(delay=3600).enqueue()
        pages.db.session.commit()
        pages.jobs.tick()
    path = f"runs?batch={quote(key)}"
    buttons = ("Retry dead runs<", "Cancel the rest<")
    pages.shows(path, "Batch, running", "2 of 3</span> ended", 'max="3" value="2"', *buttons)
    pages.shows("runs/1", "/jobs/runs?batch=weekly")
    pages.rights.discard("act")
    pages.shows(path, "weekly:&lt;W47&gt;", hides=['method="post"', *buttons])
    pages.rights.add("act")
    for act, flash in (
        ("cancel", "1 run of weekly:&lt;W47&gt; is cancelled."),
        ("retry", "1 run of weekly:&lt;W47&gt; is queued again."),
    ):
        answer = pages.post(f"/jobs/batches/{act}", key=key, back=f"runs?batch={quote(key)}")
        assert answer.location.startswith("/jobs/runs?batch=weekly")
        assert pages.said(answer) == flash
    pages.insert(JobBatch(key="open"))
    pages.shows("runs?batch=open", "more runs can still join it", ">Close<")
    for flash in ("open is closed.", "open was already closed."):
        assert flash in pages.get(pages.post("/jobs/batches/close", key="open").location).text
    pages.shows("runs?batch=nothing", "There is no batch with the key nothing")


def test_a_concurrency_key_says_who_has_it(pages: Pages) -> None:
    key: dict[str, Any] = {"concurrency_key": "account:1", "concurrency_limit": 2}
    holder = pages.add("running", concurrency_share=1, label="shop 3", **key)
    waits = pages.add("queued", **key)
    second = pages.add("queued", concurrency_key="account:11", concurrency_limit=1)
    has_it = f'<a href="/jobs/runs/{holder}">Run {holder}</a> of remind shop 3 holds it'
    pages.shows("runs?key=account:1", "at most 2 at once", "account:<wbr>1</h2>", has_it)
    assert listed(pages, "key=account:1") == [waits, holder]
    pages.shows("runs?key=account:11", "No run holds it now.")
    pages.shows(f"runs/{second}", 'href="/jobs/runs?key=account:11"')


def test_a_task_is_paused_resumed_and_run_above_its_runs(pages: Pages) -> None:
    for act, label in (("pause", "Resume"), ("resume", "Pause")):
        answer = pages.post(f"/jobs/{act}", what="task:remind", back="runs?task=remind")
        assert answer.location == "/jobs/runs?task=remind#message"
        pages.shows("runs?task=remind", f">{label}<", 'href="/jobs/run?name=remind"')
    pages.shows("runs?task=break_down", "Arguments", "word=…")
    pages.shows("runs?task=gone", "does not declare", hides=["/jobs/run?name", ">Pause<"])


def test_a_task_whose_name_a_definition_of_another_has_offers_no_form_of_that(pages: Pages) -> None:
    pages.define("break_down", job_type="remind")
    pages.shows("runs?task=break_down", "word=…", ">Pause<", hides=["Run with arguments"])
    pages.shows("definition?name=break_down", "Run with arguments")


# Bulk


def statuses(pages: Pages) -> list[str]:
    return [run.status for run in pages.runs()]


@pytest.mark.parametrize(
    ("status", "verbs"),
    [
        ("dead", "Retry Discard"), ("failed", "Retry Cancel"), ("queued", "Cancel"),
        ("cancelled", "Retry"), ("succeeded", ""),
    ],
)  # fmt: skip
def test_a_list_offers_what_can_be_done_to_those_shown_and_to_all(
    pages: Pages, status: str, verbs: str
) -> None:
    for _ in range(2):
        pages.add(status)
    for query in ("", f"?status={status}"):
        page = pages.text(f"runs{query}")
        assert re.findall(r'<button name="do"[^>]*>(\w+)…', page) == verbs.split()
        assert '<a class="button"' not in page
    page = pages.text(f"runs?status={status}&limit=1")
    assert re.findall(r'<a class="button" href="[^"]*">(\w+)…', page) == verbs.split()


def test_all_matching_runs_are_offered_though_the_first_that_are_counted_do_not_match(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.insights.run_list._COUNTED_ROWS", 2)
    for error_type in ("KeyError", "KeyError", "ValueError", "ValueError"):
        pages.add("dead", error_type=error_type)
    page = pages.text("runs?status=dead&error_type=ValueError&limit=1")
    assert re.findall(r'<a class="button" href="[^"]*">(\w+)…', page) == ["Retry", "Discard"]


def test_it_asks_and_then_discards_those_of_the_filter(pages: Pages) -> None:
    for error_type in ("ValueError", "ValueError", "KeyError"):
        pages.add("dead", error_type=error_type)
    query = "runs/bulk?do=discard&status=dead&error_type=ValueError"
    page = pages.shows(query, "<h1>Discard 2 runs?</h1>")
    fields = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page))
    assert fields == {"do": "discard", "status": "dead", "error_type": "ValueError"}
    assert statuses(pages) == ["dead", "dead", "dead"]
    answer = pages.post("/jobs/runs/bulk/act", **fields)
    assert answer.location == "/jobs/runs?status=dead&error_type=ValueError#message"
    assert statuses(pages) == ["cancelled", "cancelled", "dead"]
    pages.shows("runs", "2 runs are discarded.")


def test_retry_and_cancel_all_up_to_a_limit(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_cronjobs.web.bulk.RUNS_A_CLICK", 2)
    for status in ("dead", "dead", "dead", "running"):
        pages.add(status)
    pages.shows("runs/bulk?do=retry", "One click changes 2 of them.")
    again = "2 runs are queued again. 1 more is left; repeat the action to change them."
    assert pages.said(pages.post("/jobs/runs/bulk/act", do="retry", task="remind")) == again
    monkeypatch.undo()
    message = pages.said(pages.post("/jobs/runs/bulk/act", do="cancel", task="remind"))
    assert message == "2 runs are cancelled. 1 running run is asked to stop."


def test_question_before_a_bulk_action_opens_no_connection_of_bookkeeping(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.add("dead")
    monkeypatch.setattr(State, "bookkeeping", None)
    pages.shows("runs/bulk?do=retry", "All of them")


def test_what_cannot_be_done_with_all_is_refused(pages: Pages) -> None:
    pages.add("succeeded")
    form = {"do": "discard", "status": "succeeded"}
    question = pages.said(pages.get("/jobs/runs/bulk", query_string=form))
    assert question == pages.said(pages.post("/jobs/runs/bulk/act", **form))
    assert question.startswith("Nothing was changed.")
    assert pages.post("/jobs/runs/bulk/act", do="delete").status_code == 400
    assert pages.post("/jobs/runs/bulk/act").status_code == 400
    assert statuses(pages) == ["succeeded"]


# One run


def test_a_run_of_each_status_has_its_story_and_its_buttons_and_renews_itself(
    pages: Pages,
) -> None:
    for status, reason, buttons, seconds in (
        ("queued", "It waits for a worker: ", ["Cancel", "Run again"], "5"),
        ("running", "It is running on web-1:7", ["Cancel", "Run again"], "5"),
        ("succeeded", "It succeeded", ["Run again"], "60"),
        ("failed", "It waits for ", ["Retry", "Cancel", "Run again"], "15"),
        ("dead", "It gave up", ["Retry", "Discard", "Run again"], "60"),
        ("cancelled", "It was cancelled", ["Retry", "Run again"], "60"),
        ("skipped", "Its slot was skipped", ["Run again"], "60"),
    ):
        page = pages.shows(f"runs/{pages.add(status)}", reason)
        assert re.findall("<button[^>]*>([^<]*)", page) == buttons, status
        assert re.findall(r'data-refresh="(\d+)"', page) == [seconds], status


@pytest.mark.parametrize(
    ("status", "values", "message"),
    [
        ("running", {"locked_until": NOW - timedelta(minutes=5)}, "the lease ended"),
        ("running", {"cancel_requested_at": NOW}, "It was asked to stop."),
        ("running", {"progress": 0.25, "progress_message": "a quarter"}, "25 %</span>, a quarter"),
        ("queued", {"snoozes": 2, "error_type": "Snooze", "last_error": "the shop is closed"},
         "<dd>2 times: the shop is closed</dd>"),
        ("queued", {"run_at": NOW + timedelta(hours=23, minutes=30)},
         "It waits until it is due: in 23\N{NO-BREAK SPACE}h."),
    ],
)  # fmt: skip
def test_a_run_shows_what_is_special_about_it(
    pages: Pages, status: str, values: dict[str, Any], message: str
) -> None:
    pages.shows(f"runs/{pages.add(status, **values)}", message)
    assert ('value="0.25"' in pages.text("runs")) == ("progress" in values)


def test_a_run_says_its_error_first_and_once(pages: Pages) -> None:
    run_id = pages.add("dead", error_type="KeyError", last_error="no user 7", attempts=2)
    pages.failure(run_id, 1, error="no user 6")
    pages.failure(run_id, 2, error="no user 7", stack=None)
    page = pages.shows(f"runs/{run_id}", 'class="verdict bad"')
    places = [page.index(part) for part in ("KeyError:<wbr> no user 7", "It gave up", "no user 6")]
    assert places == sorted(places)
    assert page.count("no user 7") == 1
    retried = pages.add("failed", last_error="no user 8")
    pages.shows(f"runs/{retried}", "ValueError:<wbr> no user 8", "failed, and it will be retried.")
    cancelled = pages.add("cancelled", error_type="Cancelled", last_error="cancelled by ada")
    pages.shows(f"runs/{cancelled}", '<p class="cause">cancelled by ada</p>')


def test_a_run_shows_its_steps_and_for_what_it_waits(pages: Pages) -> None:
    later = NOW + timedelta(hours=1)
    run_id = pages.add("queued", run_at=later)
    pages.step(run_id, "<mail>", result={"password": "p4ss", "sum": 71})
    pages.step(run_id, "approved", "wait", finished_at=None, due_at=later)
    parts = (
        "&lt;mail&gt;",
        "71",
        "waits for a signal",
        "It waits for the signal approved: the wait",
    )
    pages.shows(f"runs/{run_id}", *parts, hides=["p4ss", ":token"])
    pages.hide_payloads()
    pages.shows(f"runs/{run_id}", "&lt;mail&gt;", hides=["71"])


def test_progress_of_a_run_at_work_is_said_once(pages: Pages) -> None:
    run_id = pages.add("running", progress=0.25, progress_message="a quarter")
    assert pages.text(f"runs/{run_id}").count("a quarter") == 1


@pytest.fixture
def failed(pages: Pages) -> int:
    """A run with two stacks and an output."""
    payload = {"user": 1, "api_token": "s3cr3t"}
    run_id = pages.add("dead", attempts=2, max_attempts=2, payload=payload, result="r3sult")
    for attempt in (1, 2):
        failure = {"worker": f"web-{attempt}:7:ab", "error": f"no {attempt}", "stack": STACK}
        pages.failure(run_id, attempt, **failure)
    output = "hello <b>\x1b[31m"
    pages.insert(JobOutput(run_id=run_id, attempt=1, worker="w:1:x", output=output))
    return run_id


def test_a_long_payload_is_folded(pages: Pages) -> None:
    pages.shows(f"runs/{pages.add(payload={'ids': [1, 2]})}", hides=["<details>"])
    folded = "<summary>Payload, 103 lines</summary>"
    pages.shows(f"runs/{pages.add(payload={'ids': list(range(99))})}", folded)


def test_a_run_shows_its_attempts_with_stacks_and_outputs(pages: Pages, failed: int) -> None:
    page = pages.shows(
        f"runs/{failed}",
        *("web-1:7", "&#34;user&#34;: 1", "***", "r3sult", "after attempt 2 of 2", "no 1"),
        *("hello &lt;b&gt;\ufffd[31m", f'href="/jobs/runs/{failed}?frames=1">Show the frames'),
        hides=["web-1:7:ab", "s3cr3t", "runner.py"],
    )
    assert page.index("Attempt 2 failed") < page.index("Attempt 1 failed")
    assert page.count("flask_cronjobs_tasks.py") == 2
    without = f'href="/jobs/runs/{failed}">Hide the frames'
    pages.shows(f"runs/{failed}?frames=1", "runner.py", without)
    pages.hide_payloads()
    hides = ["hello", "flask_cronjobs_tasks.py", "&#34;user", "r3sult"]
    pages.shows(f"runs/{failed}", "no 1", "CRONJOBS_SHOW_PAYLOAD", hides=hides)


def test_what_an_attempt_said_that_was_given_back_is_shown_while_its_run_waits(
    pages: Pages,
) -> None:
    run_id = pages.add("queued", started_at=NOW)
    pages.insert(JobOutput(run_id=run_id, attempt=1, worker="web-1:7:ab", output="so far"))
    pages.shows(f"runs/{run_id}", "Attempt 1 released", "on web-1:7", "so far", hides=["No att"])
    pages.hide_payloads()
    pages.shows(f"runs/{run_id}", "Attempt 1 released", hides=["so far"])


def test_stacks_leave_our_own_frames_out() -> None:
    frames = without_own_frames(STACK)
    assert frames == (
        "Traceback (most recent call last):\n"
        '  File "/srv/shop/flask_cronjobs_tasks.py", line 3, in send\n'
        "    return post()\n"
        "ValueError: no\n"
    )
    assert without_own_frames(frames) == frames
    for path in Path(flask_cronjobs.__file__).parent.rglob("*.py"):
        frame = f'  File "{path}", line 3, in send\n    return post()\n'
        assert without_own_frames(f"Traceback:\n{frame}ValueError: no\n").count("\n") == 2, path


def test_an_error_that_is_no_text_spoils_no_list(pages: Pages, state: State) -> None:
    run_id = pages.add("dead", error_type="ValueError", last_error="boom")
    with state.engine.begin() as connection:
        connection.execute(text("UPDATE job_runs SET last_error = x'ff0061'"))
    for path in ("", "runs", "runs?status=dead", f"runs/{run_id}"):
        pages.text(path)


@on_both
def test_runs_that_are_due_in_9999_have_a_next_page(pages: Pages) -> None:
    """Some enqueue runs that are to wait for ever."""
    for _ in range(2):
        pages.add("queued", run_at=NOW.replace(year=9999, month=12, day=29))
    first = pages.text("runs?status=queued&limit=1")
    (link,) = re.findall(r'<a rel="next" href="/jobs/([^"]*)"', first)
    assert "#2</span>" in pages.text(html.unescape(link))


@on_both
def test_a_time_that_is_after_9999_in_the_zone_of_the_pages_spoils_no_list(
    pages: Pages, state: State
) -> None:
    """Some write the end of time for a run that is to wait for ever."""
    object.__setattr__(state.settings, "timezone", "Asia/Tokyo")
    run = pages.add("queued")
    with state.engine.begin() as connection:
        end = "'9999-12-31 23:30:00.000000'"
        connection.execute(text(f"UPDATE job_runs SET run_at = {end}, scheduled_for = {end}"))
    for path in ("runs", "runs?status=queued", f"runs/{run}", "workers", ""):
        pages.text(path)
    assert "Fri 31 Dec 9999" in pages.text("runs?status=queued")


def test_question_shows_the_first_runs_and_the_split_by_error(pages: Pages) -> None:
    ids = [pages.add("dead", error_type="KeyError" if n == 0 else "ValueError") for n in range(12)]
    page = pages.shows(
        "runs/bulk?do=retry&status=dead", "11 of remind, ValueError", "1 of remind, KeyError",
        "The first 10", f"#{ids[-1]}<", f"#{ids[2]}<", "Back, change nothing",
        hides=[f"#{ids[1]}<", 'name="picked"'],
    )  # fmt: skip
    assert "of the first" not in page


def test_picked_runs_are_changed_and_no_others(pages: Pages) -> None:
    first, second, third = (pages.add("dead") for _ in range(3))
    queued = pages.add("queued")
    listed = pages.shows("runs?status=dead", f'name="id" value="{first}" form="picked"')
    assert 'id="picked"' in listed
    query = f"do=retry&status=dead&picked=1&id={first}&id={second}&id={queued}"
    page = pages.shows(f"runs/bulk?{query}", "Retry 2 runs?", "1 other selected run", "All of them")
    fields = re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', page)
    assert [value for name, value in fields if name == "id"] == [str(second), str(first)]
    answer = pages.client.post(
        "/jobs/runs/bulk/act",
        data={"do": "retry", "status": "dead", "picked": "1", "id": [first, second]},
        headers=OWN,
    )
    assert pages.said(answer) == "2 runs are queued again."
    assert [pages.status(id_) for id_ in (first, second, third)] == ["queued", "queued", "dead"]


def test_nothing_picked_is_not_all(pages: Pages) -> None:
    dead = pages.add("dead")
    answer = pages.get("/jobs/runs/bulk?do=retry&status=dead&picked=1")
    assert pages.said(answer) == "No run is selected. Select one or more, then repeat the action."
    acted = pages.post("/jobs/runs/bulk/act", do="retry", status="dead", picked="1")
    assert pages.said(acted) == "No run is selected. Select one or more, then repeat the action."
    assert pages.status(dead) == "dead"
    assert pages.get("/jobs/runs/bulk?do=retry&picked=1&id=x").status_code == 400


@pytest.mark.parametrize("typed", ["password:s3cr3t", "password=s3cr3t", "x: token=s3cr3t"])
def test_operations_do_not_tell_others_a_secret_that_was_searched(
    pages: Pages, typed: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pages.post("/jobs/runs/bulk/act", do="retry", status="dead", q=typed, error=f"a {typed}")
    pages.shows("", "status dead", "search", "***", hides=["s3cr3t"])
    assert "s3cr3t" not in caplog.text


def test_each_picked_run_counts_once_and_none_is_left_out_in_silence(pages: Pages) -> None:
    last = [pages.add("dead") for _ in range(3)][-1]

    def pick(*ids: int) -> str:
        data: dict[str, Any] = {"do": "retry", "picked": "1", "id": list(ids)}
        return pages.said(pages.client.post("/jobs/runs/bulk/act", data=data, headers=OWN))

    assert pick(*[1] * 10_050) == "1 run is queued again."
    assert pick(*range(1000, 1200), last) == (
        "1 run is queued again. 200 are unchanged; to see why, try one of them alone."
    )
