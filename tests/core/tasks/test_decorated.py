"""Handlers inside decorators that use ``functools.wraps`` and give them an argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun
from tests.rows import statuses


def with_customer(func: Callable[[str], str]) -> Callable[[int], str]:
    @wraps(func)
    def inner(customer_id: int) -> str:
        return func(f"customer {customer_id}")

    return inner


def timed(func: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


def with_session(func: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, session="session", **kwargs)

    return inner


@pytest.mark.parametrize("decorate", [with_customer, lambda func: timed(with_customer(func))])
def test_parameters_are_those_of_the_outermost_function_that_names_some(
    context: None, jobs: CronJobs, db: SQLAlchemy, decorate: Callable[..., Any]
) -> None:
    def remind(customer: str) -> str:
        return customer

    task = jobs.task(schedule="@yearly", payload={"customer_id": 1})(decorate(remind))
    for run in (task.enqueue(5), task.enqueue(customer_id=5)):
        assert run.payload == {"customer_id": 5}
    with pytest.raises(TypeError, match="customer"):
        task.enqueue(customer="Ada")
    db.session.commit()
    assert jobs.tick().succeeded == 2
    assert set(statuses(db)) == {"succeeded"}
    assert {run.result for run in db.session.query(JobRun)} == {"customer 5"}


def test_function_that_passes_everything_on_has_the_parameters_of_the_one_inside(
    context: None, jobs: CronJobs
) -> None:
    @jobs.task
    @timed
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add.enqueue(1).payload == {"a": 1}


def test_argument_that_a_decorator_passes_by_position_is_refused_with_advice(
    context: None, jobs: CronJobs
) -> None:
    @jobs.task
    @with_session
    def count(n: int, session: str) -> int:
        return n

    with pytest.raises(TypeError, match=r"'session'\. If a decorator supplies it, .* inner\(n\)"):
        count.enqueue(1)
