"""Runs are handed on to an executor, which begins each of them once."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, current_run
from flask_cronjobs.engine import hand_over
from flask_cronjobs.engine.hand_over import FEW
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import handed_to
from tests.executors.threads import Threads
from tests.marks import on_postgresql
from tests.rows import Rows, statuses


def loaded(db: SQLAlchemy, run: JobRun) -> JobRun:
    db.session.refresh(run)
    return run


def expire(db: SQLAlchemy) -> None:
    past = "2020-01-01 00:00:00.000000"
    past += "+00" if db.engine.dialect.name == "postgresql" else ""
    db.session.execute(
        text("UPDATE job_runs SET locked_until = :past WHERE status = 'running'"), {"past": past}
    )
    db.session.commit()


def test_a_handed_run_is_executed_by_the_engine(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue(value=7)
    report = jobs.tick()
    assert report.attempts == 0
    handed = loaded(db, run)
    assert (handed.status, handed.attempts) == ("running", 1)
    assert handed_to(handed.locked_by) == "threads"
    executor.deliver(executor.sent[0])
    assert executor.results() == ["succeeded"]
    done = loaded(db, run)
    assert (done.status, done.result, done.attempts, done.locked_by) == ("succeeded", 7, 1, None)


def test_runs_of_other_queues_are_executed_here(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    @jobs.task
    def near() -> str:
        return "here"

    run = near.using(commit=True).enqueue()
    far.enqueue()
    assert jobs.tick().succeeded == 1
    assert loaded(db, run).status == "succeeded"
    assert [each.task for each in executor.sent] == ["far"]


def test_a_message_that_comes_twice_runs_once(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    """And that is no news."""
    run = far.enqueue()
    jobs.tick()
    for _ in range(3):
        executor.deliver(executor.sent[0])
    assert sorted(map(str, executor.results())) == ["None", "None", "succeeded"]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert loaded(db, run).attempts == 1


def test_a_lost_message_comes_back_by_lease_and_counts_no_attempt(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue()
    jobs.tick()
    jobs.tick()
    assert len(executor.sent) == 1  # Its lease has not ended.
    expire(db)
    report = jobs.tick()
    assert (report.reclaimed, report.failed) == (0, 0)
    assert len(executor.sent) == 2
    assert loaded(db, run).attempts == 1
    executor.deliver(executor.sent[0])  # It comes late, and its token is gone.
    assert executor.results() == [None]
    assert handed_to(loaded(db, run).locked_by) == "threads"
    executor.deliver(executor.sent[1])
    assert executor.results() == [None, "succeeded"]


def test_an_executor_that_is_away_gives_runs_back(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    executor.away = ConnectionRefusedError("no broker")
    far.enqueue_many([{}] * 3)
    jobs.tick()
    assert statuses(db) == ["queued"] * 3
    assert [run.attempts for run in db.session.query(JobRun)] == [0, 0, 0]
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "threads cannot be reached, so the queue far waits" in line
    assert "no attempt counted: 3" in line
    assert "no broker" in line
    executor.away = None
    jobs.tick()
    assert len(executor.sent) == 6


def test_what_waits_in_the_broker_is_bounded(app: Flask, executor: Threads, db: SQLAlchemy) -> None:
    app.config["CRONJOBS_HANDED_LIMIT"] = 5
    app.config["CRONJOBS_TICK_BUDGET"] = 0.5
    jobs = CronJobs(app)
    task = jobs.task(queue="far", name="bounded")(lambda: None)
    with app.app_context():
        db.create_all()
        task.using(commit=True).enqueue_many([{}] * 12)
        jobs.tick()
        assert statuses(db).count("running") == len(executor.sent) == 5
        for run in executor.sent[:5]:
            executor.deliver(run)
        executor.results()
        jobs.tick()
        assert statuses(db).count("succeeded") == 5
        assert len(executor.sent) == 10


def test_cancel_ends_a_run_that_waits_in_the_broker(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue()
    jobs.tick()
    assert jobs.cancel(run.id).status == "cancelled"
    executor.deliver(executor.sent[0])
    assert executor.results() == [None]
    assert (loaded(db, run).status, run.locked_by) == ("cancelled", None)


@pytest.mark.parametrize("kind", ["task", "queue"])
def test_a_run_that_is_paused_in_the_broker_goes_back(
    kind: str, far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    run = far.enqueue()
    jobs.tick()
    jobs.pause(**{kind: "far"})
    executor.deliver(executor.sent[0])
    assert executor.results() == [None]
    assert (loaded(db, run).status, run.attempts) == ("queued", 0)
    jobs.tick()
    assert len(executor.sent) == 1
    jobs.resume(**{kind: "far"})
    jobs.tick()
    assert len(executor.sent) == 2


def test_a_concurrency_key_is_held_in_the_broker(
    executor: Threads, context: None, jobs: CronJobs
) -> None:
    @jobs.task(queue="far", concurrency=1, concurrency_key="all")
    def one() -> None: ...

    one.using(commit=True).enqueue_many([{}] * 3)
    jobs.tick()
    assert len(executor.sent) == 1
    for number in (2, 3):
        executor.deliver(executor.sent[-1])
        executor.results()
        jobs.tick()
        assert len(executor.sent) == number


def test_atomic_once_and_progress_are_as_here(
    executor: Threads, context: None, jobs: CronJobs, db: SQLAlchemy
) -> None:
    done: list[str] = []

    @jobs.task(queue="far", atomic=True)
    def atomically() -> int:
        return 1

    @jobs.task(queue="far")
    def effect() -> None:
        jobs.once("key", lambda: done.append("effect"))
        current_run.progress(0.5, "half")

    executor.keep = False
    first, second = (each.using(commit=True).enqueue() for each in (atomically, effect))
    jobs.tick()
    assert executor.results() == ["succeeded"] * 2
    assert (loaded(db, first).result, loaded(db, second).progress) == (1, 0.5)
    assert done == ["effect"]


def test_a_tick_for_one_queue_hands_on_no_other(
    far: Any, executor: Threads, jobs: CronJobs
) -> None:
    far.enqueue()
    jobs.tick(queues=["other"])
    assert executor.sent == []
    jobs.tick(queues=["far"])
    assert len(executor.sent) == 1


def test_a_limited_tick_hands_on_no_more(far: Any, executor: Threads, jobs: CronJobs) -> None:
    far.enqueue_many([{}] * 5)
    jobs.tick(max_runs=2)
    assert len(executor.sent) == 2


def test_an_executor_that_hangs_does_not_hold_a_tick_up(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when it answers at last, the thread that was left hands nothing on any more."""
    from flask_cronjobs.engine import hand_over

    answers, answered = threading.Event(), list[bool]()

    def waiting(queue: str) -> int:
        answered.append(answers.wait(120))
        return 0

    monkeypatch.setattr(hand_over, "ANSWER_WITHIN", 0.1)
    monkeypatch.setattr(executor, "waiting", waiting)
    far.enqueue()
    jobs.tick()
    assert answered == []
    (left,) = [each for each in threading.enumerate() if each.name == "cronjobs-hand-over"]
    answers.set()
    left.join()
    assert (answered, executor.sent, statuses(db)) == ([True], [], ["queued"])


