"""Lists of runs in their order, and the results of searches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights import run_list
from flask_cronjobs.insights.reader import plain_data
from flask_cronjobs.insights.run_detail import facts_of
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import (
    NEWEST,
    Cursor,
    RunPage,
    Sorting,
    count_by_status,
    list_runs,
    sorting_of,
)
from flask_cronjobs.insights.run_payloads import retry_with
from flask_cronjobs.types import STATUSES, TERMINAL, Status
from tests.rows import Rows, ago, all_of, view_of


def ids(state: State, search: str | None = None, **values: object) -> list[int]:
    filters = RunFilter(search=search, **values)  # type: ignore[arg-type]
    return [row.id for row in list_runs(state, filters).rows]


def walk(state: State, which: RunFilter, limit: int, order: Sorting = NEWEST) -> Iterator[RunPage]:
    """Yield the pages of a list, one after the other."""
    cursor: Cursor | None = None
    while True:
        page = list_runs(state, which, cursor, limit, order)
        yield page
        cursor = page.next
        if cursor is None:
            return


def ids_of(pages: Iterable[RunPage]) -> list[int]:
    return [row.id for page in pages for row in page.rows]


# Order


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3))]
)
def test_each_run_is_listed_once_in_the_order_of_its_status(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The page's length, and runs of the same time or priority, make no difference."""
    monkeypatch.setattr("flask_cronjobs.insights.backlog.MOST_PRIORITIES", seed + 1)
    chosen, moments = random.Random(seed), [ago(seconds) for seconds in (-30, 10, 700, 900)]
    for status in chosen.choices(STATUSES, k=30):
        moment = chosen.choice(moments)
        key = None if status == "running" else chosen.choice([None, "k"])
        times: dict[str, Any] = {"run_at": moment}
        if status in TERMINAL:
            times["finished_at"] = moment
        rows.run(
            status,
            **times,
            priority=chosen.choice([0, 5]),
            concurrency_key=key,
            concurrency_limit=key and 1,
        )
    statuses: tuple[Status | None, ...] = (None, *STATUSES)
    for filter in (RunFilter(overdue=True), *(RunFilter(status=status) for status in statuses)):
        order = sorting_of(filter.status, filter.overdue)
        listed = [rows.get(run_id) for run_id in all_of(state, filter)]
        assert {run.status for run in listed} <= ({filter.status} if filter.status else {*STATUSES})
        expected = sorted(listed, key=lambda run: run.id, reverse=order.descending)
        expected.sort(key=attrgetter(order.column), reverse=order.descending)
        for limit in (2, 7, 50):
            assert ids_of(walk(state, filter, limit, order)) == [run.id for run in expected]
    assert [sorting_of(status, False).column for status in ("dead", "failed", "running")] == [
        "finished_at", "run_at", "id",
    ]  # fmt: skip


def test_all_runs_of_an_old_batch_are_listed(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 2)
    with state.engine.begin() as connection:
        new = "INSERT INTO job_batches (key) VALUES ('old'), ('other') RETURNING id"
        batch, full = sorted(connection.execute(text(new)).scalars())
    statuses = ("succeeded", "queued", "running", "dead", "skipped", "succeeded")
    run_ids = [rows.run(status, batch_id=batch) for status in statuses]
    for batch_id in (full, None, None):
        rows.run("succeeded", batch_id=batch_id)
    assert ids(state, batch="old") == run_ids[::-1]
    assert ids(state, batch="old", status="succeeded") == [run_ids[5], run_ids[0]]
    pages = list(walk(state, RunFilter(batch="old"), limit=4))
    assert ids_of(pages) == run_ids[::-1]
    assert [page.partial for page in pages] == [False, False]


# Labels


# Search


def test_finds_by_id_and_by_key_and_by_how_a_label_or_a_task_begins(
    state: State, rows: Rows
) -> None:
    first = rows.run(idempotency_key="invoice:1", label="To Ada")
    second = rows.run(idempotency_key="invoice:12", job_type="report_%", payload={"to": "Bob"})
    assert ids(state, str(first)) == [first]
    assert ids(state, f"#{second} ") == ids(state, str(second), status="queued") == [second]
    assert ids(state, str(second), status="dead") == []
    assert ids(state, "invoice:1") == [first]
    assert ids(state, "to a") == [first]
    assert ids(state, "REPORT_%") == [second]
    for nothing in ("9" * 30, "invoice", "Ada", "%", "port", "Bob"):
        assert ids(state, nothing) == [], nothing


@pytest.mark.parametrize("status", [None, "queued", "dead"])
def test_a_search_reads_a_window_of_rows_but_finds_an_old_run_by_its_id_and_key(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, status: Status | None
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 3)
    kind = status or "succeeded"
    run_ids = [rows.run(kind, age=n, idempotency_key=f"k{n}", label="to Ada") for n in range(7)]
    order = sorting_of(status, False)
    far = run_ids[0] if order.descending and order.column == "id" else run_ids[6]
    far = run_ids[0] if status == "queued" else far
    filters = RunFilter(search="to ada", status=status)
    page = list_runs(state, replace(filters, search=f"k{run_ids.index(far)}"), None, 50, order)
    assert ([row.id for row in page.rows], page.partial) == ([far], True)
    pages = list(walk(state, filters, 50, order))
    assert [len(page.rows) for page in pages] == [3, 3, 1]
    assert sorted(ids_of(pages)) == run_ids


