"""`once`: an effect happens once, whatever fails. `test_failpoints` kills the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs, Retry, SetupError, TaskError, current_run
from flask_cronjobs.features.once import once, once_effects
from flask_cronjobs.models import JobEffect, JobFailure, JobRun, JobTick
from tests.marks import on_both, on_postgresql, on_sqlite

pytestmark = pytest.mark.usefixtures("context")
AGAIN = Retry(max_attempts=3, base=0)
Perform = Callable[..., JobRun]


@pytest.fixture
def states(db: SQLAlchemy) -> Callable[[], list[str]]:
    """Return a function that reads the states of all effects."""

    def states() -> list[str]:
        db.session.expire_all()
        return list(db.session.scalars(db.select(JobEffect.state)))

    return states


def write_in_session(db: SQLAlchemy) -> None:
    """Open a write transaction in the session, which takes SQLite's lock."""
    db.session.add(JobEffect(key="of the session", state="in_doubt"))
    db.session.flush()


def let_leases_end(db: SQLAlchemy) -> None:
    with db.engine.begin() as connection:
        connection.execute(text("UPDATE job_effects SET locked_until = '2020-01-01'"))


@on_both
def test_effect_is_not_pruned_while_its_run_waits_for_its_retry(
    db: SQLAlchemy, jobs: CronJobs
) -> None:
    """The delay of the retry may be longer than the retention."""
    charged: list[int] = []

    @jobs.task(retry=AGAIN)
    def charge() -> None:
        jobs.once("charge:812", lambda: charged.append(812))
        if current_run.attempt == 1:
            raise ConnectionError("the mail server is away")

    charge.using(commit=True).enqueue()
    assert jobs.tick(max_runs=1).failed == 1
    db.session.execute(text("UPDATE job_effects SET done_at = '2000-01-01'"))
    db.session.commit()
    jobs.prune()
    assert (jobs.tick().succeeded, charged) == (1, [812])


@on_both
def test_effects_of_a_failed_attempt_are_checkpoints_for_the_next(
    jobs: CronJobs, perform: Perform
) -> None:
    done: list[str] = []

    def do(step: str) -> int:
        done.append(step)
        return len(done)

    def in_steps() -> list[int | None]:
        steps = [jobs.once(f"{step}:{current_run.id}", do, step) for step in ("one", "two")]
        if current_run.attempt == 1:
            raise ConnectionError("after both")
        return steps

    assert perform(in_steps, retry=AGAIN).result == [1, 2]
    assert done == ["one", "two"]


def test_effect_in_the_context_of_another_app_is_that_app_s(
    jobs: CronJobs, another: tuple[Flask, SQLAlchemy]
) -> None:
    """This holds for a handler of this app and for one of the other app."""
    other_app, other_db = another
    other_jobs = CronJobs(other_app)
    paid: list[str] = []

    @jobs.task
    def shop() -> None:
        with other_app.app_context():
            other_jobs.once("pay:1", paid.append, "by the shop")
        jobs.once("pay:1", paid.append, "here")

    @other_jobs.task
    def office() -> None:
        other_jobs.once("pay:1", paid.append, "by the office")

    with other_app.app_context():
        other_db.create_all()
        office.using(commit=True).enqueue()
    shop.using(commit=True).enqueue()
    assert jobs.tick().succeeded == 1
    with other_app.app_context():
        assert other_jobs.tick().succeeded == 1
        effect = other_db.session.scalars(other_db.select(JobEffect)).one()
        assert (effect.state, effect.run_id) == ("done", None)
    assert paid == ["by the shop", "here"]


@on_both
@pytest.mark.parametrize("broken_session", [False, True])
def test_effect_that_raised_is_tried_again(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, broken_session: bool
) -> None:
    """After a failed flush, a session refuses every statement until it is rolled back."""

    def effect() -> str:
        if current_run.attempt > 1:
            return "sent"
        if not broken_session:
            raise ConnectionError("not yet")
        db.session.add(JobTick(worker=None, host="h", pid=1))
        db.session.flush()
        return "never"

    run = perform(lambda: jobs.once("mail:1", effect), retry=AGAIN)
    assert (run.status, run.attempts, run.result) == ("succeeded", 2, "sent")
    error = db.session.scalars(db.select(JobFailure.error_type)).one()
    assert error is not None
    assert error.endswith("IntegrityError" if broken_session else "ConnectionError")


