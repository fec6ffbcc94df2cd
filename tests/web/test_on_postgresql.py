"""Each page and each action answers on PostgreSQL; the other tests of this folder use SQLite."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobEffect
from flask_cronjobs.web.guard import ROUTES
from tests.marks import on_postgresql

TOKEN = "a-token-of-some-length"

#: What to ask for. ``{dead}`` is a dead run's id, and so on.
PAGES = (
    *("/", "/runs", "/runs?status=dead", "/runs?q=remind", "/runs?overdue=1", "/runs?batch=b"),
    *("/runs/{dead}", "/runs/{queued}", "/runs/{running}", "/runs/{dead}/edit?act=retry"),
    *("/run?name=remind", "/runs/bulk?do=retry&status=dead"),
    *("/definitions", "/definitions?state=attention", "/definition?name=remind"),
    *("/task?name=break_down", "/effects", "/batches", "/batch?key=b", "/ticks", "/order"),
    *("/metrics", "/health"),
)
#: Where to post, with which form, and what is said then.
ACTIONS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("/runs/{dead}/retry", {}, "is queued again"),
    ("/runs/{queued}/cancel", {}, "is cancelled"),
    ("/runs/{dead}/discard", {}, "is discarded"),
    ("/runs/{dead}/again", {}, "a new run, like run"),
    ("/runs/bulk/act", {"do": "retry", "status": "dead"}, "1 run is queued again"),
    ("/definitions/run", {"name": "remind"}, "is queued"),
    ("/definitions/pause", {"name": "remind"}, "remind is paused"),
    ("/definitions/resume", {"name": "remind"}, "was not paused"),
    ("/definitions/remove", {"name": "remind"}, "Nothing was changed"),
    ("/pause", {"what": "queue:default"}, "is paused"),
    ("/resume", {"what": "queue:default"}, "was not paused"),
    ("/dead/retry", {"task": "remind", "error_type": "ValueError"}, "1 run of remind is queued"),
    ("/batches/retry", {"key": "b"}, "0 runs of b are queued again"),
    ("/batches/cancel", {"key": "b"}, "cancelled"),
    ("/batches/close", {"key": "b"}, "b is closed"),
    ("/effects/done", {"key": "charge:1"}, "marked as done"),
    ("/effects/redo", {"key": "charge:1"}, "marked as not done"),
)


@pytest.fixture
def settings() -> dict[str, Any]:
    """Settings that open all routes; a suite that runs for long makes no run overdue."""
    return {
        "CRONJOBS_SHOW_PAYLOAD": True,
        "CRONJOBS_TICK_TOKEN": TOKEN,
        "CRONJOBS_HEALTH_OVERDUE": 86_400,
    }


@pytest.fixture
def ids(app: Flask, db: SQLAlchemy, jobs: CronJobs, add: Callable[..., int]) -> dict[str, int]:
    """Rows of each kind; the ids of the runs by their status."""
    with app.app_context():
        jobs.tick()
        with jobs.batch("b", close=False):
            jobs.get("break_down").enqueue()
        db.session.add(JobEffect(key="charge:1", state="in_doubt"))
        db.session.commit()
    return {status: add(status) for status in ("queued", "running", "dead", "succeeded")}


def test_each_route_is_asked_for(app: Flask, jobs: CronJobs) -> None:
    wanted = {"/jobs/tick"}
    for route in ROUTES:
        act = re.search(r"<any\((.*)\):act>", route.rule)
        for name in act[1].split(", ") if act else [""]:
            rule = route.rule.replace(act[0], name) if act else route.rule
            wanted.add("/jobs" + rule.replace("<int:run_id>", "1"))
    paths = [*PAGES, *(path for path, _, _ in ACTIONS)]
    asked = {"/jobs" + re.sub(r"{\w+}", "1", path).partition("?")[0] for path in paths}
    assert wanted == asked | {"/jobs/tick"}


@on_postgresql
def test_pages_answer(client: FlaskClient, ids: dict[str, int]) -> None:
    for path in PAGES:
        answer = client.get("/jobs" + path.format(**ids))
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize(("path", "form", "said"), ACTIONS)
@on_postgresql
def test_actions_do_what_they_say(
    client: FlaskClient, post: Callable[..., TestResponse], ids: dict[str, int],
    path: str, form: dict[str, str], said: str,
) -> None:  # fmt: skip
    answer = post("/jobs" + path.format(**ids), **form)
    assert answer.status_code == 303
    assert said in client.get(answer.location).text


@on_postgresql
def test_tick_answers(client: FlaskClient, ids: dict[str, int]) -> None:
    answer = client.post("/jobs/tick", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.get_json()["dead"] == 1
