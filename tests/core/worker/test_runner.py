"""A handler's errors, results and leftovers affect no other run."""

from __future__ import annotations

import asyncio
import builtins
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

import pytest
from flask import Flask, g, has_request_context
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import func, select, text

from flask_cronjobs import CronJobs, Discard, Retry, RetryLater, Snooze, signals
from flask_cronjobs.core.worker.runner import Runner
from flask_cronjobs.models import JobFailure, JobRun
from flask_cronjobs.types import Claim, Outcome
from tests.handlers import GIVEN_BACK, Enqueue, both_kinds, ends, holders, of_kind, raising
from tests.kit import received

pytestmark = pytest.mark.usefixtures("context")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unnamed(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def circle() -> BaseException:
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first
    return first


def dive() -> BaseException:
    return dive()


def a_group() -> BaseException:
    make = vars(builtins)["BaseExceptionGroup"]
    return cast("BaseException", make("several", [SystemExit(1), KeyboardInterrupt()]))


MESS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an error": (lambda: ValueError("broken é"), "broken é"),
    "no message": (lambda: ValueError(), "ValueError"),
    "SystemExit": (lambda: SystemExit(3), "3"),
    "GeneratorExit": (lambda: GeneratorExit("gone"), "gone"),
    "BaseException": (lambda: BaseException("base"), "base"),
    "unspeakable": (Unspeakable, "__str__ raised RuntimeError"),
    "unnamed": (lambda: Unnamed("said"), "said"),
    "50 MB": (lambda: ValueError("x" * 50_000_000), "characters left out"),
    "NUL": (lambda: ValueError("a\0b"), "a\ufffdb"),
    "lone surrogates": (lambda: ValueError("a\ud800b"), "a\ufffdb"),
    "circle of causes": (circle, "one"),
    "a password": (lambda: OSError("postgresql://me:s3cret@db/x"), "postgresql://***@db/x"),
    "recursion": (dive, "maximum recursion depth"),
    **({"a group": (a_group, "several")} if sys.version_info >= (3, 11) else {}),
}


@pytest.mark.parametrize("case", MESS)
def test_whatever_is_raised_is_a_recorded_failure(perform: Any, db: SQLAlchemy, case: str) -> None:
    make, message = MESS[case]

    def handler() -> None:
        raise make()

    run = perform(handler)
    assert run.status == "dead"
    assert message in run.last_error
    assert len(run.last_error) < 3000
    failure = db.session.scalars(select(JobFailure)).one()
    assert (failure.error, failure.error_type) == (run.last_error, run.error_type)
    assert failure.stack is not None
    assert "in handler" in failure.stack
    assert len(failure.stack) < 20_000
    assert "s3cret" not in failure.stack


class RateLimited(RetryLater):
    def __init__(self) -> None:
        """Call no super().__init__()."""


class Waiting(Snooze):
    def __init__(self) -> None:
        """Call none either."""


class OwnDelay(RetryLater):
    delay = 3600

    def __init__(self) -> None:
        """Compute the delay in another way."""


class Remote(Exception):
    @property
    def exceptions(self) -> Any:
        raise ConnectionError("the remote side is gone")


