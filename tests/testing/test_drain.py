"""`drain` and `enqueued`, in every setup."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import func, select

from flask_cronjobs import SetupError, current_run
from flask_cronjobs.models import JobEffect, JobFailure, JobRun, JobStep
from flask_cronjobs.testing import drain, enqueued, inline, run, travel
from tests.testing.conftest import SHARED, in_each_setup
from tests.testing.shop import OutOfStockError, Shop


@in_each_setup
def test_drain_runs_what_is_due_and_what_that_enqueues(shop: Shop) -> None:
    order = shop.order()
    run_id = shop.ship.enqueue(order).id
    shop.db.session.commit()
    report = drain(shop.jobs)
    assert (report.succeeded, report.attempts) == (2, 2)
    assert shop.state_of(order) == "shipped"
    assert shop.mailed == [order]
    assert shop.db.session.get_one(JobRun, run_id).result == f"parcel {order}"


def test_drain_ends_batches_and_runs_what_follows(shop: Shop) -> None:
    with shop.jobs.batch("orders", then=shop.mail, then_payload={"order_id": 777}):
        order = shop.order()
        shop.ship.enqueue(order)
    shop.db.session.commit()
    drain(shop.jobs)
    assert sorted(shop.mailed) == [order, 777]


def test_drain_raises_what_a_handler_raised_once_it_is_recorded_unless_it_is_to_count(
    shop: Shop,
) -> None:
    shop.ship.using(commit=True).enqueue(99)
    shop.mail.using(commit=True, priority=-1).enqueue(1)
    with pytest.raises(OutOfStockError) as raised:
        drain(shop.jobs)
    assert "ship" in {frame.name for frame in raised.traceback}
    assert shop.statuses() == ["failed", "queued"]
    (failure,) = shop.db.session.scalars(select(JobFailure))
    assert failure.error_type.endswith("OutOfStockError")
    shop.db.session.commit()
    shop.ship.using(commit=True).enqueue(98)
    report = drain(shop.jobs, raise_errors=False)
    assert (report.failed, report.succeeded) == (1, 1)


def test_drain_with_delayed_runs_retries_until_the_run_is_dead(shop: Shop) -> None:
    run_id = shop.ship.using(commit=True).enqueue(99).id
    report = drain(shop.jobs, raise_errors=False, with_delayed=True)
    assert (report.failed, report.dead) == (2, 1)
    ended = shop.db.session.get_one(JobRun, run_id)
    assert (ended.status, ended.attempts) == ("dead", 3)
    assert ended.finished_at is not None
    assert (ended.finished_at - ended.created_at).total_seconds() >= 60 + 120


@in_each_setup
def test_work_of_a_failed_handler_is_rolled_back_and_its_effect_stays(shop: Shop) -> None:
    order = shop.order()
    shop.spoil.using(commit=True).enqueue(order)
    report = drain(shop.jobs, raise_errors=False, with_delayed=True)
    assert (report.failed, report.dead) == (2, 1)
    assert shop.state_of(order) == "new"
    assert shop.mailed == [order]
    assert [effect.state for effect in shop.db.session.scalars(select(JobEffect))] == ["done"]


@pytest.mark.parametrize("shop", [n for n in SHARED if n != "sqlite-memory"], indirect=True)
def test_effect_survives_the_rollback_of_the_transaction_around_it(shop: Shop) -> None:
    order = shop.order()
    shop.charge.using(commit=True).enqueue(order, fail=True)
    drain(shop.jobs, raise_errors=False, with_delayed=True)
    assert shop.mailed == ["paid"]
    assert shop.state_of(order) == "new"


@pytest.mark.parametrize("shop", ["sqlite-memory", "sqlite-file"], indirect=True)
def test_effect_amid_uncommitted_work_is_refused_where_the_app_would_refuse_it(shop: Shop) -> None:
    shop.charge.using(commit=True).enqueue(shop.order())
    with pytest.raises(SetupError, match="once\\(\\) cannot write to job_effects"):
        drain(shop.jobs)
    assert shop.mailed == []


def test_uncommitted_runs_and_objects_are_an_error_not_nothing_to_do(shop: Shop) -> None:
    shop.mail.enqueue(1)
    with pytest.raises(SetupError, match=r"uncommitted work.*mail \(run \d+\).*commit"):
        drain(shop.jobs)
    shop.db.session.commit()
    assert drain(shop.jobs).succeeded == 1
    shop.db.session.add(shop.Order())
    with pytest.raises(SetupError, match="1 new object"):
        drain(shop.jobs)


@pytest.mark.parametrize("shop", ["sqlite-memory", "sqlite-file"], indirect=True)
def test_flushed_work_that_holds_the_database_is_an_error(shop: Shop) -> None:
    shop.db.session.add(shop.Order())
    shop.db.session.flush()
    with pytest.raises(SetupError, match="Commit"):
        drain(shop.jobs)


def test_runs_of_tasks_that_the_app_does_not_know_are_an_error(shop: Shop) -> None:
    run = shop.mail.enqueue(1)
    run.job_type = "elsewhere"
    shop.db.session.commit()
    with pytest.raises(SetupError, match=r"'elsewhere' are due.*declares no such task"):
        drain(shop.jobs)


@in_each_setup
def test_tick_is_refused_where_it_would_see_nothing(shop: Shop, request: Any) -> None:
    name = request.node.callspec.params["shop"]
    shop.mail.using(commit=True).enqueue(1)
    if name in SHARED:
        with pytest.raises(SetupError, match=r"Use drain\(\)|use drain\(\)"):
            shop.jobs.tick()
    else:
        assert shop.jobs.tick().succeeded == 1


@in_each_setup
def test_operators_methods_and_reports_work_beside_the_tests_session(shop: Shop) -> None:
    run = shop.mail.using(commit=True).enqueue(1)
    shop.jobs.cancel(run.id)
    assert shop.statuses() == ["cancelled"]
    shop.db.session.commit()
    shop.jobs.retry(run.id)
    shop.jobs.add_definition("extra", "mail", schedule="@daily", payload={"order_id": 3})
    assert shop.jobs.run_now("extra") > run.id
    assert shop.jobs.health().word == "never"
    assert drain(shop.jobs).succeeded == 2
    assert shop.mailed == [1, 3]


def test_once_outside_of_runs_leaves_its_mark_in_the_test(shop: Shop) -> None:
    assert shop.jobs.once("key", lambda: 1) == 1
    assert shop.jobs.once("key", lambda: 2) == 1


def test_enqueued_runs_are_seen_committed_or_not(shop: Shop) -> None:
    at = datetime(2030, 1, 2, 3, 4, tzinfo=timezone.utc)
    shop.mail.using(run_at=at, idempotency_key="k").enqueue(1)
    (run,) = enqueued(shop.mail)
    assert (run.payload, run.run_at, run.idempotency_key) == ({"order_id": 1}, at, "k")
    shop.ship.using(commit=True).enqueue(2)
    assert [run.job_type for run in enqueued()] == ["mail", "ship"]
    assert [run.payload for run in enqueued("ship")] == [{"order_id": 2}]
    assert enqueued(after=run.id) == enqueued("ship")


def test_handler_that_enqueues_itself_for_ever_is_stopped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "MAX_ATTEMPTS", 5)

    @shop.jobs.task
    def again() -> None:
        again.using(commit=True).enqueue()

    again.using(commit=True).enqueue()
    with pytest.raises(SetupError, match="5 attempts were made"):
        drain(shop.jobs)


def test_ctrl_c_in_a_handler_gives_the_run_back_and_ends_the_test(shop: Shop) -> None:
    @shop.jobs.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    interrupted.using(commit=True).enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(shop.jobs, raise_errors=False)
    (run,) = enqueued("interrupted")
    assert (run.status, run.attempts) == ("queued", 0)


def test_drain_inside_a_handler_is_refused(shop: Shop) -> None:
    @shop.jobs.task
    def nested() -> None:
        drain(shop.jobs)

    nested.using(commit=True).enqueue()
    with pytest.raises(SetupError, match="inside a handler"):
        drain(shop.jobs)


def test_runs_that_were_enqueued_ahead_of_the_clock_are_not_skipped_silently(shop: Shop) -> None:
    """The handler of a definition that was fired at a later time enqueues such runs."""
    with travel(timedelta(days=30)):
        shop.mail.using(commit=True).enqueue(1)
    with pytest.raises(SetupError, match=r"'mail' were enqueued .*with_delayed=True"):
        drain()
    assert shop.mailed == []
    assert drain(with_delayed=True).succeeded == 1
    shop.mail.using(commit=True, delay=60).enqueue(2)
    assert drain().succeeded == 0  # It still waits.


# Durable steps


def close_month(shop: Shop) -> Any:
    """Use every feature of steps, and fail once."""

    def order() -> int:
        order = shop.Order()
        shop.db.session.add(order)
        shop.db.session.flush()
        return int(order.id)

    @shop.jobs.task(name="close_month", retry=2)
    def close() -> Any:
        first = shop.jobs.step("first", order)
        for ids in shop.jobs.each("orders", lambda after: [1, 2][after or 0 :][:1]):
            order()
            if ids == [2] and current_run.attempt == 1:
                raise RuntimeError("in the second chunk")
        shop.jobs.sleep("a day", timedelta(days=1))
        return [first, shop.jobs.wait("approved")]

    return close


@in_each_setup
def test_drain_goes_from_step_to_step(shop: Shop) -> None:
    close = close_month(shop)
    close.using(commit=True).enqueue()
    assert drain(raise_errors=False).failed == 1
    (closing,) = enqueued("close_month")
    assert shop.jobs.signal(closing, "approved", "by ann")
    shop.db.session.commit()
    drain(with_delayed=True)
    (closing,) = enqueued("close_month")
    assert closing.status == "succeeded"
    assert isinstance(closing.result, list)
    assert closing.result[1] == "by ann"
    assert shop.db.session.scalar(select(func.count()).select_from(shop.Order)) == 3
    steps = shop.db.session.scalar(select(func.count()).select_from(JobStep))
    assert steps == 4


@in_each_setup
def test_run_returns_the_run_as_it_waits(shop: Shop) -> None:
    def approve() -> Any:
        shop.jobs.step("first", lambda: 1)
        return shop.jobs.wait("approved", timeout=60)

    shop.jobs.task(name="approve")(approve)
    approval = run("approve")
    assert (approval.status, approval.attempts) == ("queued", 0)
    shop.jobs.signal(approval, "approved")
    shop.db.session.commit()
    drain()
    assert [row.result for row in enqueued("approve")] == [True]
