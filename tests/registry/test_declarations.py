"""What a newcomer gets wrong is refused where it is written, with a sentence that helps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import date
from functools import partial
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, PayloadError, TablesMissing, TaskError
from flask_cronjobs.errors import UnknownTask
from flask_cronjobs.text import did_you_mean


def handler(user_id: int, day: object = None) -> None:
    """A handler that needs an argument."""


def lines() -> Iterator[None]:
    yield


async def async_lines() -> AsyncIterator[None]:
    yield


class Greeter:
    """A class, whose methods are no tasks."""

    def greet(self, user_id: int) -> None: ...

    @classmethod
    def make(cls, user_id: int) -> None: ...

    @staticmethod
    def send(user_id: int) -> None: ...


Wrong = Callable[[CronJobs], Any]


@pytest.mark.parametrize(
    ("declare", "error", "sentence"),
    [
        (lambda jobs: jobs.task("nightly"), TaskError, "'nightly', which is not a function. Write"),
        (
            lambda jobs: jobs.task(timezone="Europe/Berlin")(handler),
            TaskError,
            "The task handler has timezone, but no schedule. Give schedule=, or give it to",
        ),
        (
            lambda jobs: jobs.task(overlap="allow", catchup="all", payload={})(handler),
            TaskError,
            "has payload and catchup and overlap, but no schedule",
        ),
        (
            lambda jobs: jobs.task(schedule="@daily")(handler),
            TypeError,
            "The schedule 'handler' cannot call handler() missing a required argument: 'user_id'. "
            "Give arguments as payload={…}.",
        ),
        (
            lambda jobs: jobs.task(schedule="@daily", payload={"user_id": date(2026, 1, 1)})(
                handler
            ),
            PayloadError,
            "user_id: expected a whole number, got a value of type date.",
        ),
        (
            lambda jobs: jobs.task(
                schedule="@daily", payload={"user_id": 1}, concurrency_key="{day.year}"
            )(handler),
            TaskError,
            "cannot be filled in from the payload",
        ),
        (
            lambda jobs: jobs.task(lambda: None),
            TaskError,
            "A lambda has no name for the table. Give one: name=….",
        ),
        (
            lambda jobs: jobs.task(Greeter.greet),
            TaskError,
            "Greeter.greet is a method: a run has no object to call it on. Make it a function of "
            "the module, or a @staticmethod without self",
        ),
        (lambda jobs: jobs.task(vars(Greeter)["make"].__func__), TaskError, "is a method"),
        (lambda jobs: jobs.task(lines), TaskError, "The handler lines has a yield, so a call runs"),
        (lambda jobs: jobs.task(async_lines), TaskError, "handler async_lines has a yield"),
        (
            lambda jobs: jobs.task(name="it")(partial(lines)),
            TaskError,
            "The handler it has a yield",
        ),
        (
            lambda jobs: jobs.task(retry=lambda attempt: 3)(handler),
            TaskError,
            "retry cannot be called with an attempt and its exception: too many positional",
        ),
        (lambda jobs: jobs.task(timeout="60")(handler), TaskError, "timeout is '60'. Give seconds"),
        (
            lambda jobs: jobs.task(handler).using(run_at="tomorrow"),
            TaskError,
            "run_at is 'tomorrow'. Give an aware time, with a time zone and in the years 1000 to",
        ),
        (
            lambda jobs: jobs.task(handler).payload(usr=1),
            TypeError,
            "handler() missing a required argument: 'user_id'; it does not take 'usr'",
        ),
        (
            lambda jobs: jobs.task(handler).enqueue_many({"user_id": 1}),
            PayloadError,
            "enqueue_many was given one mapping. Give a list",
        ),
        (
            lambda jobs: jobs.enqueue(jobs.task(handler).name, [1]),
            PayloadError,
            "The payload is of type list. Give a dict",
        ),
        (
            lambda jobs: jobs.enqueue(jobs.task(handler), {"user_id": 1}),
            UnknownTask,
            "<Task handler> is not a task's name. Give a text, or call enqueue() on the",
        ),
        (
            lambda jobs: jobs.task(handler).enqueue_many(None),
            PayloadError,
            "enqueue_many was given one NoneType. Give a list",
        ),
        (
            lambda jobs: jobs.around(lines),
            TaskError,
            "hook lines cannot be called with the run",
        ),
        (lambda jobs: jobs.task(around=lines), TaskError, "Let it take one argument, the run."),
        (lambda jobs: jobs.task(handler).using(delay="5"), TaskError, "delay is '5'. Give seconds"),
    ],
)
def test_wrong_declaration_is_refused_at_once(
    declare: Wrong, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        declare(CronJobs())
    assert sentence in str(caught.value)


def test_enqueue_without_the_tables_says_how_to_make_them(app: Flask, db: SQLAlchemy) -> None:
    jobs = CronJobs(app)
    task = jobs.task(handler)
    with app.app_context():
        for enqueue in (
            lambda: task.enqueue(1),
            lambda: task.using(idempotency_key="k").enqueue(1),
            lambda: task.enqueue_many([{"user_id": 1}]),
        ):
            with pytest.raises(TablesMissing, match="Run: flask jobs admin init"):
                enqueue()
            db.session.rollback()


def test_run_shows_what_it_is(app: Flask, jobs: CronJobs, db: SQLAlchemy) -> None:
    task = jobs.task(handler)
    with app.app_context():
        run = task.enqueue(1)
        assert repr(run) == "<JobRun 1 handler queued>"
        db.session.commit()
        assert repr(run) == "<JobRun ? ? ?>"


def test_a_name_is_compared_to_so_many_names_and_so_much_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anyone who may act can post names of any length, and definitions may be thousands."""
    compared: list[int] = []

    def spy(word: str, possibilities: Iterable[str], n: int, cutoff: float) -> list[str]:
        compared.extend(len(word) * len(each) for each in possibilities)
        return list(possibilities)[:n]

    monkeypatch.setattr("difflib.get_close_matches", spy)
    said = did_you_mean("x" * 10_000, [f"{number:05} {'x' * 500}" for number in range(9_000)])
    assert len(compared) <= 1_000
    assert max(compared) <= 60 * 60
    assert f"'00999 {'x' * 500}'" in said


def test_static_method_and_bound_method_are_tasks() -> None:
    def of_any_argument(self: int) -> None: ...

    jobs = CronJobs()
    for function in (Greeter.send, Greeter().greet, Greeter.make, of_any_argument):
        assert jobs.task(function).name == function.__name__
