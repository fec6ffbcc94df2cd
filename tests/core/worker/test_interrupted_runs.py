"""Every interruption reaches its own handler, and nothing else."""

from __future__ import annotations

import signal
import socket
import sqlite3
import time
from contextlib import closing, suppress
from typing import Any, cast

import pytest
from flask import Flask, g
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text

from flask_cronjobs import (
    Cancelled,
    CronJobs,
    ShuttingDown,
    TimedOut,
    current_run,
    in_run,
    signals,
)
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.current import running
from flask_cronjobs.core.worker import monitor
from flask_cronjobs.core.worker.interrupts import HandlerInterrupter
from flask_cronjobs.core.worker.monitor import RunMonitor
from flask_cronjobs.features.once import once_effects
from flask_cronjobs.models import JobEffect, JobFailure
from flask_cronjobs.types import Claim, Outcome
from tests.handlers import (
    AGAIN,
    GIVEN_BACK,
    Enqueue,
    both_kinds,
    ends,
    holders,
    labels,
    of_kind,
    raising,
    write,
)
from tests.marks import on_sqlite
from tests.resident import stop_keepers
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")


@pytest.mark.usefixtures("table")
def test_teardown_that_raises_leaks_no_session_into_the_next_run(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    @app.teardown_appcontext
    def broken(error: BaseException | None) -> None:
        if g.get("break_teardown"):
            raise ValueError("teardown")

    def leaves_a_write() -> None:
        write(db, "never committed")
        g.break_teardown = True

    def commits() -> None:
        write(db, "committed")
        db.session.commit()

    enqueue(leaves_a_write, retry=False)
    enqueue(commits)
    before = set(registry(db))
    report = jobs.tick()
    assert (report.dead, report.succeeded) == (1, 1)
    assert set(registry(db)) == before, "a session is left for who gets the context's id next"
    assert labels(db) == ["committed"]


def test_interruption_that_comes_after_its_handler_is_forgotten(
    app: Flask, jobs: CronJobs, enqueue: Enqueue
) -> None:
    interrupters: list[HandlerInterrupter] = []

    @app.teardown_appcontext
    def cancel(error: BaseException | None) -> None:
        run = running()
        if run is not None:
            within: Any = run.limited
            within.__self__.interrupt(run.claim, Cancelled("too late"))
            interrupters.append(within.__self__)

    enqueue(lambda: None)
    assert jobs.tick().succeeded == 1
    assert [interrupter.requested for interrupter in interrupters] == [{}]


def registry(db: SQLAlchemy) -> dict[int, Any]:
    sessions: Any = db.session.registry
    return cast("dict[int, Any]", sessions.registry)


@on_sqlite
def test_timeout_ends_a_wait_for_a_server_that_does_not_answer(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    """The server accepts the connection and is silent: psycopg would wait for two minutes."""
    psycopg = pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def connects() -> None:
            psycopg.connect(host="127.0.0.1", port=port, connect_timeout=15)

        enqueue(connects, timeout=0.5, retry=False)
        jobs.tick()
    assert ends(db) == [("dead", "TimedOut")]


@on_sqlite
@both_kinds
def test_timeout_does_not_ring_in_the_teardown(app: Flask, perform: Any, is_async: bool) -> None:
    @app.teardown_appcontext
    def slow(error: BaseException | None) -> None:
        if in_run():
            time.sleep(1.2)

    run = perform(of_kind(is_async, lambda: None), timeout=1)
    assert (run.status, run.last_error) == ("succeeded", None)


def test_effect_whose_mark_was_interrupted_is_done_by_the_retry(
    jobs: CronJobs, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch, enqueue: Enqueue
) -> None:
    """The mark is committed, and the timeout comes before the worker gets the answer."""
    begin = once_effects.begin
    attempts: list[int] = []

    def interrupted(*args: Any) -> Any:
        mark = begin(*args)
        if current_run.attempt == 1:
            raise TimedOut("while the mark was made")
        return mark

    monkeypatch.setattr(once_effects, "begin", interrupted)

    def mails() -> None:
        jobs.once("mail", lambda: attempts.append(current_run.attempt))

    enqueue(mails, retry=AGAIN)
    jobs.tick()
    assert attempts == [2]
    assert the_run(db).status == "succeeded"
    assert db.session.scalars(select(JobEffect.state)).all() == ["done"]


@on_sqlite
@pytest.mark.receiver_raises
def test_receiver_of_a_start_that_exits_harms_no_run(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture, enqueue: Enqueue
) -> None:
    def exits(sender: Flask, **details: Any) -> None:
        raise SystemExit(3)

    enqueue(lambda: None)
    with signals.run_started.connected_to(exits, app):
        assert jobs.tick().succeeded == 1
    assert "A receiver of the signal 'run-started' raised" in caplog.text
    assert the_run(db).attempts == 1


def test_receiver_of_a_start_that_hangs_is_ended_by_the_timeout(
    app: Flask, jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    called: list[int] = []

    def hangs(sender: Flask, claim: Claim) -> None:
        if claim.attempt == 1:
            time.sleep(600)

    def fine() -> None:
        called.append(current_run.attempt)

    enqueue(fine, timeout=0.3, retry=AGAIN)
    with signals.run_started.connected_to(hangs, app):
        report = jobs.tick()
    assert (report.failed, report.succeeded) == (1, 1)
    assert called == [2]
    assert db.session.scalars(select(JobFailure.error_type)).all() == ["TimedOut"]


@both_kinds
def test_handler_that_goes_on_after_the_grace_of_a_stop_is_interrupted_and_its_run_given_back(
    jobs: CronJobs, db: SQLAlchemy, state: State, enqueue: Enqueue, is_async: bool
) -> None:
    object.__setattr__(state.settings, "shutdown_grace", 0.1)
    errors: list[ShuttingDown] = []

    def goes_on() -> None:
        stop_keepers()
        until = time.monotonic() + 20
        try:
            while time.monotonic() < until:
                time.sleep(0.01)
        except ShuttingDown as error:
            errors.append(error)
            raise

    enqueue(of_kind(is_async, goes_on), [{}, {}], name="it")
    jobs.tick()
    assert [str(error) for error in errors] == ["the worker was told to stop"]
    assert holders(db) == [GIVEN_BACK] * 2


@on_sqlite
def test_handler_that_nothing_ends_is_warned_of_once_where_its_process_is_not_ours(
    jobs: CronJobs, state: State, caplog: pytest.LogCaptureFixture, enqueue: Enqueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    look, stuck_reported = RunMonitor.stuck, list[bool]()

    def noted(monitor: RunMonitor) -> Outcome | None:
        assert look(monitor) is None
        stuck_reported.append("does not end" in caplog.text)
        return None

    def is_done_soon() -> None:
        until = time.monotonic() + 20
        while len(stuck_reported) < 2 and time.monotonic() < until:
            time.sleep(0.01)

    def goes_on() -> None:
        until = time.monotonic() + 20
        while stuck_reported.count(True) < 3 and time.monotonic() < until:
            with suppress(TimedOut):
                time.sleep(0.01)

    monkeypatch.setattr(monitor, "UNWIND_SECONDS", 0.0)
    monkeypatch.setattr(RunMonitor, "stuck", noted)
    object.__setattr__(state.settings, "shutdown_grace", 0.0)
    enqueue(is_done_soon)
    jobs.tick()
    assert len(stuck_reported) >= 2
    assert not any(stuck_reported)
    enqueue(goes_on, timeout=0.1)
    jobs.tick()
    assert caplog.text.count("does not end") == 1


@on_sqlite
def test_keyboard_interrupt_of_the_handler_s_own_fails_like_any_other(
    app: Flask, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    """``flask jobs tick`` handles SIGINT, so a handler's KeyboardInterrupt is no Ctrl-C."""

    enqueue(raising(KeyboardInterrupt()), retry=False, priority=1)
    enqueue(lambda: None)
    result = app.test_cli_runner().invoke(args=["jobs", "tick"])
    assert result.exit_code == 0
    assert "1 succeeded, 1 dead" in result.output
    assert ends(db) == [("dead", "KeyboardInterrupt"), ("succeeded", None)]


def test_ctrl_c_waits_while_a_connection_returns_to_its_pool(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    pressed: list[float] = []

    def press(_driver: object, _record: object) -> None:
        if not pressed and in_run():
            pressed.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    @jobs.task(name="it")
    def it() -> None:
        db.session.execute(text("SELECT 1"))
        db.session.commit()
        time.sleep(60)

    it.using(commit=True).enqueue()
    db.session.remove()
    event.listen(db.engine, "checkin", press)
    with pytest.raises(KeyboardInterrupt):
        jobs.tick()
    assert time.monotonic() - pressed[0] < 30
    assert cast(Any, db.engine.pool).checkedout() == 0


def test_interruption_while_a_connection_returns_to_its_pool_ends_a_handler_that_ends_with_that(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    def interrupt(_driver: object, _record: object) -> None:
        if in_run():
            ring: Any = signal.getsignal(signal.SIGALRM)
            ring.__self__.interrupt(current_run.claim, TimedOut("now"))

    @jobs.task(name="it", retry=False)
    def it() -> None:
        db.session.execute(text("SELECT 1"))
        db.session.commit()

    it.using(commit=True).enqueue()
    db.session.remove()
    event.listen(db.engine, "checkin", interrupt)
    jobs.tick()
    event.remove(db.engine, "checkin", interrupt)
    assert ends(db) == [("dead", "TimedOut")]


#: This query's rows never end.
COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@on_sqlite
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_lock_is_free_after_an_interrupted_query_whoever_has_its_cursor(
    jobs: CronJobs, db: SQLAlchemy, atomic: bool, enqueue: Enqueue
) -> None:
    """SQLAlchemy's own closures keep the cursor like this, and live on in the traceback."""
    cursors: list[object] = []
    locked: list[bool] = []

    @jobs.task(timeout=0.2, retry=False, atomic=atomic)
    def reads() -> None:
        write(db, "a")
        rows = db.session.execute(text(COUNTING))
        cursors.append(cast(Any, rows).cursor)
        for _ in rows:
            pass

    def writes() -> None:
        with closing(sqlite3.connect(str(db.engine.url.database), timeout=0)) as locker:
            try:
                locker.execute("BEGIN IMMEDIATE")
                locked.append(False)
            except sqlite3.OperationalError:
                locked.append(True)

    reads.enqueue()
    enqueue(writes, priority=-1)
    jobs.tick()
    assert locked == [False]
    assert ends(db) == [("dead", "TimedOut"), ("succeeded", None)]
    cursors.clear()
