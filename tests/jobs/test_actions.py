"""What an operator asks for: each verb changes what it may, and says why where it may not."""

from __future__ import annotations

import logging
import os
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
    ScheduleError,
    SetupError,
    StateConflict,
    run_cancelled,
)
from flask_cronjobs.errors import UnknownTask
from flask_cronjobs.jobs.definitions.actions import QueuedRun, queue_run, run_now
from flask_cronjobs.jobs.effects import effect_done, effect_redo
from flask_cronjobs.jobs.health import read_verdict
from flask_cronjobs.jobs.pauses import Target, pause, resume
from flask_cronjobs.jobs.pruning import prune_all as prune
from flask_cronjobs.jobs.runs.actions import CANCEL, RETRY, Action
from flask_cronjobs.jobs.runs.list import RunFilter
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobDefinition, JobEffect, JobRun
from flask_cronjobs.registry.options import EnqueueOptions
from flask_cronjobs.types import STATUSES, Outcome, Status
from tests.rows import Rows, ago


def definition(state: State, name: str) -> JobDefinition:
    with state.app.app_context():
        found = (
            state.db.session()
            .scalars(select(JobDefinition).where(JobDefinition.name == name))
            .one()
        )
        state.db.session().expunge(found)
        return found


def effects(state: State) -> dict[str, str]:
    with state.app.app_context():
        return {mark.key: mark.state for mark in state.db.session().scalars(select(JobEffect))}


# Retry


@pytest.mark.parametrize("status", ["dead", "cancelled", "failed"])
def test_retry_queues_a_run_that_did_not_succeed(state: State, rows: Rows, status: str) -> None:
    run_id = rows.run(
        status, age=3600 if status != "failed" else -3600, attempts=10, cancel_requested_at=ago(9)
    )
    change = RETRY.one(state, run_id)
    assert (change.run_id, change.task, change.status) == (run_id, "send", "queued")
    run = rows.get(run_id)
    assert run.status == "queued"
    assert abs(run.run_at - ago(0)) < timedelta(seconds=30)
    assert (run.finished_at, run.cancel_requested_at) == (None, None)
    assert (run.attempts, run.max_attempts) == (10, 11)


def test_retry_keeps_a_limit_of_attempts_that_leaves_room(state: State, rows: Rows) -> None:
    run_id = rows.run("cancelled", attempts=1, max_attempts=5)
    RETRY.one(state, run_id)
    assert rows.get(run_id).max_attempts == 5


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("queued", "queued already"),
        ("running", "Cancel it first"),
        ("succeeded", "admin again 1"),
        ("skipped", "admin run NAME"),
    ],
)
def test_retry_refuses_other_runs_and_says_what_to_do(
    state: State, rows: Rows, status: str, advice: str
) -> None:
    run_id = rows.run(status)
    before = rows.get(run_id)
    with pytest.raises(StateConflict, match=advice):
        RETRY.one(state, run_id)
    after = rows.get(run_id)
    assert (after.status, after.updated_at) == (status, before.updated_at)


@pytest.mark.parametrize("verb", [RETRY.one, CANCEL.one])
def test_a_run_that_is_not_there_is_not_found(
    state: State, verb: Callable[[State, int], object]
) -> None:
    with pytest.raises(NotFound, match="There is no run 4711"):
        verb(state, 4711)


def test_a_retried_run_is_run_by_the_next_tick(state: State, rows: Rows, jobs: CronJobs) -> None:
    done: list[int] = []

    @jobs.task(name="send")
    def send() -> None:
        done.append(1)

    run_id = rows.run("dead", attempts=10)
    with state.app.app_context():
        jobs.retry(run_id)
        jobs.tick()
    assert done == [1]
    assert rows.get(run_id).status == "succeeded"


# Cancel


@pytest.mark.parametrize("status", ["queued", "failed"])
def test_cancel_ends_a_waiting_run_at_once(state: State, rows: Rows, status: str) -> None:
    run_id = rows.run(status)
    assert CANCEL.one(state, run_id, "ada").status == "cancelled"
    run = rows.get(run_id)
    assert run.status == "cancelled"
    assert run.finished_at is not None
    assert run.last_error == "cancelled by ada"


