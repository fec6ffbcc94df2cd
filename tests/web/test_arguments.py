"""The forms for arguments: run now, run again, retry with another payload."""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun

Post = Callable[..., TestResponse]
Add = Callable[..., int]


@pytest.fixture
def jobs(jobs: CronJobs) -> CronJobs:
    @jobs.task
    def send(user: int, word: str = "a", token: str = "") -> None:
        """Send one letter.

        It is <b>long</b>.
        """

    return jobs


@pytest.fixture
def runs(app: Flask, db: SQLAlchemy) -> Callable[[], list[JobRun]]:
    def runs() -> list[JobRun]:
        with app.app_context():
            return list(db.session.scalars(select(JobRun).order_by(JobRun.id)))

    return runs


def typed(answer: TestResponse) -> str:
    """What is in the form's text field, as a browser shows it."""
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", answer.text, re.DOTALL)
    assert found, answer.text
    return html.unescape(found[1])


def test_forms_do_not_show_default_values(client: FlaskClient, jobs: CronJobs) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    @jobs.task
    def call(password: str = "hunter2", *, by: object = Unprintable()) -> None: ...

    answer = client.get("/jobs/run?name=call")
    assert answer.status_code == 200
    assert "call(password: str = …, *, by: object = …)" in answer.text


def test_form_for_a_run_shows_its_handler_and_its_payload(client: FlaskClient, add: Add) -> None:
    run_id = add("dead", job_type="send", payload={"user": 1, "word": "</textarea>", "token": "x"})
    answer = client.get(f"/jobs/runs/{run_id}/edit")
    assert answer.status_code == 200
    assert "send(user: int, word: str = …, token: str = …)" in answer.text
    assert "It is &lt;b&gt;long" in answer.text
    assert json.loads(typed(answer)) == {"user": 1, "word": "</textarea>", "token": "***"}


def test_retry_with_another_payload_keeps_hidden_values(
    client: FlaskClient, post: Post, add: Add, runs: Callable[[], list[JobRun]],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    run_id = add("dead", job_type="send", payload={"user": 1, "token": "x"})
    with caplog.at_level(logging.INFO, "flask_cronjobs"):
        answer = post(f"/jobs/runs/{run_id}/retry", payload='{"user": 2, "token": "***"}')
    assert answer.headers["Location"] == f"/jobs/runs/{run_id}#message"
    (run,) = runs()
    assert (run.status, run.payload) == ("queued", {"user": 2, "token": "x"})
    assert any("another payload" in line and "ada" in line for line in caplog.messages)


def test_run_again_leads_to_the_new_run(
    client: FlaskClient, post: Post, add: Add, runs: Callable[[], list[JobRun]]
) -> None:
    run_id = add("succeeded", job_type="send", payload={"user": 1})
    answer = post(f"/jobs/runs/{run_id}/again")
    new = runs()[-1]
    assert answer.headers["Location"] == f"/jobs/runs/{new.id}#message"
    assert f"This is a new run, like run {run_id}." in client.get(f"/jobs/runs/{new.id}").text
    assert (new.id != run_id, new.payload, new.status) == (True, {"user": 1}, "queued")


def test_run_now_with_arguments(client: FlaskClient, post: Post, runs: Any) -> None:
    form = client.get("/jobs/run?name=send")
    assert json.loads(typed(form)) == {"user": None}
    answer = post("/jobs/definitions/run", name="send", payload='{"user": 5}')
    (run,) = runs()
    assert answer.headers["Location"] == f"/jobs/runs/{run.id}#message"
    assert (run.job_type, run.payload) == ("send", {"user": 5})


def test_form_for_a_definition_has_its_payload(
    client: FlaskClient, define: Callable[..., int]
) -> None:
    define("nightly", job_type="send", payload={"user": 9, "token": "x"})
    shown = json.loads(typed(client.get("/jobs/run?name=nightly")))
    assert shown == {"user": 9, "token": "***"}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ('{"user": 1', "is not JSON"),
        ("[1]", "not a JSON object"),
        ('{"usr": 1}', "usr"),
        ("[" * 100_000, "is not JSON"),
    ],
)
@pytest.mark.parametrize("what", ["retry", "again", "run"])
def test_what_cannot_be_used_is_shown_again_as_it_was_typed(
    post: Post, add: Add, runs: Any, payload: str, says: str, what: str
) -> None:
    run_id = add("dead", job_type="send", payload={"user": 1})
    if what == "run":
        answer = post("/jobs/definitions/run", name="send", payload=payload)
    else:
        answer = post(f"/jobs/runs/{run_id}/{what}", payload=payload)
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.text
    assert says in html.unescape(answer.text)
    assert typed(answer) == payload
    assert [(run.status, run.payload) for run in runs()] == [("dead", {"user": 1})]


@pytest.mark.parametrize("path", ["/jobs/runs/1/edit", "/jobs/run?name=send"])
def test_who_may_not_act_sees_no_form(
    client: FlaskClient, add: Add, rights: set[str], path: str
) -> None:
    add("dead", job_type="send", payload={"user": 1})
    rights.discard("act")
    assert client.get(path).status_code == 403


def test_where_payloads_are_hidden_no_form_shows_them(
    app: Flask, client: FlaskClient, add: Add, define: Callable[..., int]
) -> None:
    object.__setattr__(app.extensions["cronjobs"].settings, "show_payload", False)
    run_id = add("dead", job_type="send", payload={"user": 4711})
    define("nightly", job_type="send", payload={"user": 4711})
    assert client.get(f"/jobs/runs/{run_id}/edit").status_code == 403
    assert json.loads(typed(client.get("/jobs/run?name=nightly"))) == {"user": None}
    page = client.get(f"/jobs/runs/{run_id}").text
    assert "/edit" not in page
    assert "Run again" in page


@pytest.mark.parametrize(
    "path", ["/jobs/runs/99/edit", "/jobs/run?name=nobody", f"/jobs/runs/{2**70}/edit"]
)
def test_unknown_ones_are_not_found(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_unknown_tasks_have_no_form(client: FlaskClient, add: Add) -> None:
    run_id = add("dead", job_type="gone", payload={"user": 1})
    page = client.get(f"/jobs/runs/{run_id}/edit")
    assert "declares no task gone" in page.text
    assert "<textarea" not in page.text
    assert "Run again" not in client.get(f"/jobs/runs/{run_id}").text


def test_message_stands_beside_the_definition_and_links_to_the_run(
    client: FlaskClient, post: Post, define: Callable[..., int], ticked: Callable[..., None]
) -> None:
    for name in ("alpha", "remind"):
        define(name)
    ticked()
    assert post("/jobs/definitions/run", name="remind").headers["Location"] == "/jobs/#message"
    page = client.get("/jobs/").text
    assert page.count('id="message"') == 1
    assert page.index('<h3><a href="/jobs/definition?name=alpha') < page.index('id="message"')
    assert '<a href="/jobs/runs/1">Show run 1</a>' in page


def test_message_about_what_the_page_does_not_show_is_at_the_top(
    client: FlaskClient, post: Post, define: Callable[..., int]
) -> None:
    define("nightly", job_type="gone")
    post("/jobs/definitions/remove", name="nightly")
    page = client.get("/jobs/").text
    assert page.count('id="message"') == 1
    assert page.index('id="message"') < page.index("<h1")
