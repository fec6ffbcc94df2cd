"""The columns of a run: those that are the same in all runs of a task, and those that are not."""

from __future__ import annotations

import pytest

from flask_cronjobs.config import Settings
from flask_cronjobs.core.tasks.handler import Handler, run_columns
from flask_cronjobs.core.tasks.options import EnqueueOptions, TaskOptions

PLAIN = {
    "queue": "default",
    "priority": 0,
    "strict": False,
    "job_type": "it",
    "max_attempts": 10,
    "concurrency_limit": None,
    "idempotency_key": None,
    "unique_while": None,
    "run_at": None,
    "delay": 0.0,
    "payload": '{"a": 1}',
    "concurrency_key": None,
    "rate_key": None,
    "label": None,
}


def handler(**options: object) -> Handler:
    def it(a): ...

    return Handler(it, "it", TaskOptions(**options))  # type: ignore[arg-type]


def test_plain_run_has_each_column() -> None:
    assert run_columns(handler(), Settings(), {"a": 1}) == PLAIN


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
    options: dict[str, object], changed: dict[str, object]
) -> None:
    assert run_columns(handler(**options), Settings(), {"a": 1}) == {**PLAIN, **changed}


def test_each_app_has_its_own_number_of_attempts() -> None:
    one = handler()
    for attempts in (3, 5, 3):
        columns = run_columns(one, Settings(max_attempts=attempts), {"a": 1})
        assert columns == {**PLAIN, "max_attempts": attempts}


def test_options_of_one_call_are_not_those_of_the_next() -> None:
    one = handler()
    columns = run_columns(one, Settings(), {"a": 1}, EnqueueOptions(queue="mail", delay=3.0))
    assert columns == {**PLAIN, "queue": "mail", "delay": 3.0}
    columns["queue"] = "changed by its caller"
    plain = run_columns(one, Settings(), {"a": 1})
    plain["queue"] = "changed by its caller"
    assert run_columns(one, Settings(), {"a": 1}) == PLAIN