def test_runs_are_counted_by_status_up_to_a_cap_of_what_is_read(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(**values: Any) -> list[str]:
        return [str(number) for number in count_by_status(state, RunFilter(**values)).values()]

    for status in ("queued", "queued", "failed", "running", "dead", "succeeded"):
        rows.run(status, queue="mail" if status == "dead" else "default")
    rows.run(concurrency_key="k", concurrency_limit=1, job_type="other")
    assert counts() == ["3", "1", "1", "1"]
    assert counts(task="other") == ["1", "0", "0", "0"]
    assert counts(queue="mail", status="queued") == ["0", "0", "0", "1"]
    with state.engine.begin() as connection:
        batch = connection.execute(
            text("INSERT INTO job_batches (key) VALUES ('b') RETURNING id")
        ).scalar_one()
    for status in ("queued", "running", "dead", "succeeded"):
        rows.run(status, batch_id=batch)
    assert counts(batch="b") == ["1", "1", "0", "1"]
    monkeypatch.setattr(run_list, "CAP", 2)
    assert counts() == ["2+", "2", "1", "2"]
    monkeypatch.setattr(run_list, "_COUNTED_ROWS", 2)
    assert counts(queue="none") == ["0+", "0+", "0+", "0+"]


def test_runs_that_a_search_finds_by_id_or_key_are_counted_once(state: State, rows: Rows) -> None:
    first = rows.run("dead", idempotency_key="order 7")
    rows.run("queued", label=f"{first} letters")
    rows.run("queued", label="order 7", idempotency_key="order 71")
    rows.run("running", label="Order 7")

    def counts(search: str) -> list[int]:
        found = count_by_status(state, RunFilter(search=search, status="dead"))
        return [number.value for number in found.values()]

    assert counts(str(first)) == [1, 0, 0, 1]
    assert counts("order 7") == [1, 1, 0, 1]
    assert counts("order 71") == [1, 0, 0, 0]


def _of_login(jobs: CronJobs) -> None:
    @jobs.task(unique="login:{user}:{token}", concurrency_key="{token:.9}", order="strict")
    def login(user: int, token: str) -> None: ...


_LOGIN: dict[str, Any] = {
    "job_type": "login",
    "payload": {"user": 7, "token": "hunter2"},
    "idempotency_key": "login:7:hunter2",
    "concurrency_key": "hunter2",
    "concurrency_limit": 1,
    "strict": True,
    "gate": None,
}


@pytest.mark.parametrize("shows", [False, True])
def test_a_key_is_shown_without_the_hidden_values_that_its_template_names(
    state: State, rows: Rows, jobs: CronJobs, shows: bool
) -> None:
    object.__setattr__(state.settings, "show_payload", shows)
    _of_login(jobs)
    run_id = rows.run("dead", **_LOGIN)
    view = view_of(state, run_id)
    assert (view.idempotency_key, view.concurrency_key) == ("login:7:***", "***")
    assert "hunter2" not in repr((plain_data(view), facts_of(view)))
    for search in ("login:7:hunter2", "hunter2", "login:7:***"):
        assert ids(state, search) == ids(state, concurrency_key=search) == [], search


@pytest.mark.parametrize(
    ("key", "payload", "shows"),
    [
        ("by-hand:hunter2", {"token": "hunter2"}, "***"),
        ("by-hand:hunter2", {"login": {"token": ["hunter2"]}}, "***"),
        ("by-hand:hunt", {"token": "hunter2"}, "***"),
        ("by-hand:1", {"token": "1"}, "***"),
        ("f:x://me:hunter2@db/", {"url": "x://me:hunter2@db/"}, "***"),
        ("by-hand:7", {"user": 7}, "by-hand:7"),
    ],
)
def test_a_key_by_hand_is_neither_shown_nor_found_beside_a_hidden_value(
    state: State, rows: Rows, jobs: CronJobs, key: str, payload: dict[str, Any], shows: str
) -> None:
    @jobs.task
    def plain(user: int = 0, **more: Any) -> None: ...

    for task in ("plain", "undeclared"):
        run_id = rows.run("dead", job_type=task, payload=payload, idempotency_key=f"{key}:{task}")
        is_shown = shows != "***"
        assert view_of(state, run_id).idempotency_key == (f"{key}:{task}" if is_shown else "***")
        assert ids(state, f"{key}:{task}") == ([run_id] if is_shown else [])
        assert ids(state, f"{key}:{task}"[:-1]) == ids(state, "hunter2") == []
    assert view_of(state, rows.run("dead", payload=payload)).idempotency_key is None


def test_a_key_of_an_earlier_payload_is_hidden_if_its_template_names_a_hidden_value(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    _of_login(jobs)
    run_id = rows.run("dead", **_LOGIN | {"strict": False})
    retry_with(state, run_id, {"user": 7, "token": "new"})
    view = view_of(state, run_id)
    assert (view.idempotency_key, view.concurrency_key) == ("***", "***")
    assert ids(state, "login:7:hunter2") == []


# How long a run in a list took and had waited
