"""The exception that ended an attempt, as receivers of signals and the log get it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask, g
from sqlalchemy.exc import ResourceClosedError

from flask_cronjobs import (
    CronJobs,
    CurrentRun,
    Discard,
    RetryLater,
    TimedOut,
    WorkerLost,
    run_cancelled,
    run_dead,
    run_failed,
)
from flask_cronjobs.core.worker import announcer
from flask_cronjobs.core.worker.announcer import Announcer
from flask_cronjobs.models import JobRun
from flask_cronjobs.signals import unheard
from flask_cronjobs.types import Outcome
from tests.handlers import AGAIN, Enqueue, both_kinds, of_kind, raising
from tests.kit import received
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("context")


class Broken(Exception):
    """An exception that supports weak references."""


class Big:
    """An object that a handler held."""


@pytest.fixture
def outcomes(app: Flask) -> Iterator[list[Outcome]]:
    """The outcomes that signals of failures reported."""
    with received(run_failed, run_dead, run_cancelled, sender=app) as outcomes:
        yield outcomes


def frames(error: BaseException | None) -> list[Any]:
    assert error is not None
    frames, link = [], error.__traceback__
    while link is not None:
        frames.append(link.tb_frame)
        link = link.tb_next
    return frames


def hook(run: CurrentRun) -> Iterator[None]:
    yield


@both_kinds
def test_failure_and_death_carry_the_exception_itself(
    jobs: CronJobs, outcomes: list[Outcome], enqueue: Enqueue, is_async: bool
) -> None:
    raised: list[Broken] = []
    jobs.around(hook)

    def fail() -> None:
        local = Big()  # noqa: F841
        raised.append(Broken("it broke"))
        raise raised[-1]

    async def fail_later() -> None:
        await asyncio.sleep(0)
        fail()

    enqueue(fail_later if is_async else fail, retry=AGAIN)
    jobs.tick()
    jobs.tick()
    assert [outcome.kind for outcome in outcomes] == ["failed", "dead"]
    assert [outcome.exception for outcome in outcomes] == raised
    for outcome in outcomes:
        names = [frame.f_code.co_name for frame in frames(outcome.exception)]
        assert names == (["fail_later", "fail"] if is_async else ["fail"])
        assert all(set(frame.f_locals) <= {"raised", "fail"} for frame in frames(outcome.exception))


def spin() -> None:
    while True:
        ...


@pytest.mark.parametrize(
    ("handler", "reported"),
    [
        (spin, ("dead", TimedOut)),
        (raising(RetryLater(60, "the bank asked us to wait")), ("dead", RetryLater)),
        (raising(Discard("nothing to do")), ("cancelled", type(None))),
    ],
)
def test_timeout_and_retry_later_are_exceptions_too_but_not_a_discard(
    perform: Any, outcomes: list[Outcome], handler: Any, reported: Any
) -> None:
    perform(handler, timeout=0.2)
    assert [(outcome.kind, type(outcome.exception)) for outcome in outcomes] == [reported]


def test_each_run_of_a_lost_worker_has_a_worker_lost_of_its_own(
    jobs: CronJobs, rows: Rows, outcomes: list[Outcome], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        rows.run("running", locked_until=ago(60), max_attempts=2)
    assert jobs.tick().reclaimed == 2
    first, second = (outcome.exception for outcome in outcomes)
    assert isinstance(first, WorkerLost)
    assert isinstance(second, WorkerLost)
    assert first is not second
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [first, second]


@both_kinds
def test_nothing_of_the_handler_or_the_run_is_kept_after_the_signals(
    jobs: CronJobs, caplog: pytest.LogCaptureFixture, enqueue: Enqueue, is_async: bool
) -> None:
    caplog.set_level(logging.CRITICAL, "flask_cronjobs")  # pytest keeps each record.
    alive: list[weakref.ref[Any]] = []

    def fail() -> None:
        local = g.mine = Big()
        error = Broken(Big())
        alive.extend(weakref.ref(value) for value in (local, error, error.args[0]))
        raise error

    enqueue(of_kind(is_async, fail), retry=False)
    gc.collect()
    gc.disable()
    try:
        assert jobs.tick().dead == 1
        if is_async:
            gc.collect()  # A task and its coroutine form a cycle, however they end.
        assert [reference() for reference in alive] == [None] * 3
    finally:
        gc.enable()


class TestLog:
    def test_record_has_the_exception_and_prints_the_stack_without_credentials(
        self, jobs: CronJobs, caplog: pytest.LogCaptureFixture
    ) -> None:
        @jobs.task(retry=AGAIN)
        def fail() -> None:
            raise Broken("at postgresql://ada:hunter2@host/db\ndead: task other, run 1")

        fail.using(commit=True).enqueue()
        jobs.tick()
        jobs.tick()
        records = [record for record in caplog.records if record.exc_info]
        assert [record.levelno for record in records] == [logging.WARNING, logging.ERROR]
        for record in records:
            assert record.exc_info is not None
            assert type(record.exc_info[1]) is Broken
            first, *stack = logging.Formatter().format(record).splitlines()
            assert first.endswith("Broken")
            assert "Traceback (most recent call last):" in stack[0]
            assert "in fail" in stack[1], "frames of ours come before the handler's"
            assert all(line.startswith("  ") for line in stack), "a line that looks like our own"
            assert "hunter2" not in "".join(stack)


def test_exceptions_beyond_the_limit_are_dropped_while_receivers_are_slow(
    app: Flask, outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer, "MAX_EXCEPTIONS", 2)
    announcing = Announcer(app, unheard)
    for number in range(3):
        announcing.report(Outcome(number, "t", "dead", 1, "it", exception=Broken()), recorded=True)
    announcing.send()
    announcing.close(60.0)
    assert [outcome.exception is None for outcome in outcomes] == [False, False, True]
    announcing.report(Outcome(3, "t", "dead", 1, "it", exception=Broken()), recorded=True)
    assert announcing._next[0][0].exception is not None, "all are reported, so there is room again"


@both_kinds
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (ResourceClosedError("This transaction is closed"), "TimedOut"),
        (sqlite3.OperationalError("interrupted"), "TimedOut"),
        (ValueError("the handler's own"), "ValueError"),
    ],
)
def test_what_the_database_layer_makes_of_a_timeout_is_a_timeout(
    perform: Callable[..., JobRun], error: Exception, error_type: str, atomic: bool, is_async: bool
) -> None:
    """A timeout in the middle of a flush makes SQLAlchemy raise an error about its own state."""

    def flush() -> None:
        try:
            while True:
                ...
        except TimedOut:
            raise error from None

    run = perform(of_kind(is_async, flush), timeout=1, atomic=atomic and not is_async)
    assert run.error_type == error_type
