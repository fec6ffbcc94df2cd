"""Durable steps by the helpers, in every set-up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import func, select

from flask_cronjobs import current_run
from flask_cronjobs.models import JobStep
from flask_cronjobs.testing import drain, enqueued, run
from tests.testing.conftest import in_each_setup
from tests.testing.shop import Shop


def close_month(shop: Shop) -> Any:
    """A task that does all that steps can do, and fails once."""

    def order() -> int:
        made = shop.Order()
        shop.db.session.add(made)
        shop.db.session.flush()
        return int(made.id)

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
    (made,) = enqueued("close_month")
    assert shop.jobs.signal(made, "approved", "by ann")
    shop.db.session.commit()
    drain(with_delayed=True)
    (made,) = enqueued("close_month")
    assert made.status == "succeeded"
    assert isinstance(made.result, list)
    assert made.result[1] == "by ann"
    assert shop.db.session.scalar(select(func.count()).select_from(shop.Order)) == 3
    steps = shop.db.session.scalar(select(func.count()).select_from(JobStep))
    assert steps == 4


@in_each_setup
def test_run_returns_the_run_as_it_waits(shop: Shop) -> None:
    def approve() -> Any:
        shop.jobs.step("first", lambda: 1)
        return shop.jobs.wait("approved", timeout=60)

    shop.jobs.task(name="approve")(approve)
    made = run("approve")
    assert (made.status, made.attempts) == ("queued", 0)
    shop.jobs.signal(made, "approved")
    shop.db.session.commit()
    drain()
    assert [each.result for each in enqueued("approve")] == [True]
