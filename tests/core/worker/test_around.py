"""Context managers around handlers: what they see, and the effects of their errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from flask import current_app
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, CurrentRun, Retry, TaskError, TimedOut, current_run
from tests.marks import on_sqlite
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")

KINDS = {"plain": {}, "atomic": {"atomic": True}, "async": {}, "async alone": {"retry": False}}
inner: ContextVar[str] = ContextVar("inner", default="not set")


@pytest.fixture(params=KINDS)
def enqueue(request: pytest.FixtureRequest, jobs: CronJobs) -> Any:
    """Return a function that declares a plain or async handler, and enqueues a run."""

    def enqueue(handler: Any, **options: Any) -> None:
        async def later() -> Any:
            await asyncio.sleep(0)
            return handler()

        func = later if "async" in request.param else handler
        defaults = {"name": "it", "retry": Retry(2, base=0, jitter=False)}
        task = jobs.task(**{**defaults, **KINDS[request.param], **options})(func)
        task.using(commit=True).enqueue()

    return enqueue


def test_hooks_enclose_the_handler_the_first_outermost_and_know_its_run(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Any
) -> None:
    calls: list[Any] = []

    @jobs.around
    def outer(run: CurrentRun) -> Iterator[None]:
        calls.append(("in", run.task, run.id, run.attempt, current_app.name))
        token = inner.set("set by the hook")
        yield
        inner.reset(token)
        calls.append("out")

    @jobs.around
    @contextlib.contextmanager
    def second(run: CurrentRun) -> Iterator[None]:
        calls.append("second")
        assert current_run.id == run.id
        yield
        calls.append("second out")

    class Own:
        def __init__(self, run: CurrentRun) -> None:
            calls.append("own")

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            calls.append(("own out", *error))

    enqueue(lambda: inner.get(), around=Own)
    jobs.tick()
    run = the_run(db)
    assert (run.status, run.result) == ("succeeded", "set by the hook")
    leaving = [("own out", None, None, None), "second out", "out"]
    assert calls == [("in", "it", run.id, 1, "tests"), "second", "own", *leaving]
    assert inner.get() == "not set"


def test_hook_sees_the_error_and_cannot_swallow_it(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Any
) -> None:
    errors: list[str] = []

    @jobs.around
    def outer(run: CurrentRun) -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield

    @jobs.around
    def swallows(run: CurrentRun) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            errors.append(str(error))

    def fail() -> None:
        raise ValueError("it broke")

    enqueue(fail, retry=False)
    assert jobs.tick().dead == 1
    assert errors == ["it broke"]
    assert the_run(db).last_error == "it broke"


@pytest.mark.parametrize("when", ["before", "after"])
def test_error_of_a_hook_fails_the_attempt_and_the_retry_calls_again(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Any, when: str
) -> None:
    called: list[int] = []

    @jobs.around
    def breaks(run: CurrentRun) -> Iterator[None]:
        if when == "before" and run.attempt == 1:
            raise OSError("no collector")
        yield
        if when == "after" and run.attempt == 1:
            raise OSError("no collector")

    enqueue(lambda: called.append(current_run.attempt), retry=Retry(2, base=0, jitter=False))
    report = jobs.tick()
    jobs.tick()
    assert report.failed == 1
    assert called == ([2] if when == "before" else [1, 2])
    assert the_run(db).status == "succeeded"


def test_error_of_a_hook_after_an_atomic_handler_rolls_its_work_back(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    with db.engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (label text)"))

    def breaks(run: CurrentRun) -> Iterator[None]:
        yield
        raise OSError("no collector")

    @jobs.task(atomic=True, retry=False, around=breaks)
    def writes() -> None:
        db.session.execute(text("INSERT INTO notes VALUES ('x')"))

    writes.using(commit=True).enqueue()
    assert jobs.tick().dead == 1
    assert db.session.scalars(text("SELECT label FROM notes")).all() == []
    assert the_run(db).error_type == "OSError"


@on_sqlite
@pytest.mark.parametrize("where", ["before", "in", "after"])
def test_timeout_covers_hooks_and_reaches_them(
    jobs: CronJobs, db: SQLAlchemy, where: str, enqueue: Any
) -> None:
    errors: list[type[BaseException]] = []

    @jobs.around
    def outer(run: CurrentRun) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            errors.append(type(error))
            raise

    @jobs.around
    def slow(run: CurrentRun) -> Iterator[None]:
        spin(where == "before")
        yield
        spin(where == "after")

    enqueue(lambda: spin(where == "in"), timeout=0.3, retry=False)
    assert jobs.tick().dead == 1
    assert the_run(db).error_type == "TimedOut"
    assert errors == [TimedOut]


def spin(long: bool) -> None:
    until = time.monotonic() + (3.0 if long else 0.0)
    while time.monotonic() < until:
        time.sleep(0.01)


class TestDeclaration:
    def test_async_hook_is_refused(self, jobs: CronJobs) -> None:
        async def generator(run: CurrentRun) -> Any:
            yield

        async def coroutine(run: CurrentRun) -> None: ...

        for hook in (generator, coroutine):
            with pytest.raises(TaskError, match=f"{hook.__name__} is an async def"):
                jobs.around(hook)  # type: ignore[type-var]
            with pytest.raises(TaskError, match=f"{hook.__name__} .* is an async def"):
                jobs.around(partial(hook))  # type: ignore[type-var]

    def test_what_cannot_be_called_is_refused(self, jobs: CronJobs) -> None:
        with pytest.raises(TaskError, match="function that takes one argument, the run"):
            jobs.task(around="tracer")(lambda: None)  # type: ignore[call-overload]


def yields_nothing(run: CurrentRun) -> Iterator[None]:
    if run.id < 0:
        yield


@pytest.mark.parametrize(
    ("hook", "message"),
    [(lambda run: None, "not a context manager"), (yields_nothing, "didn't yield")],
)
def test_hook_that_is_none_fails_the_attempt_plainly(
    jobs: CronJobs, perform: Any, hook: Any, message: str
) -> None:
    jobs.around(hook)
    run = perform(lambda: None)
    assert (run.status, message in run.last_error) == ("dead", True)
