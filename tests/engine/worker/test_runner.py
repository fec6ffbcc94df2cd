"""A handler's mess stays its own, whatever it raises, returns or leaves behind."""

from __future__ import annotations

import asyncio
import builtins
import functools
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any, cast

import pytest
from flask import Flask, g
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import func, select, text

from flask_cronjobs import CronJobs, Discard, Retry, RetryLater, Snooze, signals
from flask_cronjobs.engine.worker.runner import Runner
from flask_cronjobs.models import JobFailure, JobRun
from flask_cronjobs.types import JSON, Claim, Outcome

pytestmark = pytest.mark.usefixtures("context")

ONE_TRY = Retry(max_attempts=1)


def failure_of(db: SQLAlchemy, run: JobRun) -> JobFailure:
    return db.session.scalars(select(JobFailure).where(JobFailure.run_id == run.id)).one()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unnamed(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def circle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def dive() -> None:
    dive()


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
}


@pytest.mark.parametrize("case", MESS)
def test_whatever_is_raised_is_a_recorded_failure(perform: Any, db: SQLAlchemy, case: str) -> None:
    make, message = MESS[case]

    def handler() -> None:
        raise make()

    run = perform(handler)
    assert run.status == "dead"
    assert run.last_error is not None
    assert message in run.last_error
    assert len(run.last_error) < 3000
    failure = failure_of(db, run)
    assert (failure.error, failure.error_type) == (run.last_error, run.error_type)
    assert failure.stack is not None
    assert "in handler" in failure.stack
    assert len(failure.stack) < 20_000
    assert "s3cret" not in failure.stack


def test_recursion_without_end_is_a_recorded_failure(perform: Any) -> None:
    run = perform(dive)
    assert (run.status, run.error_type) == ("dead", "RecursionError")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
class RateLimited(RetryLater):
    def __init__(self) -> None:
        """Forgets super().__init__()."""


class Waiting(Snooze):
    def __init__(self) -> None:
        """Forgets it, too."""


class OwnDelay(RetryLater):
    delay = 3600

    def __init__(self) -> None:
        """Says the delay in its own way."""


class Remote(Exception):
    @property
    def exceptions(self) -> Any:
        raise ConnectionError("the remote side is gone")


