"""An operator gives a run another payload, or repeats a run with the same or another one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flask_cronjobs import CronJobs, NotFound, PayloadError, StateConflict
from flask_cronjobs.core.app_state import State
from flask_cronjobs.errors import UnknownTask
from flask_cronjobs.insights.run_payloads import retry_with, run_again
from flask_cronjobs.insights.schedule_actions import queue_run
from flask_cronjobs.types import JSON
from tests.rows import Rows


@pytest.fixture(autouse=True)
def _tasks(jobs: CronJobs) -> None:
    @jobs.task(concurrency_key="user:{user}", queue="mail")
    def send(user: int, token: str = "") -> None:
        raise ValueError("no")


def test_retry_with_another_payload_changes_what_follows_from_it(state: State, rows: Rows) -> None:
    run_id = rows.run("dead", payload={"user": 1}, concurrency_key="user:1", concurrency_limit=1)
    change = retry_with(state, run_id, {"user": 2})
    assert (change.run_id, change.status) == (run_id, "queued")
    run = rows.get(run_id)
    assert (run.status, run.payload, run.concurrency_key) == ("queued", {"user": 2}, "user:2")
    assert run.max_attempts > run.attempts


@pytest.mark.parametrize(
    ("payload", "error", "says"),
    [
        ({"usr": 1}, TypeError, "usr"),
        ({}, TypeError, "user"),
        ({"user": float("nan")}, PayloadError, "a whole number, got a value of type float"),
        (5, PayloadError, "The payload is of type int. Give a dict of arguments."),
        ([1], PayloadError, "The payload is of type list"),
    ],
)
def test_a_payload_that_the_handler_does_not_take_changes_nothing(
    state: State, rows: Rows, payload: Any, error: type[Exception], says: str
) -> None:
    run_id = rows.run("dead", payload={"user": 1})
    rows.definition("daily", job_type="send", payload={"user": 1})
    with pytest.raises(error, match=says):
        queue_run(state, "daily", payload)
    with pytest.raises(error, match=says):
        retry_with(state, run_id, payload)
    with pytest.raises(error, match=says):
        run_again(state, run_id, payload)
    assert (rows.get(run_id).status, rows.get(run_id).payload) == ("dead", {"user": 1})


def test_a_definition_whose_payload_cannot_be_read_runs_only_with_another(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    """Its ticks refuse it, too. Without a payload, the handler would use its defaults."""
    jobs.task(name="tell")(lambda whom="all": None)
    rows.definition("daily", job_type="tell", payload=["ada"])
    with pytest.raises(PayloadError, match="'daily' cannot be read"):
        queue_run(state, "daily")
    assert rows.get(queue_run(state, "daily", {"whom": "ada"}).id).payload == {"whom": "ada"}


@pytest.mark.parametrize("status", ["queued", "running", "succeeded", "skipped"])
def test_only_a_run_that_can_be_retried_gets_another_payload(
    state: State, rows: Rows, status: str
) -> None:
    run_id = rows.run(status, payload={"user": 1})
    with pytest.raises(StateConflict, match=f"Run {run_id} "):
        retry_with(state, run_id, {"user": 2})
    assert rows.get(run_id).payload == {"user": 1}


@pytest.mark.parametrize(
    "status", ["queued", "running", "succeeded", "failed", "dead", "cancelled", "skipped"]
)
def test_run_again_makes_a_new_run_whatever_became_of_the_other(
    state: State, rows: Rows, caplog: pytest.LogCaptureFixture, status: str
) -> None:
    definition = rows.definition("nightly", job_type="send")
    old = rows.run(
        status, payload={"user": 1, "token": "abc"}, definition_id=definition, queue="slow",
        priority=7, idempotency_key="once", batch_id=4711,
    )  # fmt: skip
    before = rows.get(old)
    with caplog.at_level(logging.INFO, "flask_cronjobs"):
        new = rows.get(run_again(state, old, actor="ada"))
    assert new.id != old
    assert (new.status, new.attempts, new.payload) == ("queued", 0, {"user": 1, "token": "abc"})
    assert (new.queue, new.priority, new.definition_id) == ("slow", 7, definition)
    assert (new.idempotency_key, new.concurrency_key, new.batch_id) == (None, "user:1", None)
    assert (rows.get(old).status, rows.get(old).updated_at) == (before.status, before.updated_at)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"like run {old}" in line
    assert "ada" in line


def test_run_again_belongs_to_the_definition_if_that_is_there(state: State, rows: Rows) -> None:
    old = rows.run("succeeded", payload={"user": 1}, definition_id=4711)
    assert rows.get(run_again(state, old)).definition_id is None
    definition = rows.definition("nightly", job_type="send")
    old = rows.run("dead", payload={"user": 1}, definition_id=definition)
    first, second = (rows.get(run_again(state, old)) for _ in range(2))
    assert first.id != second.id
    assert first.definition_id == second.definition_id == definition


def test_the_key_of_a_definition_without_overlap_stays(
    state: State, jobs: CronJobs, rows: Rows
) -> None:
    jobs.task(name="plain")(lambda word="x": None)
    key: dict[str, Any] = {"concurrency_key": "definition:nightly", "concurrency_limit": 1}
    run_id = rows.run("dead", job_type="plain", **key)
    retry_with(state, run_id, {"word": "y"})
    again = rows.get(run_again(state, run_id))
    for run in (rows.get(run_id), again):
        assert (run.concurrency_key, run.concurrency_limit) == ("definition:nightly", 1)


def test_a_run_again_has_the_limit_of_the_code_but_for_one_of_a_definition(
    state: State, jobs: CronJobs, rows: Rows
) -> None:
    jobs.task(name="call", concurrency_key="call", concurrency=2)(lambda: None)
    for limit, definition, expected in (
        (5, None, 2),
        (1, None, 2),
        (1, rows.definition("nightly", job_type="call"), 1),
    ):
        old = rows.run(
            "dead", job_type="call", definition_id=definition, concurrency_key="call",
            concurrency_limit=limit,
        )  # fmt: skip
        assert rows.get(run_again(state, old)).concurrency_limit == expected


def test_a_definition_whose_order_the_code_has_dropped_runs_with_other_arguments(
    state: State, jobs: CronJobs, rows: Rows
) -> None:
    jobs.task(name="plain")(lambda word="x": None)
    order = {"concurrency_key": "k", "concurrency_limit": 1, "strict": True}
    rows.definition("nightly", job_type="plain", overlap="allow", **order)
    run = rows.get(queue_run(state, "nightly", {"word": "y"}).id)
    assert {name: getattr(run, name) for name in order} == order
    assert run.payload == {"word": "y"}


def test_unknown_runs_and_tasks_are_named(state: State, rows: Rows) -> None:
    for run_id in (99, 2**63, True):
        with pytest.raises(NotFound, match=f"no run {run_id}"):
            run_again(state, run_id)
    run_id = rows.run("dead", job_type="sennd", payload={"user": 1})
    with pytest.raises(UnknownTask, match="Did you mean 'send'"):
        run_again(state, run_id)


def test_a_payload_that_was_copied_with_hidden_values_is_refused(state: State, rows: Rows) -> None:
    stored: JSON = {"user": 1, "token": "abc"}
    run_id = rows.run("dead", payload=stored)
    rows.definition("nightly", job_type="send", payload=stored)
    for change in (retry_with, run_again):
        with pytest.raises(PayloadError, match="Write the value"):
            change(state, run_id, {"user": 5, "token": "***"})
    with pytest.raises(PayloadError, match="Write the value"):
        queue_run(state, "nightly", {"user": 5, "token": "***"})
    retry_with(state, run_id, {"user": 5, "token": "new"})
    assert rows.get(run_id).payload == {"user": 5, "token": "new"}


def test_a_text_like_the_mark_is_a_value_where_nothing_is_hidden(
    state: State, jobs: CronJobs, rows: Rows
) -> None:
    jobs.task(name="free")(lambda **rest: None)
    rows.definition("bare", job_type="free", payload={})
    run_id = rows.run("dead", job_type="free", payload={"to": "ada"})
    for policy in (
        queue_run(state, "bare", {"note": "***"}).id,
        queue_run(state, "free", {"note": "***"}).id,
        run_again(state, run_id, {"note": "***"}),
    ):
        assert rows.get(policy).payload == {"note": "***"}
