"""The list of runs and the page of one run: filters, heads, stacks, output, JSON."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

import flask_cronjobs
from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.runs import list as run_list
from flask_cronjobs.jobs.runs.detail import without_own_frames
from flask_cronjobs.jobs.runs.filters import Cursor
from flask_cronjobs.jobs.state import State, state_of
from flask_cronjobs.models import JobFailure, JobOutput
from flask_cronjobs.web.params import cursor, cursor_text
from tests.marks import on_sqlite
from tests.web.conftest import NOW

Add = Callable[..., int]

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


@pytest.mark.parametrize(
    "typed", [{"newer": "24h"}, {"older": "90 MIN"}, {"q": ' "x" <y>'}, {"error": "a+b c"}]
)
def test_filters_come_back_as_they_were_typed(client: FlaskClient, typed: dict[str, str]) -> None:
    page = client.get("/jobs/runs", query_string=typed).text
    assert {name: value(page, name) for name in typed} == typed


def test_a_filter_that_cannot_be_read_keeps_the_others(client: FlaskClient, add: Add) -> None:
    add()
    answer = client.get("/jobs/runs?older=soon&task=remind&status=dead")
    assert answer.status_code == 400
    assert (value(answer.text, "older"), value(answer.text, "task")) == ("soon", "remind")
    assert "<option selected>dead</option>" in answer.text
    assert 'role="alert">older must be an age' in answer.text


def test_pages_in_the_order_of_deaths_link_on(client: FlaskClient, add: Add) -> None:
    made = [add("dead", finished_at=NOW - timedelta(minutes=age)) for age in (5, 1, 9, 3)]
    seen: list[int] = []
    page = ""
    path: str | None = "/jobs/runs?status=dead&limit=2"
    while path:
        page = client.get(path).text
        seen += [int(each) for each in re.findall(r'href="/jobs/runs/(\d+)"', page)]
        link = re.search('rel="next" href="([^"]*)"', page)
        path = html.unescape(link[1]) + "&limit=2" if link else None
    assert seen == [made[at] for at in (1, 3, 0, 2)]
    assert "Died" in page
    assert "latest death first" in page


def test_heads_say_what_the_times_are(client: FlaskClient, add: Add) -> None:
    add("queued")
    assert "<span>Due</span>" in client.get("/jobs/runs?status=queued").text
    assert "<span>Scheduled for</span>" in client.get("/jobs/runs").text


def test_a_search_that_stops_says_how_far_it_went(
    client: FlaskClient, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 3)
    for _ in range(5):
        add("succeeded")
    page = client.get("/jobs/runs?q=nowhere").text
    assert re.search("None found, searched back to <time", page)
    assert "Search further back" in page


def test_a_misspelled_task_is_suggested(client: FlaskClient, add: Add) -> None:
    add()
    page = html.unescape(client.get("/jobs/runs?task=remnid").text)
    assert "Did you mean 'remind'?" in page
    assert '<option value="break_down">' in page


def test_the_placeholder_promises_no_search_of_hidden_payloads(
    app: Flask, client: FlaskClient
) -> None:
    assert "of a payload" in client.get("/jobs/runs").text
    object.__setattr__(app.extensions["cronjobs"].settings, "show_payload", False)
    assert "of a payload" not in client.get("/jobs/runs").text


@pytest.mark.parametrize("moment", [None, NOW, NOW.replace(microsecond=1)])
def test_a_cursor_reads_what_it_wrote(moment: Any) -> None:
    made = Cursor(7, moment)
    assert cursor({"before": cursor_text(made)}, "before") == made


@pytest.mark.parametrize("text", ["1_x", "1_-5", "1_99999999999999999999", "x_1", "1_2_3"])
def test_a_cursor_of_others_is_refused(client: FlaskClient, text: str) -> None:
    assert client.get(f"/jobs/runs?before={text}").status_code == 400


# One run


@pytest.fixture
def failed(app: Flask, db: SQLAlchemy, add: Add) -> int:
    """A run with a stack and an output."""
    run_id = add("dead")
    with app.app_context():
        failure = {"error_type": "ValueError", "error": "no", "stack": STACK}
        db.session.add(JobFailure(run_id=run_id, attempt=1, worker="w:1:x", **failure))
        said = "hello <b>\x1b[31m"
        db.session.add(JobOutput(run_id=run_id, attempt=1, worker="w:1:x", output=said))
        db.session.commit()
    return run_id


def test_stacks_leave_our_own_frames_out() -> None:
    kept = without_own_frames(STACK)
    assert kept == (
        "Traceback (most recent call last):\n"
        '  File "/srv/shop/flask_cronjobs_tasks.py", line 3, in send\n'
        "    return post()\n"
        "ValueError: no\n"
    )
    assert without_own_frames(kept) == kept


def test_frames_of_each_module_are_ours() -> None:
    for path in Path(flask_cronjobs.__file__).parent.rglob("*.py"):
        frame = f'  File "{path}", line 3, in send\n    return post()\n'
        assert without_own_frames(f"Traceback:\n{frame}ValueError: no\n").count("\n") == 2, path


def test_our_frames_come_back_by_a_link(client: FlaskClient, failed: int) -> None:
    page = client.get(f"/jobs/runs/{failed}").text
    assert "runner.py" not in page
    assert f'href="/jobs/runs/{failed}?frames=1">With the frames' in page
    whole = client.get(f"/jobs/runs/{failed}?frames=1").text
    assert "runner.py" in whole
    assert f'href="/jobs/runs/{failed}">Without the frames' in whole


def test_output_is_shown_as_text(client: FlaskClient, failed: int) -> None:
    page = client.get(f"/jobs/runs/{failed}").text
    assert "hello &lt;b&gt;\ufffd[31m" in page


def test_output_is_hidden_with_the_payload(app: Flask, client: FlaskClient, failed: int) -> None:
    object.__setattr__(app.extensions["cronjobs"].settings, "show_payload", False)
    assert "hello" not in client.get(f"/jobs/runs/{failed}").text
    data = json.loads(client.get(f"/jobs/runs/{failed}?format=json").text)
    (attempt,) = data["attempts"]
    assert (attempt["output"], attempt["stack"], data["payload"]) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "seconds"), [("running", 5), ("queued", 5), ("failed", 15), ("dead", None)]
)
def test_a_run_that_goes_on_renews_itself(
    client: FlaskClient, add: Add, status: str, seconds: int | None
) -> None:
    found = re.search(r'data-refresh="(\d+)"', client.get(f"/jobs/runs/{add(status)}").text)
    assert (int(found[1]) if found else None) == seconds


def test_the_first_page_of_the_list_renews_itself(client: FlaskClient) -> None:
    assert 'data-refresh="15"' in client.get("/jobs/runs").text
    assert "data-refresh" not in client.get("/jobs/runs?before=9").text


@pytest.mark.parametrize("status", ["dead", "queued"])
def test_dead_run_has_a_button_to_discard_it(client: FlaskClient, add: Add, status: str) -> None:
    run_id = add(status)
    form = f'action="/jobs/runs/{run_id}/discard"'
    assert (form in client.get(f"/jobs/runs/{run_id}").text) == (status == "dead")


# JSON


def test_each_page_that_reads_is_data_for_scripts(
    client: FlaskClient, add: Add, ticked: Callable[..., None], define: Callable[..., int]
) -> None:
    run_id = add("dead", payload={"user": 1})
    ticked()
    define()
    keys = {
        "": "verdict", "runs": "runs", f"runs/{run_id}": "payload", "effects": "effects",
        "ticks": "ticks", "definitions": "definitions", "definition?name=remind": "view",
        "task?name=remind": "runs", "runs/bulk?do=retry&status=dead": "count",
    }  # fmt: skip
    for path, key in keys.items():
        answer = client.get(f"/jobs/{path}{'&' if '?' in path else '?'}format=json")
        assert (answer.status_code, answer.mimetype) == (200, "application/json"), path
        assert key in json.loads(answer.text), path
        assert answer.headers["Cache-Control"] == "no-store"
    listed = json.loads(client.get("/jobs/runs?format=json").text)
    assert listed["runs"][0]["id"] == run_id


def test_data_is_paged_by_its_cursor(client: FlaskClient, add: Add) -> None:
    made = [add("dead", finished_at=NOW - timedelta(minutes=age)) for age in (1, 2, 3)]
    first = json.loads(client.get("/jobs/runs?format=json&status=dead&limit=2").text)
    query = {"format": "json", "status": "dead", "limit": "2", "before": first["before"]}
    second = json.loads(client.get("/jobs/runs", query_string=query).text)
    assert [row["id"] for row in first["runs"] + second["runs"]] == made
    assert second["before"] is None


@pytest.mark.parametrize(
    ("path", "code"), [("runs/99", 404), ("runs?status=x", 400), ("effects?before=x", 400)]
)
def test_errors_are_data_too(client: FlaskClient, path: str, code: int) -> None:
    answer = client.get(f"/jobs/{path}{'&' if '?' in path else '?'}format=json")
    assert (answer.status_code, answer.mimetype) == (code, "application/json")
    assert json.loads(answer.text)["error"]


def test_data_is_for_those_who_may_read(client: FlaskClient, rights: set[str]) -> None:
    rights.clear()
    assert client.get("/jobs/runs?format=json").status_code == 403


def test_redacted_values_stay_hidden_in_data(client: FlaskClient, add: Add) -> None:
    run_id = add("dead", payload={"token": "hunter2"})
    assert "hunter2" not in client.get(f"/jobs/runs/{run_id}?format=json").text


def test_the_data_of_a_definition_has_no_payload_that_its_page_hides(
    app: Flask, jobs: CronJobs, client: FlaskClient, define: Callable[..., int]
) -> None:
    define(payload={"to": "ada"})
    url = "/jobs/definition?name=remind&format=json"
    assert client.get(url).get_json()["payload"] == {"to": "ada"}
    object.__setattr__(state_of(app).settings, "show_payload", False)
    assert client.get(url).get_json()["payload"] is None


@on_sqlite
def test_an_error_that_is_no_text_spoils_no_list(
    client: FlaskClient, add: Add, state: State
) -> None:
    add("dead", error_type="ValueError", last_error="boom")
    run_id = add("dead", error_type="ValueError", last_error="boom")
    with state.engine.begin() as connection:
        odd = text("UPDATE job_runs SET last_error = x'ff0061' WHERE id = :id")
        connection.execute(odd, {"id": run_id})
    for path in ("", "runs", "runs?status=dead", "runs?format=json", f"runs/{run_id}"):
        assert client.get(f"/jobs/{path}").status_code == 200, path