def test_cancel_asks_the_worker_of_a_running_run(state: State, rows: Rows) -> None:
    run_id = rows.run("running")
    assert CANCEL.one(state, run_id).status == "running"
    first = rows.get(run_id)
    assert (first.status, first.locked_by, first.finished_at) == ("running", "web-1:7:token", None)
    assert first.cancel_requested_at is not None
    CANCEL.one(state, run_id)
    assert rows.get(run_id).cancel_requested_at == first.cancel_requested_at


@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled", "skipped"])
def test_cancel_refuses_what_has_ended(state: State, rows: Rows, status: str) -> None:
    with pytest.raises(StateConflict, match="nothing to cancel"):
        CANCEL.one(state, rows.run(status))


# Many at once


def test_retry_many_by_filter_takes_dead_runs_and_counts_progress(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.jobs.runs.actions.CHUNK", 2)
    dead = [rows.run("dead", error_type="OSError") for _ in range(5)]
    others = [rows.run("dead"), rows.run("failed", error_type="OSError")]
    steps: list[int] = []
    result = RETRY.many(state, RunFilter(error_type="OSError"), progress=steps.append)
    assert (result.changed, result.left) == (5, 0)
    assert steps == [2, 2, 1]
    assert {rows.get(run_id).status for run_id in dead} == {"queued"}
    assert [rows.get(run_id).status for run_id in others] == ["dead", "failed"]


def test_many_leave_what_has_moved_on(state: State, rows: Rows) -> None:
    ids = [rows.run("dead"), rows.run("succeeded"), rows.run("dead")]
    result = RETRY.many(state, ids)
    assert (result.changed, result.left) == (2, 1)


def test_many_are_at_most_as_many_as_asked_and_the_others_are_told(
    state: State, rows: Rows
) -> None:
    dead = [rows.run("dead") for _ in range(5)]
    result = RETRY.many(state, RunFilter(status="dead"), most=2)
    assert (result.changed, result.left, result.beyond) == (2, 0, 3)
    assert [rows.get(run_id).status for run_id in dead].count("queued") == 2
    assert CANCEL.many(state, dead, "ada", most=4).beyond == 1


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_many_that_were_stopped_midway_are_logged_with_who_and_how_many(
    state: State,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verb: str,
) -> None:
    """A web server ends a worker whose request takes too long by SystemExit."""
    caplog.set_level(logging.INFO, "flask_cronjobs")
    monkeypatch.setattr("flask_cronjobs.jobs.runs.actions.CHUNK", 2)
    status: Status = "dead" if verb == "retry" else "queued"
    for _ in range(5):
        rows.run(status, job_type="a\nb")
    steps: list[int] = []

    def stop(done: int) -> None:
        steps.append(done)
        if len(steps) == 2:
            raise SystemExit(1)

    action = {"retry": RETRY, "cancel": CANCEL}[verb]
    with pytest.raises(SystemExit):
        action.many(state, RunFilter(status=status, task="a\nb"), "ada", stop)
    begun, *each, ended = (record.getMessage() for record in caplog.records)
    assert "by ada: 5 runs of" in begun
    assert f"status='{status}', task='a\\nb'" in begun
    assert len(each) == 4
    assert ended.endswith("by ada: 4 runs")


def test_an_action_on_a_hostile_name_is_one_line_of_the_log(
    state: State, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    rows.effect("a\nforged line", state="in_doubt")
    rows.run("dead", job_type="b\nforged line")
    effect_done(state, "a\nforged line")
    RETRY.one(state, 1)
    lines = "\n".join(record.getMessage() for record in caplog.records).splitlines()
    assert len(lines) == 2


def test_cancel_of_many_takes_all_that_have_not_ended(state: State, rows: Rows) -> None:
    ended = rows.run("dead")
    for status in ("queued", "failed", "running"):
        rows.run(status)
    result = CANCEL.many(state, RunFilter(task="send"), "ada")
    assert (result.changed, result.left) == (3, 0)
    assert rows.get(ended).status == "dead"


def test_bulk_by_a_status_that_cannot_be_is_refused(state: State) -> None:
    with pytest.raises(StateConflict, match="succeeded"):
        RETRY.many(state, RunFilter(status="succeeded"))
    with pytest.raises(StateConflict, match="dead"):
        CANCEL.many(state, RunFilter(status="dead"), "ada")


@pytest.mark.parametrize("action", [RETRY, CANCEL], ids=lambda a: a.name)
def test_an_action_says_why_it_refuses_each_status_that_it_does_not_allow(
    action: Action,
) -> None:
    assert {*action.allowed, *action.refusals} == {*STATUSES}
    assert not {*action.allowed} & action.refusals.keys()
    assert {*action.default} <= {*action.allowed}


def test_bulk_takes_those_overdue_or_stale_runs_that_it_may(state: State, rows: Rows) -> None:
    queued, failed = rows.run(age=3600), rows.run("failed", age=3600)
    rows.run("running", locked_until=ago(5))
    assert RETRY.ids(state, RunFilter(overdue=True)) == [failed]
    assert set(CANCEL.ids(state, RunFilter(overdue=True))) == {queued, failed}
    assert len(CANCEL.ids(state, RunFilter(stale=True))) == 1
    with pytest.raises(StateConflict, match="running"):
        RETRY.ids(state, RunFilter(stale=True))


# Pause and resume


def test_resume_goes_on_from_the_next_slot_and_makes_nothing_up(state: State, rows: Rows) -> None:
    rows.definition("a", next_run_at=ago(7200))
    pause(state, Target("definition", "a"))
    assert definition(state, "a").paused_at is not None
    assert resume(state, Target("definition", "a"))
    resumed = definition(state, "a")
    assert resumed.paused_at is None
    assert resumed.next_run_at is not None
    assert timedelta(0) < resumed.next_run_at - ago(0) <= timedelta(minutes=5)
    assert not resume(state, Target("definition", "a"))


def test_an_unknown_definition_gets_a_suggestion(state: State, rows: Rows) -> None:
    rows.definition("send_invoices")
    for verb in (pause, resume):
        with pytest.raises(NotFound, match="Did you mean 'send_invoices'"):
            verb(state, Target("definition", "send_invoice"))
    with pytest.raises(NotFound, match="Did you mean 'send_invoices'"):
        run_now(state, "send_invoice")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_task_that_is_taken_for_a_definition_is_said_to_be_one(
    state: State, jobs: CronJobs, verb: str
) -> None:
    jobs.task(name="send mail")(lambda: None)
    message = rf"It is a task: flask jobs admin {verb} --task 'send mail'$"
    with pytest.raises(NotFound, match=message):
        {"pause": pause, "resume": resume}[verb](state, Target("definition", "send mail"))


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
        pytest.raises(TypeError, match=r"is not a name\. Give a text, or a task, which @jobs\."),
    ):
        NO_NAMES[case](jobs)


@pytest.mark.parametrize("verb", [pause, resume])
def test_before_the_first_tick_there_is_no_definition(
    state: State, verb: Callable[[State, Target], object]
) -> None:
    with pytest.raises(NotFound, match="first tick"):
        verb(state, Target("definition", "a"))


def test_a_broken_definition_is_not_resumed(state: State, rows: Rows) -> None:
    rows.definition("a", schedule="99 * * * *", paused_at=ago(5))
    with pytest.raises(ScheduleError):
        resume(state, Target("definition", "a"))
    assert definition(state, "a").paused_at is not None


# Run now


def test_run_now_runs_a_definition_with_its_own_payload(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda who="x": None)
    made = rows.definition(
        "daily", job_type="send", payload={"who": "ada"}, queue="mail", priority=3, max_attempts=2
    )
    run = rows.get(run_now(state, "daily"))
    assert (run.definition_id, run.job_type, run.status) == (made, "send", "queued")
    assert (run.payload, run.queue, run.priority, run.max_attempts) == (
        {"who": "ada"},
        "mail",
        3,
        2,
    )
    assert abs(run.run_at - run.scheduled_for) < timedelta(seconds=1)


def test_run_now_takes_another_payload(state: State, rows: Rows, jobs: CronJobs) -> None:
    """Its key is that of the payload, so that the limit of `user:bob` holds."""
    jobs.task(name="send", concurrency_key="user:{who}")(lambda who: None)
    rows.definition("daily", job_type="send", payload={"who": "ada"})
    run = rows.get(run_now(state, "daily", {"who": "bob"}))
    assert (run.payload, run.concurrency_key) == ({"who": "bob"}, "user:bob")


def test_run_now_twice_makes_two_runs(state: State, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="send")(lambda: None)
    rows.definition("daily", job_type="send")
    assert len({run_now(state, "daily") for _ in range(5)}) == 5


def test_run_now_of_one_definition_runs_one_at_a_time(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send", schedule="@daily")(lambda: None)
    rows.definition("send")
    runs = [rows.get(run_now(state, "send")) for _ in range(2)]
    assert {(run.concurrency_key, run.concurrency_limit) for run in runs} == {
        ("definition:send", 1)
    }


def test_run_now_knows_a_definition_that_no_tick_has_recorded(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    task = jobs.task(name="send")(lambda who: None)
    task.schedule("@daily", name="daily", payload={"who": "ada"})
    run = rows.get(run_now(state, "daily"))
    assert (run.job_type, run.payload, run.definition_id) == ("send", {"who": "ada"}, None)


def test_run_now_runs_a_task_by_its_name(state: State, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="send", retry=4, queue="mail")(lambda who: None)
    run = rows.get(run_now(state, "send", {"who": "ada"}))
    assert (run.job_type, run.payload, run.definition_id) == ("send", {"who": "ada"}, None)
    assert (run.max_attempts, run.queue) == (4, "mail")


def test_run_of_a_task_takes_all_options_of_an_enqueue(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    options = EnqueueOptions(
        queue="mail", priority=7, max_attempts=2, idempotency_key="k", unique_while="pending"
    )
    run = rows.get(queue_run(state, "send", options=options).id)
    assert (run.queue, run.priority, run.max_attempts) == ("mail", 7, 2)
    assert (run.idempotency_key, run.unique_while) == ("k", "pending")


def test_key_is_found_with_the_run_that_holds_it_now(
    state: State, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    options = EnqueueOptions(idempotency_key="k", unique_while="pending")
    first = queue_run(state, "send", options=options)
    assert queue_run(state, "send", options=options) == QueuedRun(first.id, False)
    with state.app.app_context():
        assert jobs.tick().succeeded == 1
    second = queue_run(state, "send", options=options)
    assert second.id > first.id
    assert queue_run(state, "send", options=options) == QueuedRun(second.id, False)


def test_run_now_checks_the_payload_as_enqueue_does(state: State, jobs: CronJobs) -> None:
    jobs.task(name="send")(lambda who: None)
    with pytest.raises(TypeError, match="who"):
        run_now(state, "send")
    with pytest.raises(PayloadError):
        run_now(state, "send", {"who": float("nan")})


def test_run_now_refuses_a_definition_whose_task_is_not_here(state: State, rows: Rows) -> None:
    rows.definition("daily", job_type="gone")
    with pytest.raises(UnknownTask, match="'gone'"):
        run_now(state, "daily")


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


# Prune, health, effects


def test_prune_deletes_what_is_old_and_a_dry_run_only_counts(state: State, rows: Rows) -> None:
    for _ in range(3):
        rows.run("succeeded", age=15 * 86400)
    kept = [rows.run("succeeded", age=86400), rows.run("dead", age=15 * 86400)]
    steps: list[int] = []
    assert prune(state, dry_run=True) == 3
    assert prune(state, progress=steps.append) == 3
    assert sum(steps) == 3
    assert prune(state, dry_run=True) == 0
    assert [rows.get(run_id).id for run_id in kept] == kept


def test_health_is_the_verdict(state: State, rows: Rows) -> None:
    assert read_verdict(state).word == "never"
    rows.tick()
    assert read_verdict(state).ok


def test_an_effect_in_doubt_is_settled_as_done_or_to_be_redone(state: State, rows: Rows) -> None:
    rows.effect("a", state="in_doubt")
    rows.effect("b", run_id=rows.run("dead"), locked_by="gone")
    effect_done(state, "a")
    effect_redo(state, "b")
    assert effects(state) == {"a": "done"}


@pytest.mark.parametrize("verb", [effect_done, effect_redo])
def test_an_effect_not_in_doubt_is_left_alone(
    state: State, rows: Rows, verb: Callable[[State, str], None]
) -> None:
    rows.effect("done", state="done", done_at=ago(1))
    run_id = rows.run("running", locked_by="t")
    rows.effect("begun", run_id=run_id, locked_by="t")
    for key, advice in (("done", "give once\\(\\) another key"), ("begun", "Wait until it ends")):
        with pytest.raises(StateConflict, match=f"not in doubt.*{advice}"):
            verb(state, key)
    with pytest.raises(NotFound, match="flask jobs admin effects --all"):
        verb(state, "none")
    assert effects(state) == {"done": "done", "begun": "begun"}


# Who did it


def test_every_action_is_logged_with_who(
    state: State, rows: Rows, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    jobs.task(name="send")(lambda: None)
    rows.definition("a", job_type="send")
    rows.effect("e", state="in_doubt")
    dead = rows.run("dead", payload={"secret": "hush"})
    RETRY.one(state, dead, "ada")
    CANCEL.one(state, dead, "ada")
    RETRY.many(state, [dead], "ada")
    CANCEL.many(state, [dead], "ada")
    pause(state, Target("definition", "a"), "ada")
    resume(state, Target("definition", "a"), "ada")
    run_now(state, "a", actor="ada")
    prune(state, actor="ada")
    effect_done(state, "e", "ada")
    lines = [record.getMessage() for record in caplog.records if record.name == "flask_cronjobs"]
    assert len(lines) == 13  # Of many: when it begins, for each of them, and when it ends.
    assert all("by ada" in line for line in lines)
    assert "hush" not in " ".join(lines)
    assert lines[0].startswith(f"retried by ada: task send, run {dead}, attempt 1, worker ")


def test_change_by_an_operator_has_the_fields_of_any_other(
    state: State, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    ids = [rows.run("queued"), rows.run("failed")]
    CANCEL.many(state, ids, "ada")
    lines = [vars(record) for record in caplog.records if hasattr(record, "cronjobs_run_id")]
    assert [(line["cronjobs_run_id"], line["cronjobs_attempt"]) for line in lines] == [
        (ids[0], 0),
        (ids[1], 1),
    ]
    for line in lines:
        assert (line["cronjobs_task"], line["cronjobs_actor"]) == ("send", "ada")
        assert line["cronjobs_event"] == "cancelled"
        assert line["cronjobs_worker"].endswith(f":{os.getpid()}")
        assert line["cronjobs_ms"] == 0


def test_waiting_run_that_is_cancelled_is_told_and_one_at_work_is_not_yet(
    app: Flask, state: State, rows: Rows
) -> None:
    told: list[Outcome] = []

    def receive(sender: Flask, outcome: Outcome) -> None:
        told.append(outcome)

    waiting, working = rows.run("queued"), rows.run("running")
    with run_cancelled.connected_to(receive, app):
        CANCEL.one(state, waiting, "ada")
        CANCEL.one(state, working, "ada")
    assert [(each.id, each.kind, each.error) for each in told] == [
        (waiting, "cancelled", "cancelled by ada")
    ]


# Beside an open transaction of the caller's

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
    """On PostgreSQL, where rows are locked one by one, there is nothing to say."""
    send = jobs.task(name="send")(lambda: None)
    rows.run("dead", job_type="send")
    rows.definition("daily", job_type="send", paused_at=ago(60))
    with app.app_context():
        send.enqueue()
        if db.engine.dialect.name == "sqlite":
            with pytest.raises(SetupError, match=r"holds SQLite's write lock\. Commit") as caught:
                VERBS[verb](jobs)
            assert caught.value.__suppress_context__  # What SQLite said is no news, only long.
            db.session.commit()
        elif verb in ("retry", "run_now"):
            VERBS[verb](jobs)
        db.session.rollback()


def test_verb_works_beside_a_session_that_only_reads(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    with app.app_context():
        assert db.session.scalars(select(JobRun)).all() == []
        assert jobs.run_now("send")