class Stackless(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise ConnectionError("the remote side is gone")


def having(error: Any, **values: object) -> BaseException:
    vars(error).update(values)
    return cast("BaseException", error)


POISON: list[Callable[[], BaseException]] = [
    RateLimited, Waiting, Remote, Stackless,
    *(
        lambda make=make, delay=delay: having(make(1), delay=delay)
        for make in (RetryLater, Snooze)
        for delay in (math.inf, math.nan, None, "soon", -1)
    ),
    lambda: having(Snooze(1), until="tomorrow"),
    lambda: having(Snooze(1), until=datetime(2090, 1, 1)),
]  # fmt: skip


@both_kinds
def test_exception_that_cannot_be_read_is_a_failure_and_others_go_on(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, is_async: bool
) -> None:
    def fail(place: int) -> None:
        raise POISON[place]()

    ids = enqueue(of_kind(is_async, fail), [{"place": n} for n in range(len(POISON))], retry=2)
    behind = enqueue(lambda: None)
    jobs.tick()
    runs = [db.session.get_one(JobRun, run_id) for run_id in ids]
    assert {(run.status, run.attempts) for run in runs} == {("failed", 1)}
    assert all(run.run_at > run.created_at for run in runs)
    assert db.session.get_one(JobRun, behind[0]).status == "succeeded"
    db.session.execute(text("UPDATE job_runs SET run_at = created_at"))
    db.session.commit()
    jobs.tick()
    assert {(run.status, run.attempts) for run in runs} == {("dead", 2)}


def refuse(attempt: int, error: BaseException) -> float | None:
    """Allow no retry."""
    assert (attempt, str(error)) == (1, "broken")
    return None


def break_down(attempt: int, error: BaseException) -> float | None:
    """Raise an error."""
    raise KeyError("policy")


def leave(attempt: int, error: BaseException) -> float | None:
    """Raise what is not an Exception."""
    sys.exit("policy")


def lose_count(attempt: int, error: BaseException) -> float | None:
    """Return a delay that is no number."""
    return math.nan


@pytest.mark.parametrize(
    ("error", "retry", "status", "delay", "logged"),
    [
        (Discard("the user is gone"), 5, "cancelled", None, ""),
        (RetryLater(3600, "the other side is closed"), 5, "failed", 3600, ""),
        (RetryLater(3600), 1, "dead", None, ""),
        (OwnDelay(), 2, "failed", 3600, ""),
        (RateLimited(), 2, "failed", None, "RateLimited does not say when to try again"),
        (ValueError("broken"), refuse, "dead", None, ""),
        (ValueError("broken"), break_down, "failed", None, "its retry policy raised"),
        (ValueError("broken"), leave, "failed", None, "its retry policy raised"),
        (ValueError("broken"), lose_count, "failed", None, "its retry policy raised"),
        (ValueError("broken"), Retry(on=OSError), "dead", None, ""),
    ],
)
def test_error_and_policy_decide_what_becomes_of_a_run(
    perform: Any, db: SQLAlchemy, caplog: pytest.LogCaptureFixture,
    error: BaseException, retry: Any, status: str, delay: float | None, logged: str,
) -> None:  # fmt: skip
    run = perform(raising(error), retry=retry)
    assert run.status == status
    assert str(error) in run.last_error
    assert logged in caplog.text
    assert ("super().__init__" in caplog.text) is ("does not say" in logged)
    if delay is not None:
        assert (run.run_at - run.updated_at).total_seconds() == pytest.approx(delay, abs=5)
    stacks = db.session.scalars(select(JobFailure.stack)).all()
    assert len(stacks) == (status != "cancelled")
    if isinstance(error, RetryLater):
        assert stacks == [None]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio has groups of tasks since 3.11")
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([Discard("gone")], "cancelled"),
        ([RetryLater(3600, "closed")], "failed"),
        ([Snooze(3600, "not there yet")], "snoozed"),
        ([Discard("gone"), ValueError("broken")], "dead"),
    ],
)
def test_a_task_in_a_group_of_tasks_decides_what_becomes_of_its_run(
    jobs: CronJobs,
    db: SQLAlchemy,
    enqueue: Enqueue,
    errors: list[Exception],
    kind: str,
    is_plain: bool,
) -> None:
    """A group raises what its tasks raise as a group of exceptions."""
    asyncio_: Any = asyncio

    async def fail(error: Exception) -> None:
        raise error

    async def handler() -> None:
        async with asyncio_.TaskGroup() as outer, asyncio_.TaskGroup() as inner:
            outer.create_task(asyncio.sleep(60))
            for error in errors:
                inner.create_task(fail(error))

    plain = lambda: asyncio.run(handler())  # noqa: E731
    (run_id,) = enqueue(plain if is_plain else handler, retry=kind != "dead")
    assert getattr(jobs.tick(), kind) == 1
    run = db.session.get_one(JobRun, run_id)
    if kind != "dead":
        assert run.last_error == str(errors[0])
    if kind in ("failed", "snoozed"):
        assert (run.run_at - run.updated_at).total_seconds() == pytest.approx(3600, abs=60)


async def asynchronous() -> None: ...


async def returns_a_coroutine() -> object:
    return asynchronous()


def lines() -> Iterator[None]:
    yield


async def async_lines() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("handler", "what"),
    [
        (lambda: asynchronous(), "a coroutine"),
        (lambda: returns_a_coroutine(), "a coroutine"),
        (returns_a_coroutine, "a coroutine"),
        (lambda: lines(), "a generator"),
        (lambda: async_lines(), "an async generator"),
    ],
)
def test_body_that_nobody_ran_is_a_failure(
    perform: Any, handler: Any, what: str, atomic: bool
) -> None:
    """A plain decorator returns the coroutine, so no line of the handler has run."""
    run = perform(handler, atomic=atomic)
    assert (run.status, run.error_type) == ("dead", "TypeError")
    assert run.last_error.startswith(f"The handler returned {what}, so none of its lines ran.")


def test_generator_that_a_handler_goes_through_or_makes_by_an_expression_is_no_failure(
    perform: Any,
) -> None:
    run = perform(lambda: len(list(lines())))
    assert (run.status, run.result) == ("succeeded", 1)
    assert perform(lambda: (digit for digit in "12"), name="other").status == "succeeded"


