"""The reason why each run that has not begun waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import list_runs
from flask_cronjobs.models import JobRate
from tests.rows import Rows, ago, view_of

KEY: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
STRICT: dict[str, Any] = {**KEY, "strict": True}


@pytest.fixture(autouse=True)
def send(jobs: CronJobs) -> None:
    """The task of all rows that name no other."""
    jobs.task(name="send")(lambda: None)


def _holder(rows: Rows) -> int:
    return rows.run("running", age=7200, **KEY, concurrency_share=1)


def _holder_above(rows: Rows) -> int:
    """Insert a run of a higher limit, which holds a share that the limit 1 does not have."""
    return rows.run("running", **{**KEY, "concurrency_limit": 2}, concurrency_share=2)


def _nothing(rows: Rows) -> None:
    return None


@pytest.mark.parametrize(
    ("other", "values", "kinds"),
    [
        (_nothing, {}, ["worker"]),
        (_nothing, {"age": -600}, ["later"]),
        (_nothing, {"job_type": "gone"}, ["undeclared"]),
        (_nothing, {"job_type": "gone", "age": -600}, ["undeclared", "later"]),
        (_holder, KEY, ["share"]),
        (_holder_above, KEY, ["worker"]),
        (_holder, {**KEY, "age": -600}, ["later"]),
        (_holder, {**KEY, "concurrency_limit": 2}, ["worker"]),
        (_holder, {**KEY, "concurrency_key": "l"}, ["worker"]),
        (lambda rows: rows.run(**STRICT), {**STRICT, "gate": "order"}, ["turn"]),
        (lambda rows: rows.run("dead", **STRICT), STRICT, ["worker"]),
        (lambda rows: rows.run("succeeded", **STRICT), STRICT, ["worker"]),
        (lambda rows: rows.run(**STRICT, job_type="gone"), {}, ["worker"]),
    ],
)
def test_a_run_waits_for(
    rows: Rows,
    state: State,
    other: Callable[[Rows], int | None],
    values: dict[str, Any],
    kinds: list[str],
) -> None:
    first = other(rows)
    run_id = rows.run(**{"age": 60, "job_type": "send", **values})
    view = view_of(state, run_id)
    assert [wait.kind for wait in view.waits] == kinds
    assert list_runs(state).waits[run_id] == view.waits
    named = first if kinds[0] in ("share", "turn") else None
    assert next((wait.run_id for wait in view.waits if wait.run_id), None) == named


@pytest.mark.parametrize(
    ("queues", "age", "kinds"),
    [
        ([["mail"], ["slow"]], {}, ["unserved"]),
        ([["mail"], ["slow"]], {"queue": "slow"}, ["worker"]),
        ([["mail"], ["slow"]], {"age": -600}, ["later"]),
        ([["mail"], None], {}, ["worker"]),
        ([], {}, ["worker"]),
    ],
)
def test_a_run_waits_for_a_worker_that_serves_its_queue(
    rows: Rows, state: State, queues: list[list[str]], age: dict[str, Any], kinds: list[str]
) -> None:
    for names in queues:
        rows.tick(age=60, queues=names)
    rows.tick(age=3600)  # This is so long ago that the worker is gone.
    run_id = rows.run(**{"age": 60, "job_type": "send", **age})
    assert [wait.kind for wait in list_runs(state).waits[run_id]] == kinds


def test_what_has_begun_waits_for_nothing(rows: Rows, state: State) -> None:
    for status in ("running", "succeeded", "dead", "cancelled", "skipped"):
        rows.run(status, job_type="send")
    assert list_runs(state).waits == {}


def test_a_pause_comes_before_what_the_clock_says(rows: Rows, state: State, jobs: CronJobs) -> None:
    run_id = rows.run(age=-600, job_type="send")
    with state.app.app_context():
        jobs.pause(task="send")
    waits = list_runs(state).waits[run_id]
    assert [wait.kind for wait in waits] == ["paused", "later"]
    assert waits[0].short == "task paused"
    assert waits[0].what.startswith("until the task send, paused by Python ")
    assert waits[0].what.endswith(", is resumed")


@pytest.mark.parametrize(
    ("kind", "waits", "short"),
    [
        ("wait", "signal", "for it"),
        ("sleep", "sleep", "sleeps, due in 9 min"),
        ("each", "later", "in"),
    ],
)
def test_a_run_waits_at_its_step(
    rows: Rows, state: State, kind: str, waits: str, short: str
) -> None:
    run_id = rows.run(age=-599, job_type="send")
    due = {} if kind == "each" else {"due_at": rows.get(run_id).run_at}
    rows.step(run_id, "first", "sleep", due_at=ago(9))
    rows.step(run_id, "it", kind, finished_at=None, **due)
    (wait,) = list_runs(state).waits[run_id]
    assert wait.kind == waits
    assert wait.short.startswith(short)
    timed_out = rows.run(age=60, job_type="send")  # The time of its wait is over.
    rows.step(timed_out, "it", kind, finished_at=None, **due)
    assert [wait.kind for wait in list_runs(state).waits[timed_out]] == ["worker"]


def test_a_run_waits_for_its_rate(rows: Rows, state: State) -> None:
    rate: dict[str, Any] = {"job_type": "send", "rate_key": "mail", "gate": "rate"}
    run_id, later = rows.run(age=60, **rate), rows.run(age=-60, **rate)
    assert [wait.kind for wait in list_runs(state).waits[run_id]] == ["worker"]
    next_start = ago(-30)
    tat = next_start + timedelta(seconds=6)
    rows.insert(JobRate(key="mail", tat=tat, period=2.0, burst=4))
    waits = list_runs(state).waits
    (wait,) = waits[run_id]
    assert wait.what in ("for its rate, next start in 30 s", "for its rate, next start in 29 s")
    assert [wait.kind for wait in waits[later]] == ["later"]
    assert [row.id for row in list_runs(state, RunFilter(waits="rate")).rows] == [later, run_id]
    assert list_runs(state, RunFilter(overdue=True)).rows == ()


@pytest.mark.parametrize(
    ("why", "number"), [("later", 0), ("undeclared", 1), ("paused", 2), ("turn", 3)]
)
def test_runs_are_found_by_what_they_wait_for(
    rows: Rows, state: State, jobs: CronJobs, why: str, number: int
) -> None:
    with state.app.app_context():
        jobs.pause(queue="mail")
    rows.run("running", job_type="gone", queue="mail", **STRICT, concurrency_share=1)
    runs = [
        rows.run(age=-600, job_type="send"),
        rows.run(age=60, job_type="gone"),
        rows.run(age=60, job_type="send", queue="mail"),
        rows.run(age=60, job_type="send", **STRICT, gate="order"),
    ]
    assert [row.id for row in list_runs(state, RunFilter(waits=why)).rows] == [runs[number]]
