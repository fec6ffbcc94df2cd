"""The pages of batches, and what they let an operator do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun

KEY = "weekly:<W47>"


@pytest.fixture
def batch(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> str:
    """The key of a batch in which one run of three has died, and one waits."""
    with app.app_context():
        remind, break_down = jobs.get("remind"), jobs.get("break_down")
        with jobs.batch(KEY, then=remind):
            remind.enqueue()
            break_down.enqueue()
            remind.using(delay=3600).enqueue()
        db.session.commit()
        jobs.tick()
    return KEY


def statuses(app: Flask, db: SQLAlchemy) -> list[str]:
    with app.app_context():
        found = db.session.query(JobRun.status).where(JobRun.batch_id.is_not(None))
        return sorted(row.status for row in found)


def test_list_shows_how_far_each_is(client: FlaskClient, batch: str) -> None:
    page = client.get("/jobs/batches").text
    assert "weekly:&lt;" in page
    assert "2 of 3" in page
    assert "1 dead" in page
    assert 'value="0.6666666666666666"' in page
    assert "Cancel the rest" in page
    (row,) = client.get("/jobs/batches?format=json").get_json()["batches"]
    assert (row["key"], row["waiting"], row["counts"]["dead"]) == (batch, 1, 1)


def test_page_of_a_batch_leads_to_its_runs(client: FlaskClient, batch: str) -> None:
    page = client.get("/jobs/batch", query_string={"key": batch}).text
    assert "2 of 3 members have ended." in page
    assert "Retry the dead" in page
    runs = client.get("/jobs/runs", query_string={"batch": batch, "status": "dead"}).text
    assert "break_down" in runs
    assert "remind" not in runs.partition("<ol")[2]
    assert client.get("/jobs/batch?key=nothing").status_code == 404


def test_run_leads_to_its_batch(
    app: Flask, db: SQLAlchemy, client: FlaskClient, batch: str
) -> None:
    with app.app_context():
        run = db.session.query(JobRun).first()
        assert run is not None
        page = client.get(f"/jobs/runs/{run.id}").text
    assert "/jobs/batch?key=weekly" in page


def test_cancel_then_retry_with_then_again(
    app: Flask,
    db: SQLAlchemy,
    client: FlaskClient,
    post: Callable[..., TestResponse],
    batch: str,
) -> None:
    said = client.get(post("/jobs/batches/cancel", key=batch).location).text
    assert "1 run of weekly:&lt;W47&gt; is cancelled." in said
    assert statuses(app, db) == ["cancelled", "dead", "succeeded"]
    finished = client.get("/jobs/batch", query_string={"key": batch}).text
    assert "then remind again" in finished
    assert "Cancel the rest" not in finished
    said = client.get(post("/jobs/batches/retry", key=batch, again="1").location).text
    assert "1 run of weekly:&lt;W47&gt; is queued again." in said
    assert statuses(app, db) == ["cancelled", "queued", "succeeded"]


def test_close(
    app: Flask,
    db: SQLAlchemy,
    jobs: CronJobs,
    client: FlaskClient,
    post: Callable[..., TestResponse],
) -> None:
    with app.app_context():
        with jobs.batch("open", close=False):
            jobs.get("remind").enqueue()
        db.session.commit()
    assert ">Close<" in client.get("/jobs/batches").text
    assert "open is closed." in client.get(post("/jobs/batches/close", key="open").location).text
    assert ">Close<" not in client.get("/jobs/batches").text


def test_readers_see_no_buttons(client: FlaskClient, rights: set[str], batch: str) -> None:
    rights.discard("act")
    for path in ("/jobs/batches", f"/jobs/batch?key={batch.replace('<', '%3C')}"):
        page = client.get(path).text
        assert "weekly" in page
        assert "<button" not in page
    assert client.post("/jobs/batches/cancel", data={"key": batch}).status_code == 403


def test_empty_list(client: FlaskClient) -> None:
    assert "No batch is unfinished." in client.get("/jobs/batches").text
    assert "There are no batches." in client.get("/jobs/batches?all=1").text
