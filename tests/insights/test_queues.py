"""Queues: what waits in each, how fast it comes and goes, and which workers serve it."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights import backlog
from flask_cronjobs.insights.queues import QueueView, list_queues
from tests.rows import Rows, now


def queues(state: State) -> dict[str, QueueView]:
    return {row.name: row for row in list_queues(state).rows}


def seconds(view: QueueView) -> int | None:
    return None if view.oldest is None else round((now() - view.oldest).total_seconds())


def test_a_queue_counts_what_waits_and_says_since_when(
    rows: Rows, state: State, jobs: CronJobs
) -> None:
    jobs.task(name="idle", queue="idle")(lambda: None)
    key: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
    rows.run(age=60, priority=3)
    rows.run(age=90, job_type="other", **key)
    rows.run("failed", age=-600)
    rows.run(age=-600, queue="later")
    rows.run("running", age=60, queue="busy")
    by_name = queues(state)
    assert list(by_name) == ["default", "idle", "later"]
    assert (by_name["default"].waiting.value, by_name["default"].due.value) == (3, 2)
    assert seconds(by_name["default"]) in (90, 91, 92)
    assert (by_name["later"].waiting.value, by_name["later"].due.value) == (1, 0)
    assert seconds(by_name["later"]) is None
    assert not by_name["idle"].waiting


def test_counting_stops(rows: Rows, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "COUNTED", 1)
    rows.run(age=60)
    rows.run(age=60, job_type="of the same queue")
    rows.run(age=60, queue="mail")
    assert [str(row.waiting) for row in list_queues(state).rows] == ["1+", "0+"]


def test_of_many_queues_those_that_need_attention_are_shown(
    rows: Rows, state: State, jobs: CronJobs
) -> None:
    for queue, age in (("new", 10), ("late", 900), ("later", -600)):
        rows.run(age=age, queue=queue)
    rows.run(age=20, queue="soon")
    with state.app.app_context():
        jobs.pause(queue="idle")
    page = list_queues(state, limit=3)
    assert [row.name for row in page.rows] == ["idle", "late", "soon"]
    assert str(page.rows[1].waiting) == "1"
    assert page.cut("queue").startswith("3 of ")
    assert not list_queues(state).cut("queue")


@pytest.mark.parametrize(
    ("values", "service"),
    [
        ([], "no host"),
        ([{"host": "web-1"}, {"host": "web-2", "queues": ["mail"]}], "web-1, web-2"),
        ([{"host": "web-2", "queues": ["slow"]}], "no host"),
        ([{"host": f"web-{number}"} for number in range(5)], "web-0, web-1, web-2 and 2 more"),
    ],
)
def test_a_queue_says_who_serves_it(
    rows: Rows, state: State, jobs: CronJobs, values: list[dict[str, Any]], service: str
) -> None:
    jobs.task(name="it", queue="mail")(lambda: None)
    for columns in values:
        rows.tick(age=5, **columns)
    assert queues(state)["mail"].service(now()) == service


def test_an_executor_serves_its_queue(rows: Rows, state: State) -> None:
    rows.tick(age=5)
    rows.run(age=5, queue="reports")
    object.__setattr__(state.settings, "executors", {"reports": "celery"})
    view = queues(state)["reports"]
    assert (view.service(now()), view.hosts) == ("celery", ())


def test_runs_that_wait_for_their_rate_are_counted(rows: Rows, state: State) -> None:
    for age in (60, 30, -60):
        rows.run(queue="mail", age=age, rate_key="k", gate="rate")
    rows.run(queue="mail", age=10)
    (mail,) = [row for row in list_queues(state).rows if row.name == "mail"]
    assert (mail.waiting.value, mail.due.value, mail.waiting.capped) == (4, 3, False)


def test_runs_behind_others_of_their_key_are_counted(
    rows: Rows, state: State, jobs: CronJobs
) -> None:
    jobs.task(name="it", queue="mail")(lambda: None)
    key: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
    rows.run("running", age=120, queue="mail", concurrency_share=1, **key)
    for age in (90, 30):
        rows.run(age=age, queue="mail", gate="keys", **key)
    rows.run(age=60, queue="other", gate="order", strict=True, **key)
    by_name = queues(state)
    mail, other = by_name["mail"], by_name["other"]
    assert (mail.waiting.value, mail.due.value) == (2, 2)
    assert seconds(mail) in (90, 91, 92)
    assert (other.waiting.value, other.due.value) == (1, 1)