class TestSession:
    def test_dirty_session_leaves_nothing_for_the_next_run(
        self, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
    ) -> None:
        def dirty() -> None:
            db.session.add(JobRun(job_type="left behind"))
            db.session.flush()

        enqueue(dirty)
        enqueue(lambda: db.session.commit())
        assert jobs.tick().succeeded == 2
        types = db.session.scalars(select(JobRun.job_type).order_by(JobRun.id)).all()
        assert types == ["dirty", "it"]

    def test_each_run_has_an_app_context_of_its_own(self, jobs: CronJobs, enqueue: Enqueue) -> None:
        marks: list[Any] = []

        def look() -> None:
            marks.append(g.get("mark"))
            g.mark = "of an earlier run"

        enqueue(look, [{}, {}])
        g.mark = "of the caller"
        jobs.tick()
        assert marks == [None, None]
        assert g.mark == "of the caller"


class TestTeardown:
    @pytest.fixture
    def break_down(self, app: Flask) -> Callable[[BaseException], Callable[[], str]]:
        """Return a handler after which a teardown raises *error*."""

        @app.teardown_appcontext
        def broken(error: BaseException | None) -> None:
            if "breaks" in g:
                raise g.breaks

        def handler_of(error: BaseException) -> Callable[[], str]:
            def handler() -> str:
                g.breaks = error
                return "kept"

            return handler

        return handler_of

    def test_that_raises_is_the_run_s_failure(self, perform: Any, break_down: Any) -> None:
        run = perform(break_down(ValueError("teardown")))
        assert (run.status, run.last_error) == ("dead", "teardown")

    def test_that_raises_after_an_atomic_commit_is_logged_and_changes_nothing(
        self, perform: Any, break_down: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with received(signals.run_succeeded) as outcomes:
            run = perform(break_down(asyncio.CancelledError("teardown")), atomic=True)
        assert [(outcome.kind, outcome.result) for outcome in outcomes] == [("succeeded", "kept")]
        assert (run.status, run.result) == ("succeeded", "kept")
        assert "CancelledError: teardown" in caplog.text
        assert "lease lost" not in caplog.text

    def test_that_is_interrupted_after_an_atomic_commit_goes_on_up(
        self, perform: Any, break_down: Any, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(KeyboardInterrupt):
            perform(break_down(KeyboardInterrupt()), atomic=True)
        assert ends(db) == [("succeeded", None)]
        assert "lease lost" not in caplog.text


def test_async_handler_runs_through_the_app_s_ensure_sync(
    app: Flask, perform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An object whose finalizer takes long.
    monkeypatch.setattr(app, "async_to_sync", lambda func: lambda: asyncio.run(func()) + " so")

    async def handler() -> str:
        return "awaited"

    run = perform(handler)
    assert (run.status, run.result) == ("succeeded", "awaited so")


class TestKeyboard:
    def test_interrupt_gives_back_what_waits_as_well(
        self, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
    ) -> None:
        running = select(func.count()).where(JobRun.status == "running")

        def interrupted_while_others_wait() -> None:
            if db.session.scalars(running).one() > 1:
                raise KeyboardInterrupt

        enqueue(interrupted_while_others_wait, [{}] * 200)
        with pytest.raises(KeyboardInterrupt):
            jobs.tick()
        assert set(holders(db)) == {("succeeded", 1, None), GIVEN_BACK}

    def test_interrupt_between_claim_and_handler_gives_the_run_back(
        self, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(self: Runner, claim: Claim) -> Outcome:
            raise KeyboardInterrupt

        monkeypatch.setattr(Runner, "perform", interrupted)
        enqueue(lambda: None)
        with pytest.raises(KeyboardInterrupt):
            jobs.tick()
        assert holders(db) == [GIVEN_BACK]

    @both_kinds
    def test_an_interrupt_in_a_thread_of_a_web_server_is_the_handler_s_own(
        self, app: Flask, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, is_async: bool
    ) -> None:
        """Python raises Ctrl-C in the main thread only, and a tick by URL runs in another one."""

        def tick() -> tuple[int, int]:
            with app.app_context():
                report = jobs.tick()
            return report.dead, report.succeeded

        enqueue(of_kind(is_async, raising(KeyboardInterrupt("mine"))), retry=False)
        enqueue(lambda: None)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(tick)
            assert answer.exception(60) is None
        assert answer.result() == (1, 1)


NAME: ContextVar[str] = ContextVar("name", default="nobody's")


@both_kinds
def test_a_handler_sees_no_request_and_no_context_variables_of_an_earlier_run(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue, is_async: bool
) -> None:
    """A handler may push a request context, such as for `url_for`, and not pop it."""

    def look(number: int) -> list[object]:
        found = [has_request_context(), NAME.get()]
        app.test_request_context("/").push()
        NAME.set(f"run {number}'s")
        return found

    enqueue(of_kind(is_async, look), [{"number": number} for number in range(3)])
    jobs.tick()
    assert list(db.session.scalars(select(JobRun.result))) == [[False, "nobody's"]] * 3
