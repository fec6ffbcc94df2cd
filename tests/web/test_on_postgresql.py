"""Each page and each action answers on PostgreSQL; the other tests of this folder use SQLite."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flask_cronjobs.models import JobEffect, JobFailure
from flask_cronjobs.web.guard import ROUTES
from tests.marks import on_postgresql

from .conftest import Pages

TOKEN = "a-token-of-some-length"

#: What to ask for. ``{dead}`` is a dead run's id, and so on.
PAGES = (
    *("/", "/runs", "/runs?status=dead", "/runs?q=remind", "/runs?overdue=1", "/runs?batch=b"),
    *("/runs/{dead}", "/runs/{queued}", "/runs/{running}", "/runs/{dead}/edit?act=retry"),
    *("/run?name=remind", "/runs/bulk?do=retry&status=dead"),
    *("/definitions", "/definitions?state=attention", "/definition?name=remind"),
    *("/task?name=break_down", "/effects", "/batches", "/batch?key=b", "/ticks", "/order"),
    *("/operations", "/runs?operation=1", "/errors", "/errors?state=muted", "/find?q={dead}"),
    *("/queues", "/tonight"),
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
    ("/errors/resolve", {"fingerprint": "f1"}, "is resolved"),
    ("/errors/reopen", {"fingerprint": "f1"}, "is open"),
    ("/errors/mute", {"fingerprint": "f1"}, "is muted"),
    ("/errors/retry", {"fingerprint": "f1", "spread": "1"}, "0 runs are queued again"),
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
def ids(pages: Pages) -> dict[str, int]:
    """Rows of each kind; the ids of the runs by their status."""
    with pages.app.app_context():
        pages.jobs.tick()
        with pages.jobs.batch("b", close=False):
            pages.jobs.get("break_down").enqueue()
        pages.db.session.add(JobEffect(key="charge:1", state="in_doubt"))
        pages.db.session.commit()
    found = {status: pages.add(status) for status in ("queued", "running", "dead", "succeeded")}
    failed = {"error_type": "E", "error": "it broke", "worker": "w", "fingerprint": "f1"}
    pages.insert(JobFailure(run_id=found["succeeded"], attempt=1, **failed))
    return found


def test_each_route_is_asked_for(pages: Pages) -> None:
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
def test_pages_answer(pages: Pages, ids: dict[str, int]) -> None:
    for path in PAGES:
        answer = pages.get("/jobs" + path.format(**ids), follow_redirects=True)
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize(("path", "form", "said"), ACTIONS)
@on_postgresql
def test_actions_do_what_they_say(
    pages: Pages, ids: dict[str, int], path: str, form: dict[str, str], said: str
) -> None:
    answer = pages.post("/jobs" + path.format(**ids), **form)
    assert answer.status_code == 303
    assert said in pages.get(answer.location).text


@on_postgresql
def test_tick_answers(pages: Pages, ids: dict[str, int]) -> None:
    answer = pages.client.post("/jobs/tick", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.get_json()["dead"] == 1
