"""Batches: filled in the user's transaction, ended once, followed by one run of ``then``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, func, select, update
from sqlalchemy.exc import OperationalError

from flask_cronjobs import (
    BatchClosed,
    BatchCounts,
    CronJobs,
    Discard,
    Retry,
    Task,
    TaskError,
    current_run,
)
from flask_cronjobs.core.app_state import State
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.errors import DatabaseTrouble
from flask_cronjobs.features.batches.ending import end_batches
from flask_cronjobs.insights.batch_actions import close_batch
from flask_cronjobs.models import JobBatch, JobRun
from tests.kit import in_threads
from tests.marks import on_both, on_postgresql, on_sqlite
from tests.rows import runs

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def received() -> list[Any]:
    """The arguments that the runs of `then` received, in order."""
    return []


@pytest.fixture
def work(jobs: CronJobs) -> Task[..., Any]:
    """A task whose runs end as their argument says."""

    @jobs.task(retry=Retry(max_attempts=1))
    def work(how: str = "well", number: int = 0) -> None:
        if how == "badly":
            raise ValueError("badly")
        if how == "discard":
            raise Discard("not needed")

    return work


@pytest.fixture
def then(jobs: CronJobs, received: list[Any]) -> Task[..., Any]:
    """A task that records its arguments and the batch that it follows."""

    @jobs.task
    def then(**arguments: Any) -> None:
        received.append((current_run.batch, arguments))

    return then


def batch_row(db: SQLAlchemy, key: str = "b") -> JobBatch:
    db.session.rollback()
    return db.session.execute(select(JobBatch).where(JobBatch.key == key)).scalar_one()


def runs_of(db: SQLAlchemy, task: str) -> list[JobRun]:
    return [run for run in runs(db) if run.job_type == task]


@on_both
def test_then_runs_once_with_the_counts(
    jobs: CronJobs, db: SQLAlchemy, work: Any, then: Any, received: list[Any]
) -> None:
    with jobs.batch("b", then=then, then_payload={"week": "W47"}):
        work.enqueue_many([{"number": number} for number in range(5)])
        work.enqueue("badly")
        work.enqueue(how="discard")
    db.session.commit()
    jobs.tick()
    counts = BatchCounts("b", total=7, succeeded=5, dead=1, cancelled=1, finished=True)
    assert received == [(counts, {"week": "W47"})]
    row = batch_row(db)
    assert (row.total, row.succeeded, row.dead, row.cancelled, row.skipped) == (7, 5, 1, 1, 0)
    (run,) = runs_of(db, "then")
    assert row.then_run_id == run.id
    assert run.batch_id is None
    jobs.tick()
    assert len(received) == 1


@on_both
def test_batch_whose_last_run_ended_without_a_worker_is_ended_by_the_next_tick(
    jobs: CronJobs, db: SQLAlchemy, work: Any, then: Any, received: list[Any]
) -> None:
    """The process may have died before it checked the batch, or the row was changed by hand."""
    with jobs.batch("b", then=then):
        work.enqueue()
    ended = {"status": "succeeded", "finished_at": func.now()}
    db.session.execute(update(JobRun).values(ended))
    db.session.commit()
    jobs.tick()
    assert received == [(BatchCounts("b", 1, 1, finished=True), {})]


@on_both
def test_nothing_is_there_without_a_commit(
    jobs: CronJobs, db: SQLAlchemy, work: Any, then: Any
) -> None:
    with jobs.batch("b", then=then):
        work.enqueue()
    db.session.rollback()
    assert db.session.scalars(select(JobBatch)).all() == []
    assert runs_of(db, "work") == runs_of(db, "then") == []


@on_both
def test_batch_whose_filling_broke_off_waits_until_it_is_filled(
    jobs: CronJobs, db: SQLAlchemy, work: Any, then: Any, received: list[Any]
) -> None:
    for number in range(2):
        with suppress(ZeroDivisionError), jobs.batch("b", then="then"):
            work.enqueue(number=number)
            db.session.commit()
            jobs.tick()
            if number == 0:
                raise ZeroDivisionError
        db.session.commit()
        assert received == []
    jobs.tick()
    assert received == [(BatchCounts("b", total=2, succeeded=2, finished=True), {})]
    with pytest.raises(BatchClosed, match="is closed"), jobs.batch("b"):
        work.enqueue()


def break_off(jobs: CronJobs, work: Any) -> None:
    """Swallow the error that ends the block of a batch."""
    with suppress(ZeroDivisionError), jobs.batch("b"):
        work.enqueue()
        raise ZeroDivisionError


def fill_again(jobs: CronJobs, db: SQLAlchemy) -> None:
    with jobs.batch("b"):
        pass
    db.session.commit()


@on_both
@pytest.mark.parametrize(
    ("go_on", "is_told"),
    [
        (lambda jobs, db: db.session.commit(), True),
        (lambda jobs, db: db.session.rollback(), False),
        (fill_again, False),
    ],
    ids=["commit", "rollback", "fill again"],
)
def test_batch_that_a_swallowed_error_has_left_open_is_told(
    app: Flask,
    jobs: CronJobs,
    db: SQLAlchemy,
    work: Any,
    caplog: pytest.LogCaptureFixture,
    go_on: Callable[[CronJobs, SQLAlchemy], None],
    is_told: bool,
) -> None:
    with app.app_context():
        break_off(jobs, work)
        go_on(jobs, db)
    assert ("An error has ended the block of the batch 'b'" in caplog.text) == is_told


@on_both
@pytest.mark.parametrize("fails", [False, True])
def test_batch_that_a_run_has_left_open_is_noted_in_its_row_unless_it_fails(
    jobs: CronJobs, db: SQLAlchemy, work: Any, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """If the attempt fails, the next attempt fills the batch."""

    @jobs.task(retry=False)
    def fills() -> None:
        break_off(jobs, work)
        db.session.commit()
        if fails:
            raise ValueError

    fills.using(commit=True).enqueue()
    jobs.tick()
    assert ("stays open" in caplog.text) == (not fails)
    (run,) = runs_of(db, "fills")
    assert ("stays open" in str(run.last_error)) == (not fails)


def test_a_batch_has_no_batches_inside(jobs: CronJobs) -> None:
    with jobs.batch("b"), pytest.raises(TaskError, match="Let the `then`"), jobs.batch("c"):
        pass


@on_both
def test_empty_batch_is_followed_at_once(
    jobs: CronJobs, db: SQLAlchemy, then: Any, received: list[Any]
) -> None:
    with jobs.batch("b", then=then.using(queue="other", priority=7, max_attempts=2)):
        pass
    db.session.commit()
    (run,) = runs_of(db, "then")
    assert (run.queue, run.priority, run.max_attempts) == ("other", 7, 2)
    assert batch_row(db).finished_at is not None
    jobs.tick()
    assert received == [(BatchCounts("b", finished=True), {})]


@on_both
@pytest.mark.parametrize("engine_options", [{"isolation_level": "AUTOCOMMIT"}], indirect=True)
def test_batch_that_a_worker_may_end_before_its_block_is_followed_once(
    jobs: CronJobs, db: SQLAlchemy, state: State, then: Any
) -> None:
    """In AUTOCOMMIT, the block's last statements are no transaction."""
    others: list[int] = []
    with state.bookkeeping() as books:
        own_engine = books.engine  # If the app uses psycopg2, bookkeeping has an engine of its own.

    def end_first(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "INSERT INTO job_runs" in statement and not others:
            others.append(0)
            with suppress(DatabaseTrouble), Bookkeeping(own_engine, patience=0) as books:
                others[0] = end_batches(books)

    for engine in {db.engine, own_engine}:
        event.listen(engine, "before_cursor_execute", end_first)
    with jobs.batch("b", then=then):
        pass
    db.session.commit()  # In AUTOCOMMIT, this does nothing.
    assert others == [0]
    assert len(runs_of(db, "then")) == 1
    assert batch_row(db).then_run_id == runs_of(db, "then")[0].id


@on_postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_old_snapshot_does_not_end_a_batch_whose_run_is_retried(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, state: State, work: Any, level: str
) -> None:
    with pytest.raises(OperationalError), jobs.batch("b"):  # noqa: PT012
        run_id = work.using(commit=True).enqueue("badly").id
        jobs.tick()
        db.session.commit()
        db.session.connection(execution_options={"isolation_level": level})
        assert db.session.scalars(select(JobRun.status)).all() == ["dead"]  # The snapshot begins.
        jobs.retry(run_id)
    db.session.rollback()
    assert batch_row(db).finished_at is None


@on_both
def test_batch_that_is_closed_meanwhile_takes_no_more_runs(
    jobs: CronJobs, db: SQLAlchemy, state: State, work: Any
) -> None:
    with pytest.raises(BatchClosed, match="takes no more runs"), jobs.batch("b"):  # noqa: PT012
        work.enqueue()
        db.session.commit()
        assert close_batch(state, "b")
        work.enqueue()
    db.session.rollback()
    assert len(runs_of(db, "work")) == 1


@pytest.fixture
def close_elsewhere(app: Flask, jobs: CronJobs, db: SQLAlchemy) -> Iterator[Callable[[], Any]]:
    """Let another thread close the batch and tick; return a function that waits for it."""

    def close() -> None:
        with app.app_context():
            with suppress(BatchClosed), jobs.batch("b"):
                pass
            db.session.commit()
            jobs.tick()

    with ThreadPoolExecutor(1) as pool:
        yield lambda: pool.submit(close)


@on_postgresql
@pytest.mark.parametrize("broken", [True, False])
def test_batch_is_held_beyond_a_savepoint_in_which_a_run_joined(
    jobs: CronJobs, db: SQLAlchemy, work: Any, close_elsewhere: Any, broken: bool
) -> None:
    with suppress(BatchClosed), jobs.batch("b"):
        work.enqueue()
        db.session.commit()
        with suppress(ZeroDivisionError), db.session.begin_nested():
            work.enqueue()
            with db.session.begin_nested():
                work.enqueue()
            if broken:
                raise ZeroDivisionError
        if broken:
            close_elsewhere().result(10)
            with pytest.raises(BatchClosed):
                work.enqueue()
        else:
            work.enqueue()
            closing = close_elsewhere()
            assert not wait([closing], 0.3).done  # The tick waits for the commit.
            db.session.commit()
            closing.result(10)
    assert batch_row(db).succeeded == len(runs_of(db, "work")) == (1 if broken else 4)


@on_sqlite
def test_batch_is_held_on_sqlite_from_the_look_to_the_insert(
    jobs: CronJobs, db: SQLAlchemy, work: Any, close_elsewhere: Any
) -> None:
    with jobs.batch("b"):
        work.enqueue()
        db.session.commit()
        main, closing = threading.get_ident(), list[Any]()

        def close_between(connection: object, cursor: object, statement: str, *_: object) -> None:
            if "INSERT INTO job_runs" in statement and threading.get_ident() == main:
                closing.append(close_elsewhere())
                wait(closing, 0.3)

        event.listen(db.engine, "before_cursor_execute", close_between)
        work.enqueue()
        db.session.commit()
        closing[0].result(10)
    assert batch_row(db).succeeded == len(runs_of(db, "work")) == 2


@on_postgresql
def test_two_that_fill_and_close_a_batch_do_so_one_after_the_other(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, work: Any
) -> None:
    together = threading.Barrier(2)
    ends: list[str] = []

    def fill() -> None:
        with app.app_context():
            together.wait(10)
            try:
                with jobs.batch("b"):
                    work.enqueue()
                    with suppress(threading.BrokenBarrierError):
                        together.wait(0.3)  # The other thread waits for this one.
                db.session.commit()
                ends.append("filled")
            except BatchClosed:
                ends.append("closed")

    in_threads(fill, fill)
    assert sorted(ends) == ["closed", "filled"]
    jobs.tick()
    assert batch_row(db).succeeded == 1


def test_error_leaves_the_batch_open(jobs: CronJobs, db: SQLAlchemy, work: Any) -> None:
    with pytest.raises(ZeroDivisionError), jobs.batch("b"):  # noqa: PT012
        work.enqueue()
        raise ZeroDivisionError
    db.session.commit()
    assert batch_row(db).closed_at is None
    work.enqueue()  # The block has ended.
    db.session.commit()
    assert [run.batch_id is None for run in runs_of(db, "work")] == [False, True]


def test_run_that_a_key_finds_does_not_join(jobs: CronJobs, db: SQLAlchemy, work: Any) -> None:
    keyed = work.using(idempotency_key="k")
    keyed.enqueue()
    with jobs.batch("b"):
        assert not keyed.enqueue().is_new
        work.enqueue_many([{"number": 1}, {"number": 2}])
    db.session.commit()
    jobs.tick()
    assert batch_row(db).total == 2


def test_then_may_fill_the_next_batch(
    jobs: CronJobs, db: SQLAlchemy, work: Any, then: Any, received: list[Any]
) -> None:
    @jobs.task(atomic=True)
    def next_stage() -> None:
        with jobs.batch("second", then=then):
            work.enqueue_many([{}] * 3)

    with jobs.batch("first", then="next_stage"):
        work.enqueue_many([{}] * 2)
    db.session.commit()
    jobs.tick()
    assert received == [(BatchCounts("second", 3, 3, finished=True), {})]


def test_batch_of_another_app_takes_no_runs(
    jobs: CronJobs, another: tuple[Flask, SQLAlchemy]
) -> None:
    other_app, other_db = another

    @CronJobs(other_app).task
    def elsewhere() -> None: ...

    with jobs.batch("b"), other_app.app_context():
        other_db.create_all()
        elsewhere.enqueue()
        other_db.session.commit()
        assert runs_of(other_db, "elsewhere")[0].batch_id is None


def needs_a_week(week: str) -> None: ...


REFUSED: dict[str, Callable[[CronJobs, Any], object]] = {
    "key is ''": lambda jobs, then: jobs.batch(""),
    "key is 'xxx": lambda jobs, then: jobs.batch("x" * 501),
    "without then": lambda jobs, then: jobs.batch("b", then_payload={}),
    r"using\(delay": lambda jobs, then: jobs.batch("b", then=then.using(delay=5)),
    r"'week'\. Give its arguments as then_payload={…}": lambda jobs, then: jobs.batch(
        "b", then=jobs.task(name="report")(needs_a_week)
    ),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_bad_options_are_refused(jobs: CronJobs, then: Any, problem: str) -> None:
    with pytest.raises((TaskError, TypeError), match=problem):
        REFUSED[problem](jobs, then)
