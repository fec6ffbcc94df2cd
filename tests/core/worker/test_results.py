"""FAULTS: the result of a handler or an effect comes back the same, or is not stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from types import MappingProxyType
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.models import JobEffect, JobRun

pytestmark = pytest.mark.usefixtures("context")

NUMBERS = [
    *(0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**64), 10**30, 12345678901234567890),
    *(1.0, -1.0, 0.0, 0.1, 2.5, -1e-7, 1e15, 1e16, 1e22, 1.2345678901234567e22, -1e300, 5e-324),
    *(1.7976931348623157e308, 0.30000000000000004, 2.2250738585072014e-308, 123456789.12345678),
]
OTHERS = [
    *(True, False, "", "1.0", "1e5", "é\U0001f600", '"1e+22"', "-0.0 1e+22 \\", [], {}, [None]),
    *([1.0, 1e22, [2**64]], {"1e+22": {"a": [1e22, "1e+22", 1.0]}}, "12345678901234567890", "null"),
]


def same(one: Any, two: Any) -> bool:
    """Return whether both are equal and of the same types: 1 is equal to 1.0."""
    return repr(one) == repr(two)


@pytest.mark.parametrize("atomic", [False, True])
def test_result_of_a_handler_is_what_it_returned(
    jobs: CronJobs, db: SQLAlchemy, state: State, atomic: bool
) -> None:
    values = [*NUMBERS, *OTHERS]

    @jobs.task(atomic=atomic)
    def give(place: int) -> Any:
        return values[place]

    ids = give.using(commit=True).enqueue_many([{"place": n} for n in range(len(values))])
    assert jobs.tick().succeeded == len(values)
    for run_id, value in zip(ids, values, strict=True):
        run = db.session.get_one(JobRun, run_id)
        assert same(run.result, value), value
        view = find_run(state, run_id)
        assert view is not None
        if not isinstance(value, str):
            assert same(view.result, value), value


def test_once_returns_the_same_each_time(jobs: CronJobs, db: SQLAlchemy) -> None:
    for place, value in enumerate([*NUMBERS, *OTHERS, None]):
        first = jobs.once(f"effect:{place}", lambda value=value: value)
        again = jobs.once(f"effect:{place}", pytest.fail, "called again")
        assert same(first, value), value
        assert same(again, value), value
        stored = db.session.scalars(db.select(JobEffect.result).filter_by(key=f"effect:{place}"))
        assert same(stored.one(), value), value


class Lazy(dict[str, int]):
    """A result that raises when it is read."""

    def items(self) -> Any:
        raise RuntimeError("the connection is closed")


UNKEPT: dict[str, object] = {
    "raises": Lazy(a=1),
    "raises inside": {"x": [Lazy(a=1)]},
    "object": object(),
    "set": {1, 2},
    "mapping": MappingProxyType({"a": 1}),
    "mapping inside": [MappingProxyType({"a": 1})],
    "too large": "x" * 70_000,
    "NaN": float("nan"),
    "bytes": b"bytes",
    "NUL": "a\0",
}


@pytest.mark.parametrize("case", UNKEPT)
@pytest.mark.parametrize("atomic", [False, True])
def test_result_that_raises_is_not_kept_and_the_run_succeeds(
    perform: Callable[..., JobRun],
    jobs: CronJobs,
    caplog: pytest.LogCaptureFixture,
    case: str,
    atomic: bool,
) -> None:
    """The same holds for one that is no JSON, or too large. The caller of `once` gets it anyway."""
    result = UNKEPT[case]
    run = perform(lambda: result, atomic=atomic)
    assert (run.status, run.result) == ("succeeded", None)
    assert "the result is not JSON, or is too large" in caplog.text
    caplog.clear()
    assert jobs.once("odd", lambda: result) is result
    assert "not kept" in caplog.text
    assert jobs.once("odd", pytest.fail, "called again") is None


def test_numbers_can_still_be_read_by_sql(perform: Callable[..., JobRun], db: SQLAlchemy) -> None:
    run = perform(lambda: {"amount": 2.5, "count": 3})
    path = "result->>'count'"  # SQLite supports it from 3.38 on.
    if db.engine.dialect.name == "sqlite":
        path = "json_extract(result, '$.count')"
    number = db.session.scalar(text(f"SELECT {path} FROM job_runs WHERE id = :id"), {"id": run.id})
    assert int(number or 0) == 3


def test_once_passes_arguments_of_any_name(jobs: CronJobs) -> None:
    def effect(*args: object, **kwargs: object) -> list[object]:
        return [list(args), kwargs]

    once: Any = jobs.once
    kwargs = {"key": 1, "func": 2, "self": 3, "call": 4}
    assert once("named", effect, 0, **kwargs) == [[0], kwargs]
    with pytest.raises(TypeError):
        once(key="named", func=effect)


def test_result_that_is_not_json_names_its_key_and_no_value(
    perform: Callable[..., JobRun], caplog: pytest.LogCaptureFixture
) -> None:
    perform(lambda: {"orders": [{"when": date(1815, 12, 10)}]})
    assert "result['orders'][0]['when'] is of type date" in caplog.text
    assert "1815" not in caplog.text
