"""Enqueue joins ``db.session``: the run exists when the user's transaction commits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import (
    CronJobs,
    NotFound,
    PayloadError,
    Retry,
    StateConflict,
    Task,
    UnknownTask,
)
from flask_cronjobs.models import JobRun
from tests.marks import on_both
from tests.rows import runs

Greet = Task[[int, str], None]
Warnings = Callable[[], list[str]]


@pytest.fixture
def greet(jobs: CronJobs) -> Any:
    """A task with two arguments."""

    @jobs.task(queue="mail", priority=2, retry=Retry(max_attempts=4))
    def greet(user_id: int, week: str = "now") -> None: ...

    return greet


def enqueue_and_fail(greet: Greet) -> None:
    greet.enqueue(2, "dropped")
    raise ZeroDivisionError


@pytest.mark.usefixtures("context")
class TestTransaction:
    @on_both
    def test_commit_makes_the_run_exist(self, db: SQLAlchemy, greet: Any) -> None:
        assert greet.enqueue(1).payload == {"user_id": 1}  # A default may change: it is not stored.
        db.session.rollback()
        run = greet.enqueue(1, "then")
        assert isinstance(run, JobRun)
        assert run.payload == {"user_id": 1, "week": "then"}
        db.session.commit()
        (row,) = runs(db)
        assert (row.job_type, row.status, row.queue) == ("greet", "queued", "mail")
        assert (row.priority, row.max_attempts, row.attempts) == (2, 4, 0)

    def test_nothing_is_stored_if_the_arguments_are_wrong(self, db: SQLAlchemy, greet: Any) -> None:
        for args, wrong in ((), {}), ((), {"user": 1}), ((1,), {"extra": 2}), ((1, "x", 3), {}):
            with pytest.raises(TypeError, match=r"^greet\(\) "):
                greet.enqueue(*args, **wrong)
        with pytest.raises(PayloadError, match="user_id: expected a whole number"):
            greet.enqueue(object())
        with pytest.raises(PayloadError, match="CRONJOBS_MAX_PAYLOAD_BYTES"):
            greet.enqueue(1, "x" * 70_000)
        db.session.commit()
        assert runs(db) == []


@pytest.mark.usefixtures("context")
class TestUsing:
    def test_options_go_over_the_task_s(self, db: SQLAlchemy, greet: Greet) -> None:
        """An option counts even if it is false; a missing option is the task's."""
        run = greet.using(queue="other", max_attempts=1, priority=0).enqueue(1, "x")
        assert (run.queue, run.priority, run.max_attempts) == ("other", 0, 1)
        greet.using(priority=9, queue="bulk").enqueue_many([{"user_id": 2}])
        assert greet.enqueue_many([]) == []
        db.session.commit()
        many = runs(db)[1]
        assert (many.queue, many.priority, many.max_attempts) == ("bulk", 9, 4)

    @on_both
    def test_delay_is_counted_by_the_database(self, greet: Greet) -> None:
        run = greet.using(delay=300).enqueue(1, "x")
        again = greet.using(delay=timedelta(minutes=5)).enqueue(1, "x")
        for delayed in (run, again):
            seconds = (delayed.run_at - delayed.created_at).total_seconds()
            assert seconds == pytest.approx(300, abs=6)

    @on_both
    def test_key_of_a_run_that_is_tried_again_makes_no_second_one(
        self, db: SQLAlchemy, jobs: CronJobs, greet: Greet
    ) -> None:
        """This holds for an enqueue before the retry and for one after it."""
        keyed = greet.using(idempotency_key="key", commit=True)
        first = keyed.enqueue(1, "x").id
        for end in ("cancelled", "dead"):
            db.session.execute(
                update(JobRun).values(status=end, finished_at=datetime.now(timezone.utc))
            )
            db.session.commit()
            assert keyed.enqueue(2, "y").id == first
            assert jobs.retry(first).status == "queued"
            assert keyed.enqueue(3, "z").id == first
        assert jobs.tick().succeeded == 1
        with pytest.raises(StateConflict, match=r"succeeded\. To do its work again"):
            jobs.retry(first)
        assert [(run.id, run.status) for run in runs(db)] == [(first, "succeeded")]

    @on_both
    def test_key_is_taken_until_its_run_is_pruned_which_cannot_be_tried_again(
        self, db: SQLAlchemy, jobs: CronJobs, greet: Greet
    ) -> None:
        keyed = greet.using(idempotency_key="key", commit=True)
        run = keyed.enqueue(1, "x")
        first = run.id
        assert keyed.enqueue(2, "y") is run
        assert jobs.tick().succeeded == 1
        assert keyed.enqueue(1, "x").id == first
        long_ago = datetime(2020, 1, 1, tzinfo=timezone.utc)
        db.session.execute(update(JobRun).values(status="dead", finished_at=long_ago))
        db.session.commit()
        assert jobs.prune() == 1
        second = keyed.enqueue(1, "x").id
        assert second > first
        with pytest.raises(NotFound, match="may have been pruned"):
            jobs.retry(first)
        assert [run.id for run in runs(db)] == [second]


