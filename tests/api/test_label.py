"""``label=``: a short text that says whom a run is for."""

from __future__ import annotations

from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, TaskError, signals
from flask_cronjobs import testing as helpers
from flask_cronjobs.models import JobRun
from tests.kit import received
from tests.marks import on_both

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def bill(jobs: CronJobs) -> Any:
    @jobs.task(
        label="invoice {invoice_id}, {customer}", schedule="@daily", payload={"invoice_id": 0}
    )
    def bill(invoice_id: int, customer: str = "nobody") -> None: ...

    return bill


def labels(db: SQLAlchemy) -> list[str | None]:
    db.session.expire_all()
    return list(db.session.scalars(select(JobRun.label).order_by(JobRun.id)))


@on_both
def test_each_way_to_a_run_makes_its_label(jobs: CronJobs, db: SQLAlchemy, bill: Any) -> None:
    run = bill.using(idempotency_key="it").enqueue(1)
    assert run.label == "invoice 1, nobody"
    bill.enqueue_many([{"invoice_id": 2}, {"invoice_id": 3, "customer": "Ada"}])
    bill.using(idempotency_key="it", replace=True).enqueue(4)
    db.session.commit()
    jobs.tick(max_runs=0)
    jobs.run_now("bill")
    jobs.run_now("bill", {"invoice_id": 5})
    jobs.run_again(run.id)
    jobs.run_again(run.id, {"invoice_id": 6})
    jobs.cancel(run.id)
    jobs.retry(run.id, {"invoice_id": 7})
    with jobs.batch("all", then=bill, then_payload={"invoice_id": 8}):
        pass
    numbers = (7, 2, 3, 0, 5, 4, 6, 8)
    names = ["Ada" if number == 3 else "nobody" for number in numbers]
    assert labels(db) == [f"invoice {n}, {name}" for n, name in zip(numbers, names, strict=True)]


@on_both
def test_slots_have_the_label_of_their_definition(jobs: CronJobs, bill: Any) -> None:
    jobs.tick()
    assert helpers.fire(bill).label == "invoice 0, nobody"


@pytest.mark.parametrize(
    ("label", "payload", "label_of_run"),
    [
        ("{token} for {user}", {"token": "s3cret", "user": 5}, "*** for 5"),
        ("{card}", {"card": {"api_key": "s3cret", "id": 5}}, "{'api_key': ***"),
        ("{card[api_key]}", {"card": {"api_key": "s3cret"}}, "***"),
        ("at {url}", {"url": "https://u:s3cret@host/"}, "at https://***@host/"),
        ("password={user}", {"user": "s3cret"}, "password=***"),
        ("{token:.2f}", {"token": 5}, None),
        ("{user}", {"user": "a\nb\x1b[1m\u202e"}, "a b [1m"),
        ("{user}", {"user": "\u0646\u0645\u06cc\u200c\u062e"}, "\u0646\u0645\u06cc\u200c\u062e"),
        ("{user}", {"user": "x" * 9000}, "x" * 119 + "…"),
        ("{user}", {"user": " "}, None),
        ("{user}", {"other": 1}, None),
        ("{user.name}", {"user": 1}, None),
    ],
)
def test_label_is_short_clean_and_without_secrets(
    jobs: CronJobs, label: str, payload: dict[str, object], label_of_run: str | None
) -> None:
    @jobs.task(name="it", label=label)
    def it(**arguments: object) -> None: ...

    assert jobs.enqueue("it", payload).label == label_of_run
    assert jobs.get("it").label_for({"user": "s3cret"}, ["user"]) != "s3cret"


@on_both
def test_signals_know_the_label(jobs: CronJobs, db: SQLAlchemy, bill: Any) -> None:
    bill.enqueue(1)
    gone = bill.enqueue(2)
    db.session.commit()
    with received(signals.run_started, signals.run_succeeded, signals.run_cancelled) as outcomes:
        jobs.cancel(gone.id)
        jobs.tick()
    labels = ["invoice 2, nobody", "invoice 1, nobody", "invoice 1, nobody"]
    assert [outcome.label for outcome in outcomes] == labels


def test_letters_that_are_joined_or_kept_apart_pass_in_names(jobs: CronJobs) -> None:
    jobs.task(name="\u0646\u0645\u06cc\u200c\u062e", queue="\u0915\u094d\u200d\u0937")(lambda: None)
    with pytest.raises(TaskError, match="printable"):
        jobs.task(name="it", queue="a\u202eb")(lambda: None)