@pytest.mark.parametrize(
    ("messages", "level"), [(0, logging.INFO), (7, logging.WARNING)], ids=["runs", "messages"]
)
def test_a_tick_that_hands_on_nothing_since_enough_waits_says_so(
    messages: int,
    level: int,
    app: Flask,
    executor: Threads,
    db: SQLAlchemy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app.config.update(CRONJOBS_HANDED_LIMIT=3, CRONJOBS_TICK_BUDGET=0.5)
    jobs = CronJobs(app)
    task = jobs.task(queue="far", name="bounded")(lambda: None)
    caplog.set_level(logging.INFO)
    with app.app_context():
        db.create_all()
        task.using(commit=True).enqueue_many([{}] * 5)
        handed = 0
        if messages:
            monkeypatch.setattr(executor, "waiting", lambda queue: messages)
        else:
            jobs.tick()
            handed = len(executor.sent)
            assert "was handed on for" not in caplog.text, "it has handed some on"
        jobs.tick()
    (line,) = [each for each in caplog.records if "was handed on for" in each.getMessage()]
    assert line.levelno == level
    assert "No run of the queue far" in line.getMessage()
    assert (
        f"{handed} wait in threads by the table, and its broker holds {messages} messages"
    ) in line.getMessage()


@on_postgresql
def test_a_message_whose_token_is_gone_makes_no_new_connection(
    database_url: str, far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a broker has lost time, there may be hundreds of them before the first good one."""
    from flask_cronjobs.db.engines import connect_apart
    from flask_cronjobs.executors import perform

    made: list[None] = []

    def count(*given: Any) -> Any:
        made.append(None)
        return connect_apart(*given)

    perform(1, "handed:threads:gone")
    monkeypatch.setattr("flask_cronjobs.db.connection.connect_apart", count)
    for _ in range(3):
        assert perform(1, "handed:threads:gone") is None
    assert made == [], "each message made a connection"


def test_a_tick_whose_budget_is_used_up_before_its_runs_hands_on_all_the_same(
    far: Any, executor: Threads, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host each tick may be so slow: then no run would ever begin."""
    monkeypatch.setattr("flask_cronjobs.engine.tick.tell_late", lambda *given: time.sleep(0.05))
    far.enqueue()
    jobs.tick(budget=0.01)
    assert len(executor.sent) == 1


# A broker gets what its workers begin within the leases, however high the limit is


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick end that would wait for the workers of an executor."""
    hand_on = hand_over._Queue.hand_on

    def hand_on_without_waiting(self: Any, most: int) -> str:
        found = hand_on(self, most)
        return "nothing" if found == "soon" else found

    monkeypatch.setattr(hand_over._Queue, "hand_on", hand_on_without_waiting)


@pytest.mark.usefixtures("leaving")
def test_a_queue_that_stands_still_gets_a_few(far: Any, executor: Threads, jobs: CronJobs) -> None:
    far.enqueue_many([{}] * (3 * FEW))
    for _ in range(2):
        jobs.tick()
        assert len(executor.sent) == FEW


@pytest.mark.usefixtures("leaving")
def test_a_queue_gets_as_many_more_as_ended_lately(
    far: Any, executor: Threads, jobs: CronJobs, state: State, rows: Rows
) -> None:
    lease = state.settings.lease
    for _ in range(5):
        rows.run("succeeded", queue="far")
        rows.run("succeeded", age=100 * lease, queue="far")
        rows.run("succeeded", queue="other")
        rows.run("cancelled", queue="far")
    far.enqueue_many([{}] * (3 * FEW))
    jobs.tick()
    assert len(executor.sent) == FEW + 5


def test_a_queue_that_is_worked_on_gets_all(
    far: Any, executor: Threads, jobs: CronJobs, db: SQLAlchemy
) -> None:
    executor.keep = False
    far.enqueue_many([{}] * (5 * FEW))
    jobs.tick()
    executor.results()
    db.session.expire_all()
    assert {run.status for run in db.session.query(JobRun)} == {"succeeded"}


@pytest.mark.usefixtures("leaving")
def test_stale_messages_are_worked_off_before_more_is_handed_on(
    far: Any, executor: Threads, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "waiting", lambda queue: FEW)
    far.enqueue_many([{}] * FEW)
    jobs.tick()
    assert executor.sent == []
