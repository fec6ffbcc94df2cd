"""Pausing a task or a queue on the overview."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select
from werkzeug.test import TestResponse

from flask_cronjobs.models import JobPause

from .conftest import NOW

Post = Callable[..., TestResponse]


def test_pause_and_resume(client: FlaskClient, post: Post, ticked: Callable[..., None]) -> None:
    ticked()
    assert '<option value="task:remind">remind</option>' in client.get("/jobs/").text
    assert post("/jobs/pause", what="task:remind").status_code == 303
    page = client.get("/jobs/").text
    assert "The task remind is paused. Its runs wait until it is resumed." in page
    assert "the task remind is paused" in page
    assert "by ada" in page
    assert 'value="task:remind"><button>Resume' in page.replace("\n", "").replace("  ", "")
    post("/jobs/resume", what="task:remind")
    assert "The task remind is resumed." in client.get("/jobs/").text
    post("/jobs/resume", what="task:remind")
    assert "The task remind was not paused." in client.get("/jobs/").text


def test_who_may_only_read_sees_no_button(
    client: FlaskClient, post: Post, rights: set[str]
) -> None:
    post("/jobs/pause", what="queue:default")
    rights.discard("act")
    page = client.get("/jobs/").text
    assert "paused" in page
    assert "<button>" not in page.partition('id="paused"')[2].partition("</section>")[0]
    assert post("/jobs/pause", what="task:remind").status_code == 403


def test_nothing_is_chosen_before_somebody_chooses(client: FlaskClient) -> None:
    """A click too many must not pause the first queue."""
    form = client.get("/jobs/").text.partition('<select name="what" required>')[2]
    assert form.lstrip().startswith('<option value="">choose one</option>')


def test_names_that_are_nothing_are_refused(client: FlaskClient, post: Post) -> None:
    for what in ("task:nobody", "definition:remind", "queue:", ""):
        post("/jobs/pause", what=what)
    assert "Paused tasks and queues" in client.get("/jobs/").text


def test_run_page_says_how_often_a_run_was_snoozed(
    client: FlaskClient, add: Callable[..., int]
) -> None:
    run_id = add("queued", snoozes=2, error_type="Snooze", last_error="the shop is closed")
    assert "<dd>2 times: the shop is closed</dd>" in client.get(f"/jobs/runs/{run_id}").text


def test_page_names_stay_text(client: FlaskClient, db: SQLAlchemy, post: Post) -> None:
    post("/jobs/pause", what="queue:<b>x</b>")
    page = client.get("/jobs/").text
    assert "<b>x</b>" not in page.replace("&lt;b&gt;", "")
    with client.application.app_context():
        assert db.session.scalars(select(JobPause.name)).all() == ["<b>x</b>"]


@pytest.mark.parametrize("what", ["task:remind", "queue:default"])
def test_run_that_waits_for_a_pause_says_so_and_is_not_late(
    client: FlaskClient, post: Post, add: Callable[..., int], what: str
) -> None:
    run_id, failed = add("queued"), add("failed")
    assert "It is waiting for a worker: " in client.get(f"/jobs/runs/{run_id}").text
    assert "min late" in client.get("/jobs/runs").text
    post("/jobs/pause", what=what)
    kind, _, name = what.partition(":")
    waits = f"It waits until the {kind} {name} is resumed: ada paused it just now."
    for path in (f"/jobs/runs/{run_id}", f"/jobs/runs/{failed}"):
        page = client.get(path).text
        assert waits in page
        assert " late" not in page
        assert "The next tick runs it" not in page
        assert f'name="what" value="{what}"><button>Resume the {kind}' in re.sub(r"\n *", "", page)
    listed = client.get("/jobs/runs").text
    assert " late" not in listed
    assert listed.count("paused") == 2


def test_run_that_is_not_due_says_when_it_is(
    client: FlaskClient, post: Post, add: Callable[..., int]
) -> None:
    run_id = add("queued", run_at=NOW + timedelta(hours=23, minutes=30))
    assert "<p>It is due in 23 h.</p>" in client.get(f"/jobs/runs/{run_id}").text
    post("/jobs/pause", what="task:remind")
    page = client.get(f"/jobs/runs/{run_id}").text
    assert "ada paused it just now. It is due in 23 h.</p>" in page