@on_both
@pytest.mark.parametrize("timeout", [0.3, None])
def test_effect_that_its_timeout_or_the_end_of_its_process_interrupted_is_in_doubt(
    jobs: CronJobs, perform: Perform, states: Callable[[], list[str]], timeout: float | None
) -> None:
    """A server such as Celery ends its worker by a signal whose handler raises SystemExit.

    Nobody knows whether the effect has happened, so it is not repeated.
    """
    attempts: list[int] = []

    def effect() -> None:
        attempts.append(current_run.attempt)
        if timeout is None:
            raise SystemExit(-241)
        time.sleep(120)

    run = perform(lambda: jobs.once("mail:1", effect), retry=AGAIN, timeout=timeout)
    assert (run.status, run.attempts, attempts) == ("succeeded", 2, [1])
    assert states() == ["in_doubt"]


@on_postgresql
def test_interruption_while_the_mark_is_written_leaves_no_doubt(
    db: SQLAlchemy, jobs: CronJobs, perform: Perform, states: Callable[[], list[str]]
) -> None:
    """The INSERT is slow, and the timeout comes before the effect begins."""
    attempts: list[int] = []
    db.session.execute(
        text(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF (SELECT attempts FROM job_runs) = 1 THEN PERFORM pg_sleep(0.8); END IF;"
            " RETURN NEW; END $$;"
            "CREATE TRIGGER slow AFTER INSERT ON job_effects FOR EACH ROW"
            " EXECUTE FUNCTION slow()"
        )
    )
    db.session.commit()

    def send() -> None:
        jobs.once("mail:1", lambda: attempts.append(current_run.attempt))

    run = perform(send, retry=AGAIN, timeout=0.3)
    assert (run.status, run.attempts, attempts) == ("succeeded", 2, [2])
    assert states() == ["done"]


@on_both
def test_interruption_just_after_a_doubt_was_taken_over_leaves_it_in_doubt(
    db: SQLAlchemy,
    jobs: CronJobs,
    states: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The effect did not begin again, but an earlier attempt may have performed it."""
    take_over = once_effects.take_over

    def interrupted(*arguments: Any) -> bool:
        assert take_over(*arguments)
        raise KeyboardInterrupt

    db.session.add(JobEffect(key="mail:1", state="in_doubt", locked_by="host:1:gone"))
    db.session.commit()
    monkeypatch.setattr(once_effects, "take_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.once("mail:1", lambda: None, in_doubt="redo")
    assert states() == ["in_doubt"]


@on_both
@pytest.mark.parametrize("fails", [False, True])
def test_others_wait_for_the_first_caller_and_do_the_effect_if_it_raises(
    app: Flask, jobs: CronJobs, fails: bool
) -> None:
    started, gate = threading.Event(), threading.Event()
    calls: list[int] = []
    results: list[str | None] = []

    def effect() -> str:
        calls.append(1)
        started.set()
        gate.wait(60)
        if fails and len(calls) == 1:
            raise ConnectionError("not done")
        return "done"

    def call() -> None:
        with app.app_context():
            try:
                results.append(jobs.once("k", effect))
            except ConnectionError:
                results.append(None)

    threads = [threading.Thread(target=call) for _ in range(3)]
    threads[0].start()
    assert started.wait(60)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.2)
    assert results == []
    gate.set()
    for thread in threads:
        thread.join(60)
    assert len(calls) == 1 + fails
    assert (results.count("done"), results.count(None)) == ((2, 1) if fails else (3, 0))


@on_both
def test_error_of_the_effect_comes_through_though_its_mark_cannot_be_removed(
    db: SQLAlchemy, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    def effect() -> None:
        db.session.execute(text("DROP TABLE job_effects"))
        db.session.commit()
        raise ConnectionError("not yet")

    with pytest.raises(ConnectionError, match="not yet"):
        jobs.once("mail:1", effect)
    assert (
        "once('mail:1'): the function raised, and the row in job_effects cannot be removed"
        in caplog.text
    )


def test_once_inside_itself_is_refused(
    jobs: CronJobs, perform: Perform, states: Callable[[], list[str]]
) -> None:
    inner: list[int] = []

    def nested() -> None:
        jobs.once("k", lambda: jobs.once("k", lambda: inner.append(1), in_doubt="redo"))

    error = perform(nested).last_error
    assert error is not None
    assert "once('k') is called inside itself" in error
    with pytest.raises(SetupError, match="called inside itself"):
        nested()
    assert (states(), inner) == ([], [])
    assert jobs.once("k", lambda: "free again") == "free again"
    assert jobs.once("outer", lambda: [jobs.once("inner", lambda: 1)]) == [1]
    assert jobs.once("inner", lambda: 2) == 1


def gathering(jobs: CronJobs, keys: list[str], effect: Callable[[str], Any]) -> Callable[[], Any]:
    """Return a handler that performs these effects at once, each in its own thread."""

    async def gather() -> list[Any]:
        calls = (asyncio.to_thread(jobs.once, key, effect, key, in_doubt="redo") for key in keys)
        return await asyncio.gather(*calls)

    return gather


@on_both
def test_threads_of_a_handler_do_their_effects_side_by_side(
    jobs: CronJobs, perform: Perform, states: Callable[[], list[str]]
) -> None:
    together = threading.Barrier(4, timeout=60)

    def effect(key: str) -> str:
        together.wait()
        return key

    assert perform(gathering(jobs, ["a", "b", "c", "d"], effect)).result == ["a", "b", "c", "d"]
    assert states() == ["done"] * 4


@on_both
def test_one_effect_in_two_threads_of_a_handler_is_refused(
    jobs: CronJobs, perform: Perform
) -> None:
    """Both threads have the same token, so neither could tell its own mark from the other's."""
    calls: list[str] = []
    refused = threading.Event()

    def effect() -> str:
        assert refused.wait(60)
        calls.append("k")
        return "sent"

    def second() -> None:
        with pytest.raises(SetupError, match="while another thread of this run is calling it"):
            jobs.once("k", lambda: "never")
        refused.set()

    async def handler() -> str | None:
        first = asyncio.create_task(asyncio.to_thread(jobs.once, "k", effect))
        while not once._doing:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(second)
        return await first

    assert perform(handler).result == "sent"
    assert (calls, once._doing) == (["k"], {})


@on_both
def test_effect_done_while_others_doubted_it_is_done(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    """A slow owner that finishes knows that the effect is done, so it is no longer in doubt."""

    def slow() -> str:
        let_leases_end(db)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(other).result(60) is None
        return "sent"

    def other() -> str | None:
        with app.app_context():
            return jobs.once("k", lambda: "twice")

    assert jobs.once("k", slow) == "sent"
    assert jobs.once("k", lambda: "twice") == "sent"


@pytest.mark.parametrize("key", ["", "x" * 501, "nul\0", "a\nb", "a\x1b[2J", " ", None, 5])
def test_key_that_cannot_be_kept_is_refused(jobs: CronJobs, key: str) -> None:
    with pytest.raises(ValueError, match="1 to 500 printable characters"):
        jobs.once(key, lambda: None)


def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda once: once("k", None), TypeError, r"once\('k'\): the function is None\. Give"),
        (lambda once: once("k", {"id": 1}), TypeError, r"the function is of type dict\. Give"),
        (lambda once: once("k"), TypeError, "once.. takes a string and the function by position"),
        (lambda once: once(key="k", func=print), TypeError, "by position.*even func="),
        (lambda once: once("k", generator), SetupError, "generator, so none of its lines ran"),
        (lambda once: once("k", async_generator), SetupError, "generator, so none of its lines"),
        (lambda once: once("k", asyncio.sleep, 0), SetupError, "was given an async function"),
        (lambda once: once("k", print, in_doubt="no"), TaskError, "in_doubt is 'no'. Write 'sk"),
    ],
)
def test_what_cannot_be_called_leaves_no_mark(
    jobs: CronJobs, states: Callable[[], list[str]], call: Any, error: Any, message: str
) -> None:
    """Code that passes charge() instead of charge would perform the effect at each attempt."""
    with pytest.raises(error, match=message):
        call(jobs.once)
    assert states() == []


