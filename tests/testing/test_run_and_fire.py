"""`run`, `fire` and `travel`, in every setup."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text

from flask_cronjobs import CronJobs, NotFound, PayloadError, SetupError, StateConflict, UnknownTask
from flask_cronjobs.db.create import set_wal
from flask_cronjobs.db.dialect import clock_shift, dialect_of
from flask_cronjobs.models import JobDefinition
from flask_cronjobs.testing import drain, enqueued, fire, run, travel
from flask_cronjobs.types import stored_time
from tests.testing.conftest import in_each_setup
from tests.testing.shop import OutOfStockError, Shop

#: A Tuesday; the first is seven o'clock in Tokyo, so a slot of the report.
SLOT = datetime(2030, 1, 7, 22, 0, tzinfo=timezone.utc)
NAIVE = datetime(2030, 1, 1)
LATER = datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.utc)


@in_each_setup
def test_run_calls_the_handler_as_a_run(shop: Shop) -> None:
    order = shop.order()
    ended = run(shop.ship, order_id=order)
    assert (ended.status, ended.result, ended.attempts) == ("succeeded", f"parcel {order}", 1)
    assert ended.queue == "default"
    assert shop.state_of(order) == "shipped"
    assert [row.status for row in enqueued(shop.mail)] == ["queued"]


def test_run_is_seen_by_the_handler(shop: Shop) -> None:
    ended = run(shop.report, {"kind": "x"})
    assert shop.runs == [{"kind": "x", "attempt": 1, "at": ended.scheduled_for, "id": ended.id}]
    assert (ended.progress, ended.progress_message) == (0.5, "half")


def test_run_raises_what_the_handler_raised(shop: Shop) -> None:
    with pytest.raises(OutOfStockError):
        run(shop.ship, order_id=99)
    assert shop.statuses() == ["failed"]
    again = run(shop.ship, {"order_id": 99}, raise_errors=False)
    assert (again.status, again.attempts) == ("failed", 1)


def test_run_that_its_concurrency_key_keeps_waiting_is_an_error(shop: Shop) -> None:
    @shop.jobs.task(concurrency=1)
    def alone() -> None: ...

    running = alone.using(commit=True).enqueue()
    running.status, running.locked_by, running.concurrency_share = "running", "h:1:x", 1
    running.locked_until = datetime.now(timezone.utc) + timedelta(hours=1)
    running.started_at = datetime.now(timezone.utc)
    shop.db.session.commit()
    with pytest.raises(StateConflict, match="concurrency key"):
        run(alone)


@in_each_setup
def test_fire_runs_a_slot_at_its_time(shop: Shop) -> None:
    ended = fire("report", at=SLOT)
    assert (ended.status, ended.scheduled_for) == ("succeeded", SLOT)
    assert shop.runs == [{"kind": "daily", "attempt": 1, "at": SLOT, "id": ended.id}]
    assert ended.finished_at is not None
    assert timedelta() <= ended.finished_at - SLOT < timedelta(minutes=1)
    assert clock_shift() == 0


def test_fire_without_a_time_runs_the_next_slot(shop: Shop) -> None:
    definition_then = fire("report")
    definition = shop.db.session.scalars(select(JobDefinition)).one()
    assert definition_then.scheduled_for == definition.next_run_at
    assert definition_then.scheduled_for > datetime.now(timezone.utc)


def test_fire_refuses_what_is_no_slot(shop: Shop) -> None:
    with pytest.raises(ValueError, match=r"has no slot at 2030-01-07 22:01:00.*2030-01-08 22:00"):
        fire("report", at=SLOT + timedelta(minutes=1))
    with pytest.raises(ValueError, match="has no slot at 2030-01-07 22:00:30"):
        fire("report", at=SLOT + timedelta(seconds=30))
    with pytest.raises(ValueError, match=r"has no slot at 2030-01-11 22:00:00.*2030-01-13 22:00"):
        fire("report", at=SLOT + timedelta(days=4))  # A Saturday.
    fire("report", at=SLOT)
    with pytest.raises(StateConflict, match="already has a run"):
        fire("report", at=SLOT)


def test_fire_skips_a_slot_while_an_earlier_run_waits(shop: Shop) -> None:
    first = fire("report", at=SLOT)
    first.status, first.finished_at = "queued", None
    shop.db.session.commit()
    second = fire("report", at=SLOT + timedelta(days=1))
    assert (second.status, second.error_type) == ("skipped", "Overlap")
    assert len(shop.runs) == 1


def now(shop: Shop) -> datetime:
    """Return the time that the jobs see."""
    clock = dialect_of(shop.db.engine).now
    return stored_time(shop.db.session.scalar(text(f"SELECT {clock}")))


def test_travel_moves_the_clock_and_sets_it_back(shop: Shop) -> None:
    with travel(LATER):
        assert timedelta() <= now(shop) - LATER < timedelta(seconds=30)
        with travel(timedelta(hours=-1)):
            assert timedelta() <= now(shop) - LATER + timedelta(hours=1) < timedelta(seconds=30)
        assert timedelta() <= now(shop) - LATER < timedelta(seconds=30)
    assert abs(now(shop) - datetime.now(timezone.utc)) < timedelta(seconds=30)


@in_each_setup
def test_runs_come_due_where_the_clock_has_moved(shop: Shop) -> None:
    shop.mail.using(run_at=LATER, commit=True).enqueue(1)
    shop.mail.using(delay=3600, commit=True).enqueue(2)
    assert drain(shop.jobs).attempts == 0
    with travel(timedelta(hours=1, seconds=1)):
        assert drain(shop.jobs).succeeded == 1
    with travel(LATER):
        shop.mail.using(delay=60, commit=True).enqueue(3)
        assert drain(shop.jobs).succeeded == 1
        (run,) = enqueued(shop.mail)[2:]
        assert timedelta(seconds=60) <= run.run_at - LATER < timedelta(seconds=90)
    assert shop.mailed == [2, 1]
    assert all(run.status != "dead" for run in enqueued())


Given = dict[str, Any]
WRONG: list[tuple[Any, tuple[Any, ...], Given, type[Exception], str]] = [
    (drain, (5,), {}, TypeError, "is not a CronJobs"),
    (run, ("mail", 5), {}, PayloadError, r"payload is of type int\. Give a dict"),
    (run, ("mail", 1, "x"), {}, TypeError, "from 1 to 2 positional arguments but 3 were given"),
    (run, ("ship", {"order_id": object()}), {}, PayloadError, "of type object"),
    (run, ("ship",), {}, TypeError, "missing a required argument: 'order_id'"),
    (run, ("shop",), {}, UnknownTask, "Did you mean 'ship'"),
    (travel, ("tomorrow",), {}, ValueError, "'tomorrow'. Give an aware time"),
    (travel, (NAIVE,), {}, ValueError, "with a time zone"),
    (fire, ("reports",), {}, NotFound, r"no definition 'reports'.*report"),
    (fire, ("report", NAIVE), {}, ValueError, "with a time zone"),
    *((fire, (name,), {}, TypeError, "is not a task") for name in (7, None, b"report")),
]


@pytest.mark.parametrize(("helper", "given", "more", "error", "message"), WRONG)
def test_helpers_say_what_to_give(
    shop: Shop, helper: Any, given: Any, more: Given, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), helper(*given, **more):
        pass
    assert shop.number_of_runs() == 0


def test_helpers_need_an_app_context() -> None:
    for helper in (drain, enqueued, lambda: run("x"), lambda: fire("x")):
        with pytest.raises(SetupError, match="no current app"):
            helper()


@pytest.mark.flask_sqlalchemy
def test_handler_that_ends_the_tests_transaction_is_named(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    with app.app_context(), db.engine.connect() as connection:
        transaction = connection.begin()

        @jobs.task
        def rough() -> None:
            """Commit on the connection, which the session does not notice."""
            transaction.commit()

        engines: Any = db.engines
        engine, engines[None] = engines[None], connection
        rough.using(commit=True).enqueue()
        with pytest.raises(SetupError, match="ended the transaction in which the test runs"):
            drain(jobs)
        db.session.remove()
        engines[None] = engine


def test_fire_takes_the_task_whose_definition_is_meant(shop: Shop) -> None:
    assert fire(shop.report).status == "succeeded"


@pytest.mark.parametrize("engine_options", [{"isolation_level": "SERIALIZABLE"}], indirect=True)
def test_session_sees_the_runs_though_its_transaction_is_older(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    """In a snapshot, the helpers did not find the runs that they had made."""
    jobs.task(name="it", schedule="@daily")(lambda: None)
    with app.app_context():
        if db.engine.dialect.name == "sqlite":
            set_wal(db.engine)
            event.listen(db.engine, "begin", lambda begun: begun.exec_driver_sql("BEGIN"))
        waiting = jobs.enqueue("it", commit=True)
        assert waiting.status == "queued"  # This begins the transaction.
        assert drain().succeeded == 1
        assert waiting.status == "succeeded"
        assert fire("it").status == "succeeded"
        assert run("it").status == "succeeded"
