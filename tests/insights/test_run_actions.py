"""Each action of an operator changes only what it may, and explains each refusal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import (
    CronJobs,
    NotFound,
    PayloadError,
    SetupError,
    StateConflict,
    run_cancelled,
)
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.tasks.options import EnqueueOptions
from flask_cronjobs.errors import UnknownTask
from flask_cronjobs.insights.effects import effect_done, effect_redo
from flask_cronjobs.insights.run_actions import CANCEL, DISCARD, RETRY, Action
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.schedule_actions import QueuedRun, Target, pause, queue_run, resume
from flask_cronjobs.models import JobEffect, JobRun
from flask_cronjobs.types import STATUSES, TERMINAL, Status
from tests.kit import received
from tests.rows import Rows, ago

# One run


@pytest.mark.parametrize("status", ["dead", "cancelled", "failed"])
@pytest.mark.parametrize(("limit", "then"), [(10, 11), (15, 15)])
def test_retry_queues_a_run_that_did_not_succeed(
    state: State, rows: Rows, status: str, limit: int, then: int
) -> None:
    age, request = -3600 if status == "failed" else 3600, ago(9)
    run_id = rows.run(status, age, attempts=10, max_attempts=limit, cancel_requested_at=request)
    change = RETRY.one(state, run_id)
    assert (change.run_id, change.task, change.status) == (run_id, "send", "queued")
    run = rows.get(run_id)
    assert run.status == "queued"
    assert abs(run.run_at - ago(0)) < timedelta(seconds=30)
    assert (run.finished_at, run.cancel_requested_at) == (None, None)
    assert (run.attempts, run.max_attempts) == (10, then)


def test_cancel_asks_the_worker_of_a_running_run(state: State, rows: Rows) -> None:
    run_id = rows.run("running")
    assert CANCEL.one(state, run_id).status == "running"
    first = rows.get(run_id)
    assert (first.status, first.locked_by, first.finished_at) == ("running", "web-1:7:token", None)
    assert first.cancel_requested_at is not None
    CANCEL.one(state, run_id)
    assert rows.get(run_id).cancel_requested_at == first.cancel_requested_at


def test_discarded_run_ends_cancelled_from_now_on_and_can_be_retried(
    state: State, rows: Rows
) -> None:
    run_id = rows.run("dead", age=20 * 86400, last_error="boom", error_type="ValueError")
    rows.failure(run_id, 1)
    with received(run_cancelled) as outcomes:
        assert DISCARD.one(state, run_id, "ada").status == "cancelled"
    run = rows.get(run_id)
    assert (run.status, run.error_type) == ("cancelled", "Discarded")
    assert run.last_error == outcomes[0].error == "discarded by ada"
    assert run.finished_at is not None
    assert run.finished_at > ago(60)
    RETRY.one(state, run_id)
    assert rows.get(run_id).status == "queued"


@pytest.mark.parametrize("status", ["queued", "failed"])
def test_waiting_run_that_is_cancelled_ends_at_once_with_a_signal(
    state: State, rows: Rows, status: str
) -> None:
    run_id = rows.run(status)
    with received(run_cancelled) as outcomes:
        assert CANCEL.one(state, run_id, "ada").status == "cancelled"
        CANCEL.one(state, rows.run("running"))  # The run's worker reports this.
    run = rows.get(run_id)
    assert (run.status, run.last_error) == ("cancelled", "cancelled by ada")
    assert run.finished_at is not None
    assert [(row.id, row.kind, row.error) for row in outcomes] == [
        (run_id, "cancelled", "cancelled by ada")
    ]


def run_now(*args: Any, **kwargs: Any) -> int:
    return queue_run(*args, **kwargs).id


ACTIONS = {action.name: action for action in (RETRY, CANCEL, DISCARD)}
#: The messages of each action about the statuses that it refuses.
ADVICE: dict[str, dict[Status, str]] = {
    "retry": {
        "queued": "queued already",
        "running": "Cancel it first",
        "succeeded": "admin again 1",
        "skipped": "admin run NAME",
    },
    "cancel": dict.fromkeys(TERMINAL, "nothing to cancel"),
    "discard": {
        **dict.fromkeys(("queued", "running", "failed"), "is not dead"),
        **dict.fromkeys(("succeeded", "cancelled", "skipped"), "only dead runs"),
    },
}


@pytest.mark.parametrize(
    ("name", "status"), [(name, status) for name in ADVICE for status in ADVICE[name]]
)
def test_an_action_refuses_other_statuses_and_says_what_to_do(
    state: State, rows: Rows, name: str, status: Status
) -> None:
    run_id = rows.run(status)
    before = rows.get(run_id)
    with pytest.raises(StateConflict, match=ADVICE[name][status]):
        ACTIONS[name].one(state, run_id)
    after = rows.get(run_id)
    assert (after.status, after.updated_at) == (status, before.updated_at)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_an_action_allows_or_refuses_each_status(state: State, action: Action) -> None:
    assert {*action.allowed, *action.refusals} == {*STATUSES}
    assert action.refusals.keys() == ADVICE[action.name].keys()
    assert {*action.default} <= {*action.allowed}
    with pytest.raises(NotFound, match="There is no run 4711"):
        action.one(state, 4711)
    for no_id in (0, 2**63, True, 1.0, "1"):
        with pytest.raises(NotFound, match=f"There is no run {no_id!r}"):
            action.one(state, no_id)  # type: ignore[arg-type]


# Many at once


@pytest.mark.parametrize(
    ("name", "changed"),
    [("retry", {"dead"}), ("cancel", {"queued", "failed", "running"}), ("discard", {"dead"})],
)
def test_a_filter_without_a_status_means_those_of_the_action(
    state: State, rows: Rows, name: str, changed: set[Status]
) -> None:
    ids: dict[Status, int] = {status: rows.run(status) for status in STATUSES}
    result = ACTIONS[name].many(state, RunFilter(task="send"), "ada")
    assert (result.changed, result.left) == (len(changed), 0)
    moved = {
        status
        for status, run_id in ids.items()
        if (rows.get(run_id).status, rows.get(run_id).cancel_requested_at) != (status, None)
    }
    assert moved == changed


def test_many_leave_what_has_moved_on_and_what_is_beyond_their_limit(
    state: State, rows: Rows
) -> None:
    ids = [rows.run("dead"), rows.run("succeeded"), rows.run("dead")]
    result = RETRY.many(state, ids)
    assert (result.changed, result.left, result.beyond) == (2, 1, 0)
    dead = [rows.run("dead") for _ in range(5)]
    result = RETRY.many(state, RunFilter(status="dead"), most=2)
    assert (result.changed, result.left, result.beyond) == (2, 0, 3)
    assert [rows.get(run_id).status for run_id in dead].count("queued") == 2


@pytest.mark.parametrize(
    ("action", "which", "then"),
    [
        (CANCEL, RunFilter(status="queued"), "running"),
        (CANCEL, RunFilter(waits="later"), "running"),
        (CANCEL, RunFilter(overdue=True), "running"),
        (RETRY, RunFilter(status="dead"), "cancelled"),
        (RETRY, RunFilter(), "cancelled"),
    ],
)
def test_many_leave_a_run_that_has_left_the_status_of_the_filter(
    state: State, rows: Rows, action: Action, which: RunFilter, then: Status
) -> None:
    run_id = rows.run(then)
    assert action.many(state, [run_id], found_by=which)[:2] == (0, 1)
    run = rows.get(run_id)
    assert (run.status, run.cancel_requested_at) == (then, None)
    assert action.many(state, [run_id])[:2] == (1, 0)


def test_a_run_that_has_left_the_filter_takes_its_key_from_no_other(
    state: State, rows: Rows
) -> None:
    key: dict[str, Any] = {"idempotency_key": "k", "unique_while": "pending"}
    ids = [rows.run("dead", **key), rows.run("cancelled", **key)]
    assert RETRY.many(state, ids, found_by=RunFilter(status="dead"))[:2] == (1, 1)
    assert [rows.get(run_id).status for run_id in ids] == ["queued", "cancelled"]


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("retry", RunFilter(status="succeeded")),
        ("cancel", RunFilter(status="dead")),
        ("retry", RunFilter(stale=True)),
    ],
    ids=str,
)
def test_many_of_a_status_that_cannot_be_are_refused(
    state: State, name: str, which: RunFilter
) -> None:
    for ask in (ACTIONS[name].many, ACTIONS[name].ids):
        with pytest.raises(StateConflict, match=which.status or "running"):
            ask(state, which)


def test_bulk_takes_those_overdue_or_stale_runs_that_it_may(state: State, rows: Rows) -> None:
    queued, failed = rows.run(age=3600), rows.run("failed", age=3600)
    stale = rows.run("running", locked_until=ago(5))
    assert RETRY.ids(state, RunFilter(overdue=True)) == [failed]
    assert set(CANCEL.ids(state, RunFilter(overdue=True))) == {queued, failed}
    assert CANCEL.ids(state, RunFilter(stale=True)) == [stale]


# Pause, resume and run now


DEFINITION_VERBS: dict[str, Callable[[State, str], object]] = {
    "pause": lambda state, name: pause(state, Target("definition", name)),
    "resume": lambda state, name: resume(state, Target("definition", name)),
    "run": run_now,
}


@pytest.mark.parametrize("verb", DEFINITION_VERBS)
def test_an_unknown_definition_gets_advice(
    state: State, rows: Rows, jobs: CronJobs, verb: str
) -> None:
    with pytest.raises(NotFound, match="is declared: check" if verb == "run" else "first tick"):
        DEFINITION_VERBS[verb](state, "a")
    rows.definition("send_invoices")
    with pytest.raises(NotFound, match="Did you mean 'send_invoices'"):
        DEFINITION_VERBS[verb](state, "send_invoice")
    if verb != "run":
        jobs.task(name="send mail")(lambda: None)
        message = rf"It is a task: flask jobs admin {verb} --task 'send mail'$"
        with pytest.raises(NotFound, match=message):
            DEFINITION_VERBS[verb](state, "send mail")


def test_a_task_may_be_given_itself(app: Flask, jobs: CronJobs, db: SQLAlchemy) -> None:
    send = jobs.task(name="send")(lambda: None)
    daily = jobs.task(name="daily", schedule="@daily")(lambda: None)
    with app.app_context():
        jobs.tick()
        run_id = jobs.run_now(send)
        assert db.session.get_one(JobRun, run_id).job_type == "send"
        db.session.rollback()
        jobs.pause(task=send)
        assert jobs.resume(task=send)
        jobs.pause(daily)
        assert jobs.resume(daily)


NO_NAMES: dict[str, Callable[[Any], object]] = {
    "run_now": lambda jobs: jobs.run_now(print),
    "pause": lambda jobs: jobs.pause(print),
    "pause a task": lambda jobs: jobs.pause(task=print),
    "resume a task": lambda jobs: jobs.resume(task=5),
    "add_definition": lambda jobs: jobs.add_definition("a", print, schedule="@daily"),
    "remove_definition": lambda jobs: jobs.remove_definition(None),
    "batch": lambda jobs: jobs.batch("q", then=print),
}


@pytest.mark.parametrize("case", NO_NAMES)
def test_what_is_no_name_is_a_clear_error(app: Flask, jobs: CronJobs, case: str) -> None:
    with (
        app.app_context(),
        pytest.raises(TypeError, match=r"is not a task\. Give a task that @jobs\.task made"),
    ):
        NO_NAMES[case](jobs)


def test_run_now_runs_a_definition_with_its_own_payload(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda who="x": None)
    own: dict[str, Any] = {
        "job_type": "send", "payload": {"who": "ada"}, "queue": "mail", "priority": 3,
        "max_attempts": 2,
    }  # fmt: skip
    definition = rows.definition("daily", **own)
    first, second = (rows.get(run_now(state, "daily")) for _ in range(2))
    assert first.id != second.id
    for run in (first, second):
        assert {name: getattr(run, name) for name in own} == own
        assert (run.definition_id, run.status) == (definition, "queued")
        assert abs(run.run_at - run.scheduled_for) < timedelta(seconds=1)


def test_run_now_takes_another_payload(state: State, rows: Rows, jobs: CronJobs) -> None:
    """The key is computed from the payload, so the limit of `user:bob` holds."""
    jobs.task(name="send", concurrency_key="user:{who}")(lambda who: None)
    rows.definition("daily", job_type="send", payload={"who": "ada"})
    run = rows.get(run_now(state, "daily", {"who": "bob"}))
    assert (run.payload, run.concurrency_key) == ({"who": "bob"}, "user:bob")


def test_run_now_of_one_definition_runs_one_at_a_time(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send", schedule="@daily")(lambda: None)
    rows.definition("send")
    run = rows.get(run_now(state, "send"))
    assert (run.concurrency_key, run.concurrency_limit) == ("definition:send", 1)


def test_run_now_knows_what_no_tick_has_recorded(state: State, rows: Rows, jobs: CronJobs) -> None:
    task = jobs.task(name="send", retry=4, queue="mail")(lambda who: None)
    task.schedule("@daily", name="daily", payload={"who": "ada"})
    runs = [(run_now(state, "daily"), 1), (run_now(state, "send", {"who": "ada"}), None)]
    for run_id, definition in runs:
        run = rows.get(run_id)
        assert (run.job_type, run.payload) == ("send", {"who": "ada"})
        assert run.definition_id == definition, "a run of a definition is among its last ten"
        assert (run.max_attempts, run.queue) == (4, "mail")
    with pytest.raises(TypeError, match="who"):
        run_now(state, "send")
    with pytest.raises(PayloadError):
        run_now(state, "send", {"who": float("nan")})
    rows.definition("broken", job_type="gone")
    with pytest.raises(UnknownTask, match="'gone'"):
        run_now(state, "broken")


def test_run_of_a_task_takes_the_options_of_an_enqueue_and_finds_its_key(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    values: dict[str, Any] = {
        "queue": "mail", "priority": 7, "max_attempts": 2, "idempotency_key": "k",
        "unique_while": "pending",
    }  # fmt: skip
    options = EnqueueOptions(**values)
    first = queue_run(state, "send", options=options)
    run = rows.get(first.id)
    assert {name: getattr(run, name) for name in values} == values
    assert queue_run(state, "send", options=options) == QueuedRun(first.id, False)
    with state.app.app_context():
        assert jobs.tick().succeeded == 1
    second = queue_run(state, "send", options=options)
    assert second.id > first.id
    assert queue_run(state, "send", options=options) == QueuedRun(second.id, False)


def test_run_now_leaves_the_session_of_the_caller_alone(
    state: State, app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    with app.app_context():
        run_now(state, "send")
        if state.engine.dialect.name != "sqlite":
            db.session.add(JobRun(job_type="mine", payload={}))
            db.session.flush()
            run_now(state, "send")
        db.session.rollback()
        assert set(db.session.scalars(select(JobRun.job_type))) == {"send"}


# Prune, effects


def test_only_an_effect_in_doubt_is_settled(state: State, rows: Rows) -> None:
    rows.effect("a", state="in_doubt")
    rows.effect("b", run_id=rows.run("dead"), locked_by="gone")
    rows.effect("done", state="done", done_at=ago(1))
    rows.effect("begun", run_id=rows.run("running", locked_by="t"), locked_by="t")
    for verb in (effect_done, effect_redo):
        with pytest.raises(StateConflict, match=r"not in doubt.*give once\(\) another key"):
            verb(state, "done")
        with pytest.raises(StateConflict, match=r"not in doubt.*Wait until it ends"):
            verb(state, "begun")
        with pytest.raises(NotFound, match="flask jobs admin effects --all"):
            verb(state, "none")
    effect_done(state, "a")
    effect_redo(state, "b")
    with state.app.app_context():
        marks = state.db.session().scalars(select(JobEffect))
        assert {mark.key: mark.state for mark in marks} == {
            "a": "done", "done": "done", "begun": "begun",
        }  # fmt: skip


# While the caller has an open transaction

VERBS: dict[str, Callable[[CronJobs], object]] = {
    "run_now": lambda jobs: jobs.run_now("send"),
    "retry": lambda jobs: jobs.retry(1),
    "cancel": lambda jobs: jobs.cancel(1),
    "pause": lambda jobs: jobs.pause("daily"),
    "resume": lambda jobs: jobs.resume("daily"),
    "prune": lambda jobs: jobs.prune(),
    "tick": lambda jobs: jobs.tick(),
    "add_definition": lambda jobs: jobs.add_definition("x", "send", schedule="@daily"),
    "remove_definition": lambda jobs: jobs.remove_definition("x"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verb_says_at_once_that_the_caller_s_session_holds_the_lock(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, rows: Rows, verb: str
) -> None:
    """PostgreSQL locks single rows, so there is nothing to report."""
    send = jobs.task(name="send")(lambda: None)
    rows.run("dead", job_type="send")
    rows.definition("daily", job_type="send", paused_at=ago(60))
    with app.app_context():
        send.enqueue()
        if db.engine.dialect.name == "sqlite":
            with pytest.raises(SetupError, match=r"holds SQLite's write lock\. Commit") as caught:
                VERBS[verb](jobs)
            assert caught.value.__suppress_context__  # SQLite's own error is long and adds nothing.
            db.session.commit()
        elif verb in ("retry", "run_now"):
            VERBS[verb](jobs)
        db.session.rollback()


# The runs that a person sees before they are changed
