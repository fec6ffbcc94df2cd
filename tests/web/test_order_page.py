"""The page of keys in strict order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_cronjobs import CronJobs
from tests.rows import Rows, ago
from tests.web.conftest import OWN


@pytest.fixture
def ordered(rows: Rows) -> Callable[..., int]:
    def add(
        key: str, status: str = "queued", order_mark: str | None = "waits", **values: Any
    ) -> int:
        given: dict[str, Any] = {
            "concurrency_key": key,
            "concurrency_limit": 1,
            "on_dead": "stop",
            "order_mark": order_mark,
        }
        return rows.run(status, **{**given, **values})

    return add


def test_page_says_which_keys_wait_and_why(
    client: FlaskClient, ordered: Callable[..., int]
) -> None:
    dead = ordered("account:1", "dead", None, finished_at=ago(3600))
    for _ in range(3):
        ordered("account:1")
    failed = ordered("account:2", "failed", None, run_at=ago(-300), attempts=1)
    ordered("account:2")
    page = client.get("/jobs/order").text
    assert "account:<wbr>1" in page
    assert "stopped by a dead run, " in page
    assert "3 waiting" in page
    assert "its next attempt: in" in page
    assert f"/jobs/runs/{failed}" in page
    assert f'action="/jobs/runs/{dead}/discard"' in page
    stopped = client.get("/jobs/order?stopped=1").text
    assert "account:<wbr>1" in stopped
    assert "account:<wbr>2" not in stopped
    assert "There are no more keys" in client.get("/jobs/order?after=zzz").text


def test_page_is_empty_without_strict_orders(client: FlaskClient, rows: Rows) -> None:
    rows.run(concurrency_key="plain", concurrency_limit=1)
    page = client.get("/jobs/order")
    assert page.status_code == 200
    assert "No run of a task with a strict order waits or runs." in page.text
    assert "No key is stopped" in client.get("/jobs/order?stopped=1").text


def test_keys_come_in_pages(client: FlaskClient, ordered: Callable[..., int]) -> None:
    for key in ("a", "b", "c"):
        ordered(key, order_mark=None)
    page = client.get("/jobs/order?limit=2&format=json").json
    assert page is not None
    assert [each["key"] for each in page["keys"]] == ["a", "b"]
    rest = client.get(f"/jobs/order?limit=2&after={page['after']}&format=json").json
    assert rest is not None
    assert [each["key"] for each in rest["keys"]] == ["c"]


def test_first_page_names_dead_runs_that_stop_keys(
    client: FlaskClient, ordered: Callable[..., int]
) -> None:
    ordered("account:1", "dead", None, finished_at=ago(days=3))
    page = client.get("/jobs/").text
    assert "stops its key" in page
    assert "/jobs/order?stopped=1" in page


def test_page_of_a_run_says_which_one_it_waits_for(
    client: FlaskClient, ordered: Callable[..., int]
) -> None:
    first, second = ordered("a", order_mark=None), ordered("a")
    assert f"It waits for run {first}," in client.get(f"/jobs/runs/{second}").text
    assert "It waits for run" not in client.get(f"/jobs/runs/{first}").text
    assert str(second) in client.get("/jobs/runs?status=queued").text


def test_dead_run_is_discarded_from_the_page(
    client: FlaskClient, rows: Rows, ordered: Callable[..., int]
) -> None:
    dead = ordered("a", "dead", None, finished_at=ago(60))
    answer = client.post(f"/jobs/runs/{dead}/discard", headers=OWN)
    assert answer.status_code in (302, 303)
    assert rows.get(dead).status == "cancelled"
    assert rows.get(dead).order_mark == "over"


def test_page_of_a_run_behind_a_dead_one_says_what_to_do(
    client: FlaskClient, ordered: Callable[..., int]
) -> None:
    dead = ordered("a", "dead", None, finished_at=ago(60))
    second = ordered("a")
    page = client.get(f"/jobs/runs/{second}").text
    said = f"It waits for run {dead}, which is dead and stops its key: retry or discard that run."
    assert said in page
    assert f'<a href="/jobs/runs/{dead}">Show run {dead}</a>' in page
    assert "The next tick runs it" not in page


def test_page_of_a_task_in_strict_order_leads_to_its_keys(
    client: FlaskClient, jobs: CronJobs
) -> None:
    jobs.task(name="book", concurrency_key="a", order="strict")(lambda: None)
    assert '<a href="/jobs/order">strict</a>' in client.get("/jobs/task?name=book").text
    assert "/jobs/order" not in client.get("/jobs/task?name=remind").text


def test_key_of_a_paused_task_says_so(client: FlaskClient, ordered: Callable[..., int]) -> None:
    ordered("a", order_mark=None, run_at=ago(600))
    client.post("/jobs/pause", data={"what": "queue:default"}, headers=OWN)
    page = client.get("/jobs/order").text
    assert "the queue default is paused" in page
    assert " late" not in page