@on_sqlite
class TestOnSQLite:
    """SQLite has one writer: the mark needs the lock that the caller's session may hold."""

    def test_open_write_in_the_session_is_refused_at_once(
        self, db: SQLAlchemy, jobs: CronJobs
    ) -> None:
        calls: list[int] = []
        write_in_session(db)
        began = time.monotonic()
        with pytest.raises(SetupError, match=r"db\.session holds SQLite's write lock") as caught:
            jobs.once("k", lambda: calls.append(1))
        assert "or with atomic=True, make this call before you write anything." in str(caught.value)
        assert caught.value.__suppress_context__  # SQLite's own message adds nothing, and is long.
        assert time.monotonic() - began < 10
        db.session.commit()
        jobs.once("k", lambda: calls.append(1))
        assert calls == [1]

    def test_effect_that_failed_with_an_open_write_loses_both_write_and_mark(
        self, db: SQLAlchemy, jobs: CronJobs, states: Callable[[], list[str]]
    ) -> None:
        def effect() -> None:
            write_in_session(db)
            raise ConnectionError("not yet")

        with pytest.raises(ConnectionError, match="not yet"):
            jobs.once("k", effect)
        assert states() == []
        assert jobs.once("k", lambda: "done") == "done"

    def test_session_that_only_reads_is_no_hindrance(self, db: SQLAlchemy, jobs: CronJobs) -> None:
        db.session.scalars(db.select(JobRun)).all()
        assert jobs.once("k", lambda: "done") == "done"
