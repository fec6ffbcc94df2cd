"""The list of runs, what can be done with all of it, and the page of one run."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import flask_cronjobs
from flask_cronjobs.jobs.runs import list as run_list
from flask_cronjobs.jobs.runs.detail import without_own_frames
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobOutput
from flask_cronjobs.web.format import differences

from .conftest import NOW, OWN, Pages

STACK = """Traceback (most recent call last):
  File "/srv/lib/flask_cronjobs/engine/worker/runner.py", line 12, in _armed
    value = handler.call(**claim.payload)
            ^^^^^^^^^^^^
  File "/srv/shop/flask_cronjobs_tasks.py", line 3, in send
    return post()
  File "/srv/lib/flask_cronjobs/once.py", line 9, in once
    func()
ValueError: no
"""


def value(page: str, name: str) -> str:
    """The value of a field of the filter."""
    found = re.search(rf'<input[^>]* name="{name}" value="([^"]*)"', page)
    assert found
    return html.unescape(found[1])


def test_runs_are_filtered(pages: Pages) -> None:
    pages.add("queued")
    pages.add("dead", queue="mail", error_type="KeyError")
    pages.add("succeeded", job_type="break_down")
    shown = {
        "": "321", "status=dead": "2", "task=break_down": "3", "queue=mail": "2", "error=KEYE": "2",
        "older=1d": "", "newer=1h": "321", "status=&task=&queue=&error=&newer=&older=": "321",
        "q=break": "3", "q=2": "2", "overdue=1": "",
    }  # fmt: skip
    for query, ids in shown.items():
        assert "".join(re.findall(r">#(\d+)<", pages.text(f"runs?{query}"))) == ids, query
    pages.shows("runs?task=nothing", "No runs match")
    pages.shows("runs?status=succeeded&before=1", "no older runs")


def test_lists_and_the_run_name_its_label(pages: Pages) -> None:
    run_id = pages.add("dead", job_type="mail", label="invoice <7>")
    for path in ("runs", f"runs/{run_id}", "task?name=mail"):
        pages.shows(path, "invoice &lt;7&gt;")


def test_filters_come_back_as_they_were_typed_also_beside_one_that_cannot_be_read(
    pages: Pages,
) -> None:
    typed = {"newer": "24h", "older": "90 MIN", "q": ' "x" <y>', "error": "a+b c"}
    page = pages.get("/jobs/runs", query_string=typed).text
    assert {name: value(page, name) for name in typed} == typed
    answer = pages.get("/jobs/runs?older=soon&task=remind&status=dead")
    assert answer.status_code == 400
    assert (value(answer.text, "older"), value(answer.text, "task")) == ("soon", "remind")
    assert "<option selected>dead</option>" in answer.text
    assert 'role="alert">older must be an age' in answer.text


def test_heads_say_what_the_times_are_and_how_the_list_is_ordered(pages: Pages) -> None:
    made = [pages.add("dead", finished_at=NOW - timedelta(minutes=age)) for age in (5, 1, 9, 3)]
    page = pages.shows("runs?status=dead", "<span>Died</span>", "latest death first")
    assert re.findall(r">#(\d+)<", page) == [str(made[at]) for at in (1, 3, 0, 2)]
    pages.add("queued")
    pages.shows("runs?status=queued", "<span>Due</span>", "first due first")
    pages.shows("runs", "<span>Scheduled for</span>", "newest first")


def test_a_search_that_stops_says_how_far_it_went(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 3)
    for _ in range(5):
        pages.add("succeeded")
    pages.shows("runs?q=nowhere", "None found, searched back to <time", "Search further back")


def test_a_misspelled_task_is_suggested(pages: Pages) -> None:
    page = pages.shows("runs?task=remnid", '<option value="break_down">')
    assert "Did you mean 'remind'?" in html.unescape(page)


# All runs of a list


def statuses(pages: Pages) -> list[str]:
    return [run.status for run in pages.runs()]


def test_a_list_offers_what_can_be_done_with_all_of_it(pages: Pages) -> None:
    offered = {
        "": "", "?status=dead": "Retry Discard", "?status=failed": "Retry Cancel",
        "?status=queued": "Cancel", "?status=cancelled": "Retry", "?status=succeeded": "",
        "?task=remind": "Retry Cancel Discard",
    }  # fmt: skip
    for status in ("dead", "failed", "queued", "cancelled", "succeeded"):
        pages.add(status)
    for query, verbs in offered.items():
        found = re.findall(r'<a class="button" href="[^"]*">(\w+)…', pages.text(f"runs{query}"))
        assert found == verbs.split(), query


def test_it_asks_and_then_discards_those_of_the_filter(pages: Pages) -> None:
    for error_type in ("ValueError", "ValueError", "KeyError"):
        pages.add("dead", error_type=error_type)
    asked = "runs/bulk?do=discard&status=dead&error_type=ValueError"
    page = pages.shows(asked, "<h1>Discard 2 runs?</h1>")
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
    again = "2 runs are queued again. 1 more is left; do the same again for the next ones."
    assert pages.said(pages.post("/jobs/runs/bulk/act", do="retry", task="remind")) == again
    monkeypatch.undo()
    said = pages.said(pages.post("/jobs/runs/bulk/act", do="cancel", task="remind"))
    assert said == "2 runs are cancelled. 1 running run is asked to stop."


def test_what_cannot_be_done_with_all_is_refused(pages: Pages) -> None:
    pages.add("succeeded")
    form = {"do": "discard", "status": "succeeded"}
    asked = pages.said(pages.get("/jobs/runs/bulk", query_string=form))
    assert asked == pages.said(pages.post("/jobs/runs/bulk/act", **form))
    assert asked.startswith("Nothing was changed.")
    assert pages.post("/jobs/runs/bulk/act", do="delete").status_code == 400
    assert pages.post("/jobs/runs/bulk/act").status_code == 400
    assert statuses(pages) == ["succeeded"]


# One run


def test_a_run_of_each_status_has_its_story_and_its_buttons_and_renews_itself(
    pages: Pages,
) -> None:
    for status, said, buttons, seconds in (
        ("queued", "It waits for a worker: ", ["Cancel", "Run again"], "5"),
        ("running", "It is running on web-1:7", ["Cancel", "Run again"], "5"),
        ("succeeded", "It succeeded", ["Run again"], "60"),
        ("failed", "It waits for ", ["Retry", "Cancel", "Run again"], "15"),
        ("dead", "It gave up", ["Retry", "Discard", "Run again"], "60"),
        ("cancelled", "It was cancelled", ["Retry", "Run again"], "60"),
        ("skipped", "Its slot was skipped", ["Run again"], "60"),
    ):
        page = pages.shows(f"runs/{pages.add(status)}", said)
        assert re.findall("<button[^>]*>([^<]*)", page) == buttons, status
        assert re.findall(r'data-refresh="(\d+)"', page) == [seconds], status


@pytest.mark.parametrize(
    ("status", "values", "said"),
    [
        ("running", {"locked_until": NOW - timedelta(minutes=5)}, "the lease ran out"),
        ("running", {"cancel_requested_at": NOW}, "It was asked to stop."),
        ("running", {"progress": 0.25, "progress_message": "a quarter"}, "25 %, a quarter"),
        ("queued", {"snoozes": 2, "error_type": "Snooze", "last_error": "the shop is closed"},
         "<dd>2 times: the shop is closed</dd>"),
        ("queued", {"run_at": NOW + timedelta(hours=23, minutes=30)},
         "It waits for its time: in 23 h."),
    ],
)  # fmt: skip
def test_a_run_tells_what_is_special_about_it(
    pages: Pages, status: str, values: dict[str, Any], said: str
) -> None:
    pages.shows(f"runs/{pages.add(status, **values)}", said)
    assert ('value="0.25"' in pages.text("runs")) == ("progress" in values)


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
    said = "hello <b>\x1b[31m"
    pages.insert(JobOutput(run_id=run_id, attempt=1, worker="w:1:x", output=said))
    return run_id


def fail(pages: Pages, run_id: int) -> None:
    """Add the first attempt of a run, which began 30 s ago and took 15 s."""
    started = NOW - timedelta(seconds=30)
    pages.failure(run_id, 1, started_at=started, failed_at=started + timedelta(seconds=15))


def test_the_life_of_a_run_that_goes_on_lasts_until_now(pages: Pages) -> None:
    started = NOW - timedelta(seconds=30)
    retried = pages.add("queued", attempts=1)
    fail(pages, retried)
    pages.shows(f"runs/{retried}", "attempt 1 failed after 15 s, has waited ")
    running = pages.add("running", attempts=1, run_at=started, started_at=started)
    pages.shows(f"runs/{running}", "attempt 1 has run ", " so far")


def test_a_dead_run_shows_its_life_and_what_differs_from_the_last_success(
    pages: Pages, failed: int
) -> None:
    good = pages.add("succeeded", payload={"user": 2, "api_token": "0ther"})
    assert good > failed
    due = NOW - timedelta(minutes=1)
    dead = pages.add("dead", scheduled_for=due, payload={"user": 1, "api_token": "s3cr3t"})
    fail(pages, dead)
    page = pages.shows(
        f"runs/{dead}", "waited 30 s, attempt 1 failed after 15 s", "1 other run",
        "<del>-  &#34;user&#34;: 2,</del>", "<ins>+  &#34;user&#34;: 1,</ins>",
        hides=["0ther", "s3cr3t"],
    )  # fmt: skip
    boxes = re.findall(r'<rect x="([\d.]+)" [^>]* width="([\d.]+)"', page)
    assert [tuple(map(float, box)) for box in boxes] == [(0, 666.7), (666.7, 333.3)]
    for path in ("", "?format=json"):
        pages.hide_payloads()
        assert '"user"' not in html.unescape(pages.get(f"/jobs/runs/{dead}{path}").text)


def test_a_long_payload_is_folded(pages: Pages) -> None:
    pages.shows(f"runs/{pages.add(payload={'ids': [1, 2]})}", hides=["<details>"])
    folded = "<summary>Payload, 103 lines</summary>"
    pages.shows(f"runs/{pages.add(payload={'ids': list(range(99))})}", folded)


def test_a_run_shows_its_attempts_with_stacks_and_outputs(pages: Pages, failed: int) -> None:
    page = pages.shows(
        f"runs/{failed}",
        *("web-1:7", "&#34;user&#34;: 1", "***", "r3sult", "after attempt 2 of 2", "no 1"),
        *("hello &lt;b&gt;\ufffd[31m", f'href="/jobs/runs/{failed}?frames=1">With the frames'),
        hides=["web-1:7:ab", "s3cr3t", "runner.py"],
    )
    assert page.index("Attempt 2 failed") < page.index("Attempt 1 failed")
    assert page.count("flask_cronjobs_tasks.py") == 2
    without = f'href="/jobs/runs/{failed}">Without the frames'
    pages.shows(f"runs/{failed}?frames=1", "runner.py", without)
    pages.hide_payloads()
    hides = ["hello", "flask_cronjobs_tasks.py", "&#34;user", "r3sult"]
    pages.shows(f"runs/{failed}", "no 1", "CRONJOBS_SHOW_PAYLOAD", hides=hides)
    data = pages.data(f"runs/{failed}")
    hidden = [(attempt["output"], attempt["stack"]) for attempt in data["attempts"]]
    assert (hidden, data["payload"], data["result"]) == ([(None, None)] * 2, None, None)


def test_what_an_attempt_said_that_was_given_back_is_shown_while_its_run_waits(
    pages: Pages,
) -> None:
    run_id = pages.add("queued", started_at=NOW)
    pages.insert(JobOutput(run_id=run_id, attempt=1, worker="web-1:7:ab", output="so far"))
    pages.shows(f"runs/{run_id}", "Attempt 1 released", "on web-1:7", "so far", hides=["No att"])
    pages.hide_payloads()
    pages.shows(f"runs/{run_id}", "Attempt 1 released", hides=["so far"])


def test_stacks_leave_our_own_frames_out() -> None:
    kept = without_own_frames(STACK)
    assert kept == (
        "Traceback (most recent call last):\n"
        '  File "/srv/shop/flask_cronjobs_tasks.py", line 3, in send\n'
        "    return post()\n"
        "ValueError: no\n"
    )
    assert without_own_frames(kept) == kept
    for path in Path(flask_cronjobs.__file__).parent.rglob("*.py"):
        frame = f'  File "{path}", line 3, in send\n    return post()\n'
        assert without_own_frames(f"Traceback:\n{frame}ValueError: no\n").count("\n") == 2, path


def test_an_error_that_is_no_text_spoils_no_list(pages: Pages, state: State) -> None:
    run_id = pages.add("dead", error_type="ValueError", last_error="boom")
    with state.engine.begin() as connection:
        connection.execute(text("UPDATE job_runs SET last_error = x'ff0061'"))
    for path in ("", "runs", "runs?status=dead", "runs?format=json", f"runs/{run_id}"):
        pages.text(path)


def test_question_shows_the_first_runs_and_the_split_by_error(pages: Pages) -> None:
    ids = [pages.add("dead", error_type="KeyError" if n == 0 else "ValueError") for n in range(12)]
    asked = pages.shows(
        "runs/bulk?do=retry&status=dead", "11 of remind, ValueError", "1 of remind, KeyError",
        "The first 10", f"#{ids[-1]}<", f"#{ids[2]}<", "Back, change nothing",
        hides=[f"#{ids[1]}<", 'name="picked"'],
    )  # fmt: skip
    assert "of the first" not in asked
    assert pages.data("runs/bulk?do=retry&status=dead")["preview"]["looked_at"] == 12


def test_picked_runs_are_changed_and_no_others(pages: Pages) -> None:
    first, second, third = (pages.add("dead") for _ in range(3))
    done = pages.add("queued")
    listed = pages.shows("runs?status=dead", f'name="id" value="{first}" form="picked"')
    assert 'id="picked"' in listed
    query = f"do=retry&status=dead&picked=1&id={first}&id={second}&id={done}"
    asked = pages.shows(f"runs/bulk?{query}", "Retry 2 runs?", "1 other picked run", "Each of them")
    fields = re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', asked)
    assert [value for name, value in fields if name == "id"] == [str(second), str(first)]
    answer = pages.client.post(
        "/jobs/runs/bulk/act",
        data={"do": "retry", "status": "dead", "picked": "1", "id": [first, second]},
        headers=OWN,
    )
    assert pages.said(answer) == "2 runs are queued again."
    assert [pages.status(each) for each in (first, second, third)] == ["queued", "queued", "dead"]


def test_nothing_picked_is_not_all(pages: Pages) -> None:
    dead = pages.add("dead")
    answer = pages.get("/jobs/runs/bulk?do=retry&status=dead&picked=1")
    assert pages.said(answer) == "No run is picked."
    acted = pages.post("/jobs/runs/bulk/act", do="retry", status="dead", picked="1")
    assert pages.said(acted) == "No run is picked."
    assert (pages.status(dead), pages.data("operations")["operations"]) == ("dead", [])
    assert pages.get("/jobs/runs/bulk?do=retry&picked=1&id=x").status_code == 400


def test_no_text_in_a_payload_hides_a_line_that_differs() -> None:
    # U+2028 stays as it is in JSON, and ends a line.
    before, after = "x\u2028-- paid\u2028@@ 1", "x\u2028++ unpaid\u2028@@ 2"
    assert differences(before, after) == ["--- paid", '-@@ 1"', "+++ unpaid", '+@@ 2"']
    assert differences(before, before) == []


@pytest.mark.parametrize("typed", ["password=s3cr3t", "x: token=s3cr3t"])
def test_operations_do_not_tell_others_a_secret_that_was_searched(
    pages: Pages, typed: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pages.post("/jobs/runs/bulk/act", do="retry", status="dead", q=typed, error=f"a {typed}")
    pages.shows("operations", "status dead", "search", "***", hides=["s3cr3t"])
    assert "s3cr3t" not in str(pages.data("operations")) + caplog.text
    pages.post("/jobs/runs/bulk/act", do="retry", q="customer_id:4711")
    assert "customer_id:4711" in pages.data("operations")["operations"][0]["target"]


def test_each_picked_run_counts_once_and_none_is_left_out_in_silence(pages: Pages) -> None:
    last = [pages.add("dead") for _ in range(3)][-1]

    def pick(*ids: int) -> str:
        data: dict[str, Any] = {"do": "retry", "picked": "1", "id": list(ids)}
        return pages.said(pages.client.post("/jobs/runs/bulk/act", data=data, headers=OWN))

    assert pick(*[1] * 10_050) == "1 run is queued again."
    assert pick(*range(1000, 1200), last) == (
        "1 run is queued again. 200 are left as before; to see why, try one alone."
    )
