"""A beginner's mistakes are refused where they are written, with a sentence that helps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from functools import partial, update_wrapper
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.exc import DBAPIError

from flask_cronjobs import CronJobs, PayloadError, ScheduleError, TablesMissing, Task, TaskError
from flask_cronjobs.errors import UnknownTask


def handler(user_id: int, day: object = None) -> None:
    """Need an argument."""


def lines() -> Iterator[None]:
    yield


async def async_lines() -> AsyncIterator[None]:
    yield


class Greeter:
    """A class, whose methods cannot be tasks."""

    def greet(self, user_id: int) -> None: ...

    @classmethod
    def make(cls, user_id: int) -> None: ...

    @staticmethod
    def send(user_id: int) -> None: ...


ARGUMENT = {"schedule": "@daily", "payload": {"user_id": 1}}
STRICT = {"order": "strict", "concurrency_key": "a"}
#: Options of the task `handler`, and the message that refuses them.
OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timezone": "UTC"}, TaskError, "The task handler has timezone, but no schedule. Give "
     "schedule=, or give it to handler.schedule()."),
    ({"overlap": "allow", "catchup": "all", "payload": {}}, TaskError,
     "has payload and catchup and overlap, but no schedule"),
    ({"schedule": "@daily"}, TypeError,
     "The schedule 'handler': handler() missing a required argument: 'user_id'. "
     "Give its arguments as payload={…}."),
    ({**ARGUMENT, "payload": {"user_id": date(2026, 1, 1)}}, PayloadError,
     "user_id: expected a whole number, got a value of type date."),
    ({**ARGUMENT, "concurrency_key": "{day.year}"}, TaskError, "cannot be filled in from the pay"),
    ({**ARGUMENT, "catchup": "some"}, TaskError, "catchup is 'some'. Give one of 'latest', 'all'"),
    *(({**ARGUMENT, "ping": ping}, TaskError, "handler': ping is not valid. Give a URL")
      for ping in ("ftp://hidden", "hidden", 5, "https://a\n.hidden")),
    ({"ping": "https://monitor.example/uuid"}, TaskError, "has ping, but no schedule"),
    ({"retry": lambda attempt: 3}, TaskError,
     "retry cannot be called with an attempt and its exception: too many positional"),
    ({"timeout": "60"}, TaskError, "handler: timeout is '60'. Give seconds, at most 30 days."),
    ({"timeout": 0}, TaskError, "timeout is 0"),
    ({"concurrency": 0}, TaskError, "concurrency is 0. Give a whole number from 1 to 1000"),
    ({"keep_output": "yes"}, TaskError, "keep_output is 'yes'. Give True or False"),
    ({"atomic": "no"}, TaskError, "atomic is 'no'. Give True or False"),
    ({"async_at_once": 5}, TaskError, "no effect on a handler that is not an async def"),
    ({"async_at_once": 0}, TaskError, "from 1 to 1000"),
    ({"async_at_once": True}, TaskError, "from 1 to 1000"),
    ({"around": lines}, TaskError, "hook lines cannot be called with the run"),
    ({"order": "strict"}, TaskError, "needs a concurrency_key"),
    ({**STRICT, "order": "loose"}, TaskError, "order is 'loose'. Give one of 'strict'"),
    ({**STRICT, "concurrency": 2}, TaskError, "concurrency is 2, but with order='strict' only one"),
    ({**ARGUMENT, "schedule": "5/15 * * * *"}, ScheduleError, "5/15"),
    ({**ARGUMENT, "timezone": "Berlin"}, ScheduleError, "Europe/Berlin"),
    ({**ARGUMENT, "overlap": "queue"}, TaskError, "'skip', 'allow'"),
    ({"name": "\n"}, TaskError, "1 to 200 printable characters"),
    ({"name": "   "}, TaskError, "not only spaces"),
    ({"name": "x" * 201}, TaskError, "1 to 200 printable characters"),
    ({"timeout": 366 * 86400}, TaskError, "at most 30 days"),
    ({"retry": "always"}, TaskError, "Give a Retry, a number"),
    ({"priority": 99_999}, TaskError, "-32768 to 32767"),
    ({"queue": ""}, TaskError, "queue"),
    ({"concurrency_key": "user:{user}"}, TaskError, "Did you mean 'user_id'?"),
    ({"concurrency_key": "user:{user_id"}, TaskError, "in braces"),
    ({"unique": "load:{user}"}, TaskError, "handler: unique 'load:{user}' names 'user', which"),
    ({"unique_while": "pending"}, TaskError, "unique_while has no effect without unique="),
    ({"unique": "it", "unique_while": "ever"}, TaskError, "unique_while is 'ever'. Give one of"),
    *(({option: wrong}, TaskError, rf"{option} is {wrong!r}. Give a string of 1 to 500 printable")
      for option in ("unique", "concurrency_key", "rate_key") for wrong in (True, "", 5)),
    ({"label": "for {user}"}, TaskError, "handler: label 'for {user}' names 'user', which the"),
    ({"label": ""}, TaskError, "label is ''. Give a string of 1 to 500 printable characters"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "sentence"), OPTIONS)
def test_wrong_option_is_refused_at_once(
    options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        CronJobs().task(**options)(handler)
    assert sentence in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("nightly", "'nightly', which is not a function. Write"),
        (lambda: None, "A lambda has no name of its own. Give the task one: name=…."),
        (
            Greeter.greet,
            "Greeter.greet is a method: a run has no object to call it on. Make it a module-level "
            "function, or a @staticmethod without self",
        ),
        (vars(Greeter)["make"].__func__, "is a method"),
        (lines, "The handler lines has a yield, so a call runs"),
        (async_lines, "handler async_lines has a yield"),
        (update_wrapper(partial(lines), lines), "The handler lines has a yield"),
        (partial(lines), "The task name is ''. Give a string of 1 to 200 printable characters"),
    ],
)
def test_wrong_function_is_refused_at_once(function: Any, sentence: str) -> None:
    with pytest.raises(TaskError) as caught:
        CronJobs().task(function)
    assert sentence in str(caught.value)


Wrong = Callable[[CronJobs, Task[..., None]], Any]


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda jobs, task: task.payload(usr=1),
            TypeError,
            "handler() missing a required argument: 'user_id'; it does not take 'usr'",
        ),
        (
            lambda jobs, task: task.enqueue_many({"user_id": 1}),
            PayloadError,
            "enqueue_many was given one mapping. Give a list",
        ),
        (
            lambda jobs, task: task.enqueue_many(None),
            PayloadError,
            "enqueue_many was given one NoneType. Give a list",
        ),
        (
            lambda jobs, task: jobs.enqueue("handler", [1]),
            PayloadError,
            "The payload is of type list. Give a dict",
        ),
        (
            lambda jobs, task: jobs.enqueue(task, {"user_id": 1}),
            UnknownTask,
            "<Task handler> is not a task's name. Give a string, or call enqueue() on the",
        ),
    ],
)
def test_wrong_call_is_refused_at_once(call: Wrong, error: type[Exception], sentence: str) -> None:
    jobs = CronJobs()
    task = jobs.task(handler)
    with pytest.raises(error) as caught:
        call(jobs, task)
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


def test_enqueue_beside_a_row_whose_table_is_missing_blames_no_job_table(
    app: Flask, db: SQLAlchemy
) -> None:
    class Order(db.Model):  # type: ignore[name-defined,misc]
        id = db.Column(db.Integer, primary_key=True)

    jobs = CronJobs(app)
    task = jobs.task(handler)
    with app.app_context():
        db.create_all()
        Order.__table__.drop(db.engine)
        for enqueue in (
            lambda: task.enqueue(1),
            lambda: task.enqueue_many([{"user_id": 1}]),
            lambda: jobs.batch("orders").__enter__(),
        ):
            db.session.add(Order())
            with pytest.raises(DBAPIError, match="order"):
                enqueue()
            db.session.rollback()


def test_static_method_and_bound_method_are_tasks() -> None:
    def of_any_argument(self: int) -> None: ...

    jobs = CronJobs()
    for function in (Greeter.send, Greeter().greet, Greeter.make, of_any_argument):
        assert jobs.task(function).name == function.__name__
