"""A shop with a table of its own, whose tasks do all that tasks can do."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import String, func, select
from sqlalchemy.orm import Mapped, mapped_column

from flask_cronjobs import CronJobs, Discard, Retry, RetryLater, current_run
from flask_cronjobs.models import JobRun


class OutOfStockError(Exception):
    """The error of one of the shop's tasks."""


class Shop:
    """An app with orders, and its tasks as attributes."""

    def __init__(self, app: Flask, db: SQLAlchemy, jobs: CronJobs) -> None:
        class Order(db.Model):  # type: ignore[name-defined, misc]
            id: Mapped[int] = mapped_column(primary_key=True)
            state: Mapped[str] = mapped_column(String(20), default="new")

        self.app, self.db, self.jobs, self.Order = app, db, jobs, Order
        self.mailed: list[Any] = []
        self.runs: list[dict[str, Any]] = []
        retry = Retry(max_attempts=3, base=60, jitter=False)

        @jobs.task(retry=retry)
        def ship(order_id: int) -> str:
            order = db.session.get(Order, order_id)
            if order is None:
                raise OutOfStockError(order_id)
            order.state = "shipped"
            db.session.commit()
            self.mail.using(idempotency_key=f"mail:{order_id}").enqueue(order_id)
            db.session.commit()
            return f"parcel {order_id}"

        @jobs.task
        def mail(order_id: int) -> None:
            self.mailed.append(order_id)

        @jobs.task(retry=retry)
        def spoil(order_id: int) -> None:
            """Write, perform an effect, and fail: the write is lost, but the effect is not."""
            jobs.once(f"mail:{order_id}", self.mailed.append, order_id)
            db.session.get_one(Order, order_id).state = "spoiled"
            db.session.flush()
            raise OutOfStockError(order_id)

        @jobs.task(retry=retry)
        def charge(order_id: int, fail: bool = False) -> str:
            """Perform an effect while the session has uncommitted work."""
            db.session.get_one(Order, order_id).state = "charging"
            db.session.flush()
            receipt = jobs.once(f"charge:{order_id}", self.pay)
            if fail:
                raise OutOfStockError(order_id)
            db.session.commit()
            return str(receipt)

        @jobs.task(atomic=True, retry=retry)
        def pack(order_id: int, fail: bool = False) -> None:
            db.session.get_one(Order, order_id).state = "packed"
            if fail:
                raise OutOfStockError(order_id)

        @jobs.task
        def decide(how: str) -> None:
            raise Discard("no") if how == "discard" else RetryLater(timedelta(minutes=5), "later")

        @jobs.task(timeout=0.2)
        def hang() -> None:
            time.sleep(5)

        @jobs.task
        async def fetch(number: int) -> int:
            return number + 1

        @jobs.task(schedule="0 7 * * 1-5", timezone="Asia/Tokyo", payload={"kind": "daily"})
        def report(kind: str) -> None:
            run = current_run
            run.progress(0.5, "half")
            self.runs.append(
                {"kind": kind, "attempt": run.attempt, "at": run.scheduled_for, "id": run.id}
            )

        self.ship, self.mail, self.spoil, self.charge, self.pack = ship, mail, spoil, charge, pack
        self.decide, self.hang, self.fetch, self.report = decide, hang, fetch, report

    def pay(self) -> str:
        """Perform an effect, and return its receipt."""
        self.mailed.append("paid")
        return "R-1"

    def order(self) -> int:
        """Commit a new order, and return its id."""
        order = self.Order()
        self.db.session.add(order)
        self.db.session.commit()
        order_id: int = order.id
        return order_id

    def state_of(self, order_id: int) -> str:
        """Return the state of an order, as it is in the database."""
        query = select(self.Order.state).where(self.Order.id == order_id)
        return str(self.db.session.scalar(query))

    def statuses(self) -> list[str]:
        """Return the statuses of all runs, oldest first."""
        return list(self.db.session.scalars(select(JobRun.status).order_by(JobRun.id)))

    def number_of_runs(self) -> int:
        """Return how many runs there are."""
        return self.db.session.scalar(select(func.count(JobRun.id))) or 0