@pytest.mark.usefixtures("context")
def test_task_is_enqueued_by_its_name(jobs: CronJobs, greet: Greet) -> None:
    run = jobs.enqueue("greet", {"user_id": 1}, priority=7, idempotency_key="key", commit=True)
    assert (run.job_type, run.payload, run.priority) == ("greet", {"user_id": 1}, 7)
    with pytest.raises(UnknownTask, match="Did you mean 'greet'"):
        jobs.enqueue("great")
    with pytest.raises(TypeError, match="greet"):
        jobs.enqueue("greet", {"user": 1})


class TestUncommitted:
    """A run that is enqueued and never committed is lost, and a warning names it."""

    @pytest.fixture
    def warnings(self, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
        """Return the warnings so far."""
        return lambda: [
            record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
        ]

    def test_context_that_ends_without_commit_warns(
        self, app: Flask, greet: Greet, warnings: Warnings
    ) -> None:
        with app.app_context():
            run = greet.enqueue(1, "x").id
            greet.enqueue_many([{"user_id": 2}, {"user_id": 3}])
            for number in range(13):
                greet.enqueue(number, "x")
        (warning,) = warnings()
        assert f"greet (run {run}), greet (2 runs)" in warning
        assert "and 5 more" in warning

    def test_run_that_was_settled_or_lost_by_an_exception_is_not_warned_of(
        self, app: Flask, db: SQLAlchemy, greet: Greet, warnings: Warnings
    ) -> None:
        for end in ("commit", "rollback"):
            with app.app_context():
                greet.enqueue(1, "x")
                getattr(db.session, end)()
        with pytest.raises(ZeroDivisionError), app.app_context():
            enqueue_and_fail(greet)
        assert warnings() == []

    @on_both
    @pytest.mark.parametrize("engine_options", [{"isolation_level": "AUTOCOMMIT"}], indirect=True)
    def test_work_that_has_committed_by_itself_is_not_warned_of(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, greet: Greet, warnings: Warnings
    ) -> None:
        @jobs.task(name="it")
        def enqueue_and_write() -> None:
            greet.enqueue(1, "x")
            db.session.execute(update(JobRun).values(label="x"))

        with app.app_context():
            run_id = jobs.enqueue("it").id
        with app.app_context():
            assert jobs.tick().succeeded == 2
            assert db.session.get_one(JobRun, run_id).last_error is None
        assert warnings() == []

    @on_both
    def test_run_of_a_savepoint_that_was_rolled_back_is_not_warned_of(
        self, app: Flask, db: SQLAlchemy, greet: Greet, warnings: Warnings
    ) -> None:
        with app.app_context():
            kept = greet.enqueue(1, "x").id
            with db.session.begin_nested() as savepoint:
                greet.enqueue(2, "x")
                with db.session.begin_nested():
                    greet.enqueue(3, "x")
                savepoint.rollback()
            with db.session.begin_nested():
                later = greet.enqueue(4, "x").id
        (warning,) = warnings()
        assert f"so lost: greet (run {kept}), greet (run {later}). Call" in warning

    @pytest.mark.parametrize("end", ["remove", "close"])
    @pytest.mark.parametrize("then", ["nothing", "commit", "rollback", "enqueue"])
    def test_run_lost_with_its_session_is_warned_of_whatever_follows(
        self, app: Flask, db: SQLAlchemy, greet: Greet, warnings: Warnings, end: str, then: str
    ) -> None:
        with app.app_context():
            run_id = greet.enqueue(1, "x").id
            getattr(db.session, end)()
            if then == "enqueue":
                greet.using(commit=True).enqueue(2, "y")
            elif then != "nothing":
                db.session.execute(select(1))
                getattr(db.session, then)()
        (warning,) = warnings()
        assert f"so lost: greet (run {run_id}). Call db.session.commit()" in warning

    def test_what_a_handler_loses_by_removing_the_session_is_reported(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, greet: Greet
    ) -> None:
        @jobs.task
        def forget() -> None:
            greet.enqueue(1, "x")
            db.session.remove()
            db.session.execute(select(1))
            db.session.commit()

        with app.app_context():
            run = forget.using(commit=True).enqueue().id
            jobs.tick()
            error = db.session.get_one(JobRun, run).last_error
        assert "Enqueued and never committed, so lost: greet (run" in (error or "")

    def test_run_is_warned_of_once_though_its_key_is_used_twice_and_not_if_it_exists(
        self, app: Flask, db: SQLAlchemy, greet: Greet, warnings: Warnings
    ) -> None:
        keyed = greet.using(idempotency_key="key")
        with app.app_context(), db.session.begin_nested():  # A savepoint decides nothing.
            run = keyed.enqueue(1, "x").id
            keyed.enqueue(1, "x")
            greet.enqueue_many([{"user_id": 1}])
        (warning,) = warnings()
        assert f"so lost: greet (run {run}), greet (1 run)." in warning
        with app.app_context():
            keyed.using(commit=True).enqueue(1, "x")
        with app.app_context():
            keyed.enqueue(1, "x")
        assert warnings() == [warning]
