"""Retry, cancel or discard all runs of a filter."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_cronjobs.models import JobRun

Post = Callable[..., TestResponse]


@pytest.fixture
def statuses(app: Flask, db: SQLAlchemy) -> Callable[[], list[str]]:
    """The statuses of all runs, by id."""

    def statuses() -> list[str]:
        with app.app_context():
            return [run.status for run in db.session.query(JobRun).order_by(JobRun.id)]

    return statuses


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("", []),
        ("?status=dead", ["Retry", "Discard"]),
        ("?status=failed", ["Retry", "Cancel"]),
        ("?status=queued", ["Cancel"]),
        ("?status=cancelled", ["Retry"]),
        ("?status=succeeded", []),
        ("?task=remind", ["Retry", "Cancel", "Discard"]),
    ],
)
def test_a_list_offers_what_can_be_done_with_all_of_it(
    client: FlaskClient, add: Callable[..., int], query: str, offered: list[str]
) -> None:
    for status in ("dead", "failed", "queued", "cancelled", "succeeded"):
        add(status)
    page = client.get(f"/jobs/runs{query}").text
    assert re.findall(r'<a class="button" href="[^"]*">(\w+)…', page) == offered


def test_it_asks_and_then_discards_those_of_the_filter(
    client: FlaskClient,
    add: Callable[..., int],
    post: Post,
    statuses: Callable[[], list[str]],
) -> None:
    add("dead"), add("dead"), add("dead", error_type="KeyError"), add("failed")
    page = client.get("/jobs/runs/bulk?do=discard&status=dead&error_type=ValueError").text
    assert "<h1>Discard 2 runs?</h1>" in page
    fields = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page))
    assert fields == {"do": "discard", "status": "dead", "error_type": "ValueError"}
    assert statuses() == ["dead", "dead", "dead", "failed"]
    answer = post("/jobs/runs/bulk/act", **fields)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/jobs/runs?status=dead&error_type=ValueError#message"
    assert statuses() == ["cancelled", "cancelled", "dead", "failed"]
    assert "2 runs are discarded." in client.get("/jobs/runs").text


def test_retry_and_cancel(
    client: FlaskClient,
    add: Callable[..., int],
    post: Post,
    statuses: Callable[[], list[str]],
) -> None:
    add("dead"), add("running"), add("queued", job_type="break_down")
    post("/jobs/runs/bulk/act", do="retry", task="remind")
    assert "1 run is queued again." in client.get("/jobs/runs").text
    post("/jobs/runs/bulk/act", do="cancel", task="remind")
    assert statuses() == ["cancelled", "running", "queued"]
    said = client.get("/jobs/runs").text
    assert "1 run is cancelled. 1 running run is asked to stop." in said


def test_no_more_than_a_limit_at_once(
    client: FlaskClient, add: Callable[..., int], post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.web.actions.MOST", 2)
    for _ in range(3):
        add("dead")
    assert "One click changes 2 of them." in client.get("/jobs/runs/bulk?do=retry").text
    post("/jobs/runs/bulk/act", do="retry", status="dead")
    said = client.get("/jobs/runs").text
    assert "2 runs are queued again. 1 more is left; do the same again for the next ones." in said


def test_a_status_that_does_not_allow_it_is_refused(
    client: FlaskClient, add: Callable[..., int], post: Post, statuses: Callable[[], list[str]]
) -> None:
    add("succeeded")
    assert client.get("/jobs/runs/bulk?do=discard&status=succeeded").status_code == 303
    assert "Nothing was changed." in client.get("/jobs/runs").text
    post("/jobs/runs/bulk/act", do="discard", status="succeeded")
    assert "Nothing was changed." in client.get("/jobs/runs").text
    assert statuses() == ["succeeded"]


def test_an_unknown_action_is_400(client: FlaskClient, post: Post) -> None:
    assert post("/jobs/runs/bulk/act", do="delete").status_code == 400
    assert post("/jobs/runs/bulk/act").status_code == 400


def test_a_dead_group_shows_its_message_and_can_be_discarded(
    client: FlaskClient, add: Callable[..., int]
) -> None:
    add("dead", last_error="no domain\nmore")
    page = client.get("/jobs/").text
    assert "ValueError: no domain</span>" in page
    href = "/jobs/runs/bulk?do=discard&amp;status=dead&amp;task=remind&amp;error_type=ValueError"
    assert f'href="{href}"' in page
