"""The values of a new run: those that all runs of a task share, and the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flask_cronjobs.config import Settings
from flask_cronjobs.core.new_run import NewRun, new_run
from flask_cronjobs.core.tasks.declared_task import DeclaredTask
from flask_cronjobs.core.tasks.options import AS_THE_TASK_SAYS, EnqueueOptions, TaskOptions

PLAIN = NewRun(job_type="it", payload='{"a": 1}')


def task_with(**options: object) -> DeclaredTask:
    def it(a): ...

    return DeclaredTask(it, "it", TaskOptions(**options))  # type: ignore[arg-type]


def test_plain_run_has_each_column() -> None:
    assert new_run(task_with(), {"a": 1}, AS_THE_TASK_SAYS, Settings()) == PLAIN


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"concurrency": 2}, {"concurrency_key": "it", "concurrency_limit": 2}),
        ({"rate": "5/s", "rate_key": "r{a}"}, {"rate_key": "r1"}),
        ({"label": "number {a}"}, {"label": "number 1"}),
        ({"unique": "u{a}"}, {"idempotency_key": "u1", "unique_while": "pending"}),
        ({"unique_while": "waiting"}, {"unique_while": "waiting"}),
    ],
    ids=str,
)
def test_each_option_that_is_filled_in_fills_its_columns(
    options: dict[str, object], changed: dict[str, Any]
) -> None:
    new = new_run(task_with(**options), {"a": 1}, AS_THE_TASK_SAYS, Settings())
    assert new == replace(PLAIN, **changed)


def test_each_app_has_its_own_number_of_attempts() -> None:
    task = task_with()
    for attempts in (3, 5, 3):
        new = new_run(task, {"a": 1}, AS_THE_TASK_SAYS, Settings(max_attempts=attempts))
        assert new == replace(PLAIN, max_attempts=attempts)


def test_options_of_one_call_are_not_those_of_the_next() -> None:
    task = task_with()
    new = new_run(task, {"a": 1}, EnqueueOptions(queue="mail", delay=3.0), Settings())
    assert new == replace(PLAIN, queue="mail", delay=3.0)
    new.queue = "changed by its caller"
    assert new_run(task, {"a": 1}, AS_THE_TASK_SAYS, Settings()) == PLAIN


def test_run_without_the_key_of_its_task_is_unique_in_no_way() -> None:
    task = task_with(unique="u{a}")
    new = new_run(task, {"a": 1}, AS_THE_TASK_SAYS, Settings(), unique=False)
    assert (new.idempotency_key, new.unique_while) == (None, None)


def test_key_of_a_call_comes_before_that_of_its_task() -> None:
    task = task_with(unique="u{a}")
    new = new_run(task, {"a": 1}, EnqueueOptions(idempotency_key="mine"), Settings())
    assert (new.idempotency_key, new.unique_while) == ("mine", None)
