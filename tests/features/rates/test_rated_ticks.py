"""Rate limits, as ticks and tests of an app see them."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from flask_cronjobs import CronJobs, Retry, RetryLater, StateConflict, testing
from flask_cronjobs.models import JobRate, JobRun
from tests.rates import refuse_too_early
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("context")

AGAIN = Retry(max_attempts=3, base=0.0, jitter=False)


def refuse_early_starts(db: Any, period: float, burst: int = 1) -> None:
    """Fail if the latest attempts of the runs began too early."""
    starts = db.session.scalars(select(JobRun.started_at).where(JobRun.started_at.is_not(None)))
    refuse_too_early(sorted(starts), period, burst)


def statuses(db: Any) -> dict[str, int]:
    counts = db.session.execute(text("SELECT status, count(*) FROM job_runs GROUP BY status"))
    return {row[0]: row[1] for row in counts}


def test_tick_goes_on_while_starts_come(jobs: CronJobs, db: Any) -> None:
    @jobs.task(rate="10/s", burst=2)
    def send() -> None:
        pass

    send.using(commit=True).enqueue_many([{}] * 5)
    report = jobs.tick(budget=10)
    assert report.succeeded == 5
    refuse_early_starts(db, 0.1, burst=2)


def test_tick_ends_before_a_start_that_comes_too_late(jobs: CronJobs, db: Any) -> None:
    jobs.task(name="send", rate="1/minute")(lambda: None)
    for _ in range(2):
        jobs.enqueue("send", commit=True)
    jobs.enqueue("send", delay=60, commit=True)
    assert jobs.tick(budget=10).succeeded == 1
    assert jobs.tick(budget=10).succeeded == 0
    assert statuses(db) == {"succeeded": 1, "queued": 2}


def test_retries_take_starts_and_other_keys_do_not_wait(jobs: CronJobs, db: Any) -> None:
    accounts: list[str] = []

    @jobs.task(rate="5/s", rate_key="mail:{account}", retry=AGAIN)
    def send(account: str) -> None:
        accounts.append(account)
        if accounts.count("a") == 1:
            raise ValueError("again")

    @jobs.task(rate="5/s", rate_key="mail:{account}")
    def other(account: str) -> None:
        accounts.append(account)

    send.using(commit=True, priority=1).enqueue("a")
    other.using(commit=True).enqueue("a")
    other.using(commit=True).enqueue("b")
    report = jobs.tick(budget=10)
    assert (report.succeeded, report.failed) == (3, 1)
    assert sorted(accounts) == ["a", "a", "a", "b"]
    key_a = select(JobRun.started_at).where(JobRun.rate_key == "mail:a")
    refuse_too_early(sorted(db.session.scalars(key_a)), 0.2)


def test_key_is_held_back_by_retry_later(jobs: CronJobs, db: Any) -> None:
    @jobs.task(rate="100/s", burst=2, retry=AGAIN)
    def send(number: int) -> None:
        if number == 0:
            raise RetryLater(30, "429", rate=True)

    send.using(commit=True, priority=1).enqueue(0)
    assert jobs.tick(budget=5).failed == 1
    send.using(commit=True).enqueue(1)
    assert jobs.tick(budget=5).succeeded == 0
    tat = db.session.scalars(select(JobRate.tat)).one()
    assert 0 < (tat - ago()).total_seconds() <= 30.01


def test_retry_later_of_a_rate_needs_a_rate(
    jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(retry=AGAIN)
    def send() -> None:
        raise RetryLater(30, rate=True)

    send.using(commit=True).enqueue()
    with caplog.at_level(logging.ERROR, "flask_cronjobs"):
        assert jobs.tick().failed == 1
    assert "task send: RetryLater(rate=True) was raised, but the task has no rate" in caplog.text


def test_drain_waits_for_no_start_but_for_a_key_that_is_held_back(jobs: CronJobs, db: Any) -> None:
    @jobs.task(rate="1/day", retry=AGAIN)
    def send(number: int) -> None:
        if number == 4:
            raise RetryLater(30, rate=True)

    send.using(commit=True).enqueue_many({"number": number} for number in range(6))
    testing.drain(raise_errors=False)
    assert statuses(db) == {"succeeded": 4, "failed": 1, "queued": 1}


def test_drain_with_delayed_ends_the_time_for_which_a_key_is_held_back(
    jobs: CronJobs, db: Any
) -> None:
    @jobs.task(rate="1/day", retry=False)
    def send(number: int) -> None:
        if number % 2 == 0:
            raise RetryLater(30, rate=True)

    send.using(commit=True).enqueue_many({"number": number} for number in range(6))
    testing.drain(raise_errors=False)
    assert statuses(db) == {"dead": 1, "queued": 5}
    testing.drain(raise_errors=False, with_delayed=True)
    assert statuses(db) == {"succeeded": 3, "dead": 3}


def test_run_says_that_its_rate_key_may_be_held_back(jobs: CronJobs) -> None:
    @jobs.task(rate="1/day", retry=AGAIN)
    def send(fail: bool = False) -> None:
        if fail:
            raise RetryLater(30, rate=True)

    assert testing.run(send, fail=True).status == "failed"
    with pytest.raises(StateConflict, match="RetryLater holds its rate key back"):
        testing.run(send)
    with testing.travel(timedelta(seconds=30)):
        assert testing.run(send).status == "succeeded"


@pytest.mark.parametrize("others", [1, 3, 4])
def test_runs_that_lost_their_rate_begin_though_ticks_of_other_apps_alternate_with_ours(
    jobs: CronJobs, rows: Rows, others: int
) -> None:
    jobs.task(name="send", rate="1/day")(lambda: None)
    jobs.get("send").using(commit=True).enqueue_many([{}] * 3)
    assert jobs.tick().succeeded == 1
    jobs._registry.tasks.clear()
    jobs.task(name="send")(lambda: None)
    succeeded = 0
    for _ in range(20):
        for _ in range(others):
            rows.tick()
        succeeded += jobs.tick().succeeded
    assert succeeded == 2


def test_runs_from_before_their_task_had_a_rate_have_none(jobs: CronJobs) -> None:
    jobs.task(name="send")(lambda: None)
    for _ in range(3):
        jobs.enqueue("send", commit=True)
    jobs._registry.tasks.clear()
    jobs.task(name="send", rate="1/day")(lambda: None)
    for _ in range(2):
        jobs.enqueue("send", commit=True)
    assert jobs.tick().succeeded == 4


def test_concurrency_and_order_hold_beside_a_rate(jobs: CronJobs, db: Any) -> None:
    booked: list[int] = []

    @jobs.task(rate="20/s", concurrency_key="ledger", order="strict", retry=AGAIN)
    def book(number: int) -> None:
        booked.append(number)
        if booked == [0]:
            raise ValueError("again")

    book.using(commit=True).enqueue_many({"number": number} for number in range(3))
    assert jobs.tick(budget=10).succeeded == 3
    assert booked == [0, 0, 1, 2]
    refuse_early_starts(db, 0.05)


def test_run_without_a_start_that_its_key_lets_go_hands_the_turn_on(
    jobs: CronJobs, db: Any
) -> None:
    @jobs.task(rate="1/day", rate_key="mail:{account}", concurrency_key="one", retry=AGAIN)
    def send(account: str) -> None: ...

    send.using(commit=True).enqueue("a")
    assert jobs.tick().succeeded == 1
    for account in "ab":
        send.using(commit=True).enqueue(account)
    # This is as if both had found the key full while they had starts, and that of "a" is now gone.
    db.session.execute(text("UPDATE job_runs SET gate = 'keys' WHERE status = 'queued'"))
    db.session.commit()
    assert jobs.tick(budget=10).succeeded == 1
    left = db.session.scalars(select(JobRun).where(JobRun.status == "queued")).one()
    assert (left.rate_key, left.gate, left.attempts) == ("mail:a", "rate", 0)


def test_replaced_run_belongs_to_the_key_of_its_new_payload(jobs: CronJobs, db: Any) -> None:
    @jobs.task(rate="1/day", rate_key="mail:{account}")
    def send(account: str) -> None: ...

    for account in "ab":
        send.using(idempotency_key="k", replace=True, commit=True).enqueue(account)
    run = db.session.scalars(select(JobRun)).one()
    assert (run.rate_key, run.gate) == ("mail:b", "rate")


def test_slot_of_a_definition_waits_for_its_rate(jobs: CronJobs, db: Any) -> None:
    jobs.task(name="send", rate="1/day", schedule="@yearly", overlap="allow")(lambda: None)
    jobs.tick()
    jobs.run_now("send")
    jobs.run_now("send")
    jobs.tick()
    assert statuses(db) == {"succeeded": 1, "queued": 1}
