"""Sentences of pages and commands that stay true if little is known or if ticks have stopped."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask.testing import FlaskClient

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.features.pings.health_alerts import message
from flask_cronjobs.insights import run_list
from flask_cronjobs.insights.health_checks import findings
from flask_cronjobs.models import JobBatch, JobPause
from flask_cronjobs.text.humanize import capitalized
from tests.marks import on_sqlite
from tests.rows import Rows, ago

pytestmark = pytest.mark.pages

Run = Callable[..., Result]
HOUR = 3600.0


@pytest.fixture(autouse=True)
def _schedules(jobs: CronJobs) -> None:
    """Declare four definitions, before any tick."""
    task = jobs.task(name="it")(lambda: None)
    for name in ("one", "two", "three", "four"):
        task.schedule("*/5 * * * *", name=name)


@pytest.fixture
def client(app: Flask, jobs: CronJobs) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    return lambda *args, **kwargs: app.test_cli_runner().invoke(
        args=["jobs", "admin", *args], **kwargs
    )


def test_a_search_that_was_cut_short_does_not_say_that_nothing_matches(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 2)
    rows.run("succeeded", job_type="wanted")
    for _ in range(5):
        rows.run("succeeded", job_type="other")
    page = client.get("/jobs/runs?task=wanted").text
    assert "No runs match" not in page
    assert "None found, searched back to" in page
    older = client.get("/jobs/runs?task=wanted&before=5").text
    assert "None found, searched back to" in older
    assert "wanted" in client.get("/jobs/runs?task=wanted&before=3").text.partition("<ol")[2]


_KEY: dict[str, Any] = {"concurrency_key": "7", "concurrency_limit": 1, "strict": True}


def _paused(rows: Rows) -> None:
    rows.run(job_type="it", age=1800)
    rows.insert(JobPause(kind="queue", name="default", paused_by="ada"))


def _held(rows: Rows) -> None:
    rows.run("running", age=5 * HOUR, **_KEY, concurrency_share=1)
    rows.run(job_type="it", age=HOUR, gate="order", **_KEY)


def _batch(rows: Rows) -> None:
    rows.insert(JobBatch(key="weekly", opened_at=ago(49 * HOUR)))


#: Problems, with and without ticks: the finding's id, and its sentence.
SITUATIONS: dict[str, tuple[Callable[[Rows], object], str, str]] = {
    "ticks": (lambda rows: None, "ticks", "ticks have stopped"),
    "pause": (_paused, "paused", "the queue default is paused"),
    "stale": (
        lambda rows: rows.run("running", locked_until=ago(60)),
        *("stale-runs", "a worker was lost"),
    ),
    "dead": (lambda rows: rows.run("dead"), "dead", "1 run died in the last 24 h"),
    "held": (
        _held,
        *("held-key", "run 2 waits for run 1, which has held the concurrency key '7' for 5 h"),
    ),
    "late": (
        lambda rows: rows.definition("mails", next_run_at=ago(HOUR)),
        "late-definition",
        "the definition 'mails' has been due for 1 h, and no tick has enqueued its run",
    ),
    "rate": (
        # The rate has a free start, but no tick takes it.
        lambda rows: rows.run(job_type="it", age=2 * HOUR, rate_key="r", gate="rate"),
        *("overdue", "work has been waiting for 2 h"),
    ),
    "batch": (
        *(_batch, "open-batch"),
        "the batch 'weekly' was opened 2 d ago and has not been closed",
    ),
    "effect": (
        lambda rows: rows.effect("mail", state="in_doubt"),
        *("effects-in-doubt", "1 effect is in doubt"),
    ),
    "task": (
        lambda rows: rows.run(job_type="gone", age=48 * HOUR),
        "orphaned-task",
        "runs of 'gone' have waited for 2 d: this app's code does not declare that task",
    ),
    "overdue": (
        lambda rows: rows.run(job_type="it", age=2 * HOUR),
        *("overdue", "work has been waiting for 2 h"),
    ),
}


@on_sqlite
@pytest.mark.parametrize("situation", SITUATIONS)
def test_all_who_say_what_needs_attention_say_the_same(
    app: Flask, client: FlaskClient, run: Run, rows: Rows, situation: str
) -> None:
    """These are the verdict, its JSON, the doctor, the metrics, the webhook and the page."""
    make, id_, text = SITUATIONS[situation]
    rows.tick(age=2 * HOUR if situation == "ticks" else 0)
    make(rows)
    sentence = capitalized(text)
    verdict = json.loads(run("--json").output)["verdict"]
    assert [(row["id"], row["what"]) for row in verdict["findings"]] == [(id_, text)]
    findings_of_doctor = json.loads(run("doctor", "--json").output)["findings"]
    assert {(row["id"], row["what"]) for row in findings_of_doctor} >= {(id_, text)}
    assert sentence in " ".join(run("doctor").output.split())
    is_red = verdict["word"] != "ok"
    assert is_red == (situation in ("ticks", "held", "late", "overdue", "rate"))
    assert client.get("/jobs/health").status_code == (503 if is_red else 200)
    metrics = client.get("/jobs/metrics").text
    assert re.findall(r'cronjobs_findings{id="([^"]+)"} 1.0', metrics) == [id_]
    assert f"cronjobs_healthy {1 - is_red}.0" in metrics
    assert message("shop", findings(state_of(app)), ()).startswith(f"shop: {sentence}. ")
    assert text.lower() in html.unescape(client.get("/jobs/").text).lower()
    assert sentence in " ".join(run().output.split())
    listed = json.loads(run("list", "--overdue", "--json").output)["runs"]
    assert len(listed) == (id_ == "overdue")