class Stackless(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise ConnectionError("the remote side is gone")


def with_delay(error: Any, delay: object) -> BaseException:
    error.delay = delay
    return cast("BaseException", error)


def with_until(until: object) -> BaseException:
    error: Any = Snooze(1)
    error.until = until
    return cast("BaseException", error)


POISON: list[Callable[[], BaseException]] = [
    RateLimited, Waiting, Remote, Stackless,
    *(
        lambda make=make, delay=delay: with_delay(make(1), delay)
        for make in (RetryLater, Snooze)
        for delay in (math.inf, math.nan, None, "soon", -1)
    ),
    lambda: with_until("tomorrow"),
    lambda: with_until(datetime(2090, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_exception_that_cannot_be_read_is_a_failure_and_others_go_on(
    jobs: CronJobs, db: SQLAlchemy, is_async: bool
) -> None:
    def fail(place: int) -> None:
        raise POISON[place]()

    async def fail_later(place: int) -> None:
        fail(place)

    task = jobs.task(name="it", retry=2)(fail_later if is_async else fail)
    ids = task.using(commit=True).enqueue_many([{"place": n} for n in range(len(POISON))])
    behind = jobs.task(name="behind")(lambda: None).using(commit=True).enqueue()
    jobs.tick()
    runs = [db.session.get_one(JobRun, run_id) for run_id in ids]
    assert {(run.status, run.attempts) for run in runs} == {("failed", 1)}
    assert all(run.run_at > run.created_at for run in runs)
    assert behind.status == "succeeded"
    db.session.execute(text("UPDATE job_runs SET run_at = created_at"))
    db.session.commit()
    jobs.tick()
    assert {(run.status, run.attempts) for run in runs} == {("dead", 2)}


def test_delay_that_a_class_of_one_s_own_says_is_taken(
    perform: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(error: BaseException) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    run = perform(handler(OwnDelay()), retry=2)
    assert 3500 < (run.run_at - run.created_at).total_seconds() < 3700
    assert "super().__init__" not in caplog.text
    perform(handler(RateLimited()), name="other")
    assert "RateLimited does not say when to try again" in caplog.text


def test_group_of_exceptions_is_a_recorded_failure(perform: Any) -> None:
    make = vars(builtins)["BaseExceptionGroup"]

    def handler() -> None:
        raise make("several", [SystemExit(1), KeyboardInterrupt(), ValueError("x")])

    run = perform(handler)
    assert (run.status, run.error_type) == ("dead", "BaseExceptionGroup")


def test_failure_is_tried_again_until_attempts_are_used_up(jobs: CronJobs, db: SQLAlchemy) -> None:
    @jobs.task(retry=Retry(max_attempts=3, base=0, jitter=False))
    def broken() -> None:
        raise ValueError("broken")

    run = broken.using(commit=True).enqueue()
    report = jobs.tick()
    db.session.refresh(run)
    assert (run.status, run.attempts) == ("dead", 3)
    assert (report.failed, report.dead) == (2, 1)
    rows = db.session.scalars(select(JobFailure.attempt).order_by(JobFailure.attempt)).all()
    assert rows == [1, 2, 3]


class TestFate:
    def test_discard_ends_as_cancelled_without_a_retry(self, perform: Any, db: SQLAlchemy) -> None:
        def handler() -> None:
            raise Discard("the user is gone")

        run = perform(handler, retry=5)
        assert (run.status, run.last_error) == ("cancelled", "the user is gone")
        assert db.session.scalars(select(JobFailure)).all() == []

    def test_retry_later_waits_as_asked(self, perform: Any, db: SQLAlchemy) -> None:
        def handler() -> None:
            raise RetryLater(3600, "the other side is closed")

        run = perform(handler, retry=5)
        assert (run.status, run.last_error) == ("failed", "the other side is closed")
        assert (run.run_at - run.updated_at).total_seconds() == pytest.approx(3600, abs=5)
        assert failure_of(db, run).stack is None

    def test_retry_later_at_the_last_attempt_is_the_end(self, perform: Any) -> None:
        def handler() -> None:
            raise RetryLater(3600)

        assert perform(handler).status == "dead"

    def test_policy_of_one_s_own_decides(self, perform: Any) -> None:
        asked: list[tuple[int, str]] = []

        def policy(attempt: int, error: BaseException) -> float | None:
            asked.append((attempt, str(error)))
            return None

        def handler() -> None:
            raise ValueError("broken")

        assert perform(handler, retry=policy).status == "dead"
        assert asked == [(1, "broken")]

    def test_policy_that_raises_is_logged_and_the_default_used(
        self, perform: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def policy(attempt: int, error: BaseException) -> float | None:
            raise KeyError("policy")

        def handler() -> None:
            raise ValueError("broken")

        run = perform(handler, retry=policy)
        assert (run.status, run.last_error) == ("failed", "broken")
        assert "its retry policy raised" in caplog.text

    def test_exception_that_is_not_to_be_tried_again_is_the_end(self, perform: Any) -> None:
        def handler() -> None:
            raise ValueError("broken")

        assert perform(handler, retry=Retry(on=OSError)).status == "dead"


class TestResult:
    @pytest.mark.parametrize("value", [None, 0, "é", [1, {"a": None}], {"done": 3}])
    def test_json_is_kept(self, perform: Any, value: Any) -> None:
        run = perform(lambda: value)
        assert (run.status, run.result) == ("succeeded", value)

    @pytest.mark.parametrize(
        "value",
        [object(), {1, 2}, "x" * 70_000, float("nan"), b"bytes", "a\0"],
        ids=["object", "set", "too large", "NaN", "bytes", "NUL"],
    )
    def test_what_is_no_json_is_not_kept_and_the_run_succeeds(
        self, perform: Any, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = perform(lambda: value)
        assert (run.status, run.result) == ("succeeded", None)
        assert "the result is not JSON or too large" in caplog.text


async def asynchronous() -> None: ...


async def returns_a_coroutine() -> object:
    return asynchronous()


def lines() -> Iterator[None]:
    yield


async def async_lines() -> AsyncIterator[None]:
    yield


class TestUnrun:
    """What is decorated by a plain function comes back to us, and no line of it has run."""

    @pytest.mark.parametrize("atomic", [False, True])
    @pytest.mark.parametrize(
        ("handler", "what"),
        [
            (asynchronous, "a coroutine"),
            (returns_a_coroutine, "a coroutine"),
            (lines, "a generator"),
            (async_lines, "an async generator"),
        ],
    )
    def test_body_that_nobody_ran_is_a_failure(
        self, perform: Any, handler: Any, what: str, atomic: bool
    ) -> None:
        run = perform(lambda: handler(), atomic=atomic)
        assert (run.status, run.error_type) == ("dead", "TypeError")
        assert run.last_error.startswith(f"The handler returned {what}, of which no line was run.")

    def test_coroutine_that_an_async_handler_returns_is_a_failure(self, perform: Any) -> None:
        run = perform(returns_a_coroutine)
        assert (run.status, run.error_type) == ("dead", "TypeError")

    def test_handler_that_goes_through_a_generator_runs_it(self, perform: Any) -> None:
        @functools.wraps(lines)
        def consumed() -> int:
            return len(list(lines()))

        run = perform(consumed)
        assert (run.status, run.result) == ("succeeded", 1)

    def test_generator_expression_is_a_value(self, perform: Any) -> None:
        assert perform(lambda: (number for number in "12")).status == "succeeded"


class TestSession:
    def test_dirty_session_leaves_nothing_for_the_next_run(
        self, jobs: CronJobs, db: SQLAlchemy
    ) -> None:
        @jobs.task
        def dirty() -> None:
            db.session.add(JobRun(job_type="left behind"))
            db.session.flush()

        @jobs.task
        def committing() -> None:
            db.session.commit()

        dirty.using(commit=True).enqueue()
        committing.using(commit=True, delay=0).enqueue()
        assert jobs.tick().succeeded == 2
        types = db.session.scalars(select(JobRun.job_type).order_by(JobRun.id)).all()
        assert types == ["dirty", "committing"]

    def test_broken_session_breaks_nothing_after_it(self, jobs: CronJobs, db: SQLAlchemy) -> None:
        @jobs.task(retry=ONE_TRY)
        def breaking() -> None:
            db.session.execute(text("SELECT * FROM no_such_table"))

        @jobs.task
        def working() -> None:
            db.session.execute(text("SELECT 1"))

        breaking.using(commit=True).enqueue()
        working.using(commit=True).enqueue()
        report = jobs.tick()
        assert (report.dead, report.succeeded) == (1, 1)

    def test_each_run_has_an_app_context_of_its_own(self, jobs: CronJobs) -> None:
        seen: list[Any] = []

        @jobs.task
        def look() -> None:
            seen.append(g.get("mark"))
            g.mark = "of an earlier run"

        look.using(commit=True).enqueue_many([{}, {}])
        g.mark = "of the caller"
        jobs.tick()
        assert seen == [None, None]
        assert g.mark == "of the caller"

    def test_teardown_that_raises_is_the_run_s_failure(
        self, app: Flask, jobs: CronJobs, db: SQLAlchemy
    ) -> None:
        @jobs.task(retry=ONE_TRY)
        def fine() -> None:
            g.break_teardown = True

        @app.teardown_appcontext
        def broken(error: BaseException | None) -> None:
            if g.get("break_teardown"):
                raise ValueError("teardown")

        run = fine.using(commit=True).enqueue()
        jobs.tick()
        db.session.refresh(run)
        assert (run.status, run.last_error) == ("dead", "teardown")

    def test_teardown_that_raises_after_an_atomic_commit_is_logged_and_changes_nothing(
        self, app: Flask, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard: list[tuple[str, JSON]] = []

        @jobs.task(atomic=True)
        def fine() -> str:
            g.break_teardown = True
            return "kept"

        @app.teardown_appcontext
        def broken(error: BaseException | None) -> None:
            if g.get("break_teardown"):
                raise asyncio.CancelledError("teardown")

        def hear(sender: Flask, outcome: Outcome) -> None:
            heard.append((outcome.kind, outcome.result))

        run = fine.using(commit=True).enqueue()
        with signals.run_succeeded.connected_to(hear, app):
            report = jobs.tick()
        assert (report.succeeded, report.lost) == (1, 0)
        assert heard == [("succeeded", "kept")]
        db.session.refresh(run)
        assert (run.status, run.result) == ("succeeded", "kept")
        assert "CancelledError: teardown" in caplog.text

    def test_interrupt_in_the_teardown_after_an_atomic_commit_goes_on_up(
        self, app: Flask, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        @jobs.task(atomic=True)
        def fine() -> None:
            g.interrupt_teardown = True

        @app.teardown_appcontext
        def interrupted(error: BaseException | None) -> None:
            if g.get("interrupt_teardown"):
                raise KeyboardInterrupt

        run = fine.using(commit=True).enqueue()
        with pytest.raises(KeyboardInterrupt):
            jobs.tick()
        db.session.refresh(run)
        assert run.status == "succeeded"
        assert "lease lost" not in caplog.text


def test_async_handler_runs_through_the_app_s_ensure_sync(
    app: Flask, perform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Flask's own needs asgiref; an app may have another.
    monkeypatch.setattr(app, "async_to_sync", lambda func: lambda: asyncio.run(func()))

    async def handler() -> str:
        return "awaited"

    run = perform(handler)
    assert (run.status, run.result) == ("succeeded", "awaited")


def test_async_handler_runs_in_the_main_thread_where_timeouts_reach_it(perform: Any) -> None:
    # Flask's own way is another thread: there the handler would go on beside its own retry.
    async def handler() -> bool:
        await asyncio.sleep(0)
        return threading.current_thread() is threading.main_thread()

    run = perform(handler)
    assert (run.status, run.result) == ("succeeded", True)


def test_tick_works_in_a_thread(app: Flask, jobs: CronJobs) -> None:
    where: list[str] = []

    @jobs.task(timeout=1)
    def look() -> None:
        where.append(threading.current_thread().name)

    look.using(commit=True).enqueue()

    def tick() -> None:
        with app.app_context():
            jobs.tick()

    thread = threading.Thread(target=tick, name="elsewhere")
    thread.start()
    thread.join()
    assert where == ["elsewhere"]


def test_interrupt_from_the_keyboard_gives_the_run_back_and_goes_on_up(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    @jobs.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    run = interrupted.using(commit=True).enqueue()
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    db.session.refresh(run)
    assert (run.status, run.attempts, run.locked_by) == ("queued", 0, None)


def test_interrupt_from_the_keyboard_gives_back_what_waits_as_well(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    running = select(func.count()).where(JobRun.status == "running")

    @jobs.task
    def interrupted_while_others_wait() -> None:
        if db.session.scalars(running).one() > 1:
            raise KeyboardInterrupt

    interrupted_while_others_wait.using(commit=True).enqueue_many([{}] * 200)
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    db.session.rollback()
    found = db.session.execute(select(JobRun.status, JobRun.attempts).distinct()).all()
    assert {tuple(row) for row in found} == {("succeeded", 1), ("queued", 0)}


def test_interrupt_from_the_keyboard_between_claim_and_handler_gives_the_run_back(
    jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Runner, claim: Claim) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "perform", interrupted)
    run = jobs.task(name="it")(lambda: None).using(commit=True).enqueue()
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    db.session.refresh(run)
    assert (run.status, run.attempts, run.locked_by) == ("queued", 0, None)
