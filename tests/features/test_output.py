"""The output of handlers and their logging is stored per attempt, and still passed on."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
import pytest
from flask import Flask
from flask.logging import default_handler
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from flask_cronjobs import CronJobs, Snooze, current_run
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.worker import outcomes as module
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.models import JobOutput, JobRun
from flask_cronjobs.testing import travel
from flask_cronjobs.types import MAX_OUTPUT_BYTES
from tests.handlers import AGAIN, Enqueue, both_kinds, of_kind

pytestmark = pytest.mark.usefixtures("context")

Perform = Callable[..., JobRun]
Said = Callable[..., str]


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end, remove what a worker has installed for the whole process."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])


def outputs(db: SQLAlchemy, run: JobRun) -> dict[int, str]:
    """Return the outputs of a run, by attempt."""
    db.session.rollback()
    statement = select(JobOutput.attempt, JobOutput.output).where(JobOutput.run_id == run.id)
    return {row.attempt: row.output for row in db.session.execute(statement)}


@pytest.fixture
def said(db: SQLAlchemy, perform: Perform) -> Callable[..., str]:
    """Perform a handler whose output is kept; return the kept output."""

    def said(handler: Callable[[], Any], **options: Any) -> str:
        return outputs(db, perform(handler, keep_output=True, **options)).get(1, "")

    return said


def test_prints_and_logs_are_kept_in_order_and_once(
    app: Flask, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    app.logger.addHandler(default_handler)

    def speak() -> None:
        print("first")
        app.logger.warning("second %s", "é")  # The logging is also printed to stderr.
        sys.stderr.writelines(["third\n"])

    lines = said(speak).splitlines()
    assert lines[0] == "first"
    assert lines[1].endswith("Z WARNING tests: second é")
    assert lines[2] == "third"
    assert len(lines) == 3
    captured = capsys.readouterr()
    assert captured.out == "first\n"
    assert "third" in captured.err
    assert "second é" in captured.err


def test_loggers_that_do_not_propagate_are_left_out(said: Said) -> None:
    quiet = logging.getLogger("tests.quiet")
    quiet.propagate = False
    quiet.addHandler(logging.StreamHandler(sys.stderr))
    assert said(lambda: quiet.error("unheard")) == ""


def test_a_warning_without_any_handler_is_printed_as_ever(
    said: Said, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])

    def speak() -> None:
        logging.getLogger("any").warning("printed")
        logging.getLogger("any").info("kept alone")

    monkeypatch.setattr(logging.root, "level", logging.INFO)
    assert [line.split(": ")[1] for line in said(speak).splitlines()] == ["printed", "kept alone"]
    assert capsys.readouterr().err == "printed\n"


def test_what_a_stream_passes_on_to_the_log_is_kept_once(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Celery has replaced the streams with such ones before its first run."""
    log = pytest.importorskip("celery.utils.log")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, log.LoggingProxy(logging.getLogger("redirected"), "WARNING"))

    def speak() -> None:
        print("printed")
        logging.getLogger("any").warning("logged")
        print("printed", file=sys.stderr)

    lines = said(speak).splitlines()
    assert lines[::2] == ["printed", "printed"]
    assert lines[1].endswith("Z WARNING any: logged")
    assert len(lines) == 3


def test_nothing_is_replaced_unless_asked_for_and_once(
    db: SQLAlchemy, perform: Perform, said: Said
) -> None:
    before = sys.stdout
    assert outputs(db, perform(lambda: print("hello"))) == {}
    assert sys.stdout is before
    assert said(lambda: print("hello"), name="other") == "hello\n"
    streams = [sys.stdout, sys.stderr]
    assert said(lambda: print("hello"), name="third") == "hello\n"
    assert [sys.stdout, sys.stderr] == streams


@pytest.mark.parametrize(
    ("everywhere", "here", "kept"), [(False, None, 0), (True, None, 1), (True, False, 0)]
)
def test_setting_holds_where_the_task_does_not_say(
    db: SQLAlchemy, state: State, perform: Perform, everywhere: bool, here: bool | None, kept: int
) -> None:
    assert state.settings.keep_output is False
    object.__setattr__(state.settings, "keep_output", everywhere)
    assert len(outputs(db, perform(lambda: print("hello"), keep_output=here))) == kept
    # A silent handler leaves no row.
    assert outputs(db, perform(lambda: None, name="silent", keep_output=here)) == {}


def test_each_failed_attempt_keeps_its_own(jobs: CronJobs, state: State, enqueue: Enqueue) -> None:
    def fail() -> None:
        print("attempt", current_run.attempt)
        raise ValueError("no")

    (run_id,) = enqueue(fail, retry=AGAIN, keep_output=True)
    for _ in range(2):
        jobs.tick()
    view = find_run(state, run_id)
    assert view is not None
    assert [attempt.output for attempt in view.attempts] == ["attempt 2\n", "attempt 1\n"]


def test_an_atomic_handler_keeps_its_output(db: SQLAlchemy, said: Said) -> None:
    def work() -> None:
        db.session.execute(text("UPDATE job_ticks SET pid = 1"))  # This takes SQLite's lock.
        print("within")

    assert said(work, atomic=True) == "within\n"


def test_an_atomic_handler_appends_to_the_output_before_its_snooze(
    jobs: CronJobs, db: SQLAlchemy, enqueue: Enqueue
) -> None:
    def work() -> None:
        print("snoozes:", current_run.snoozes)
        if current_run.snoozes == 0:
            raise Snooze(60)

    (run_id,) = enqueue(work, atomic=True, keep_output=True)
    jobs.tick()
    with travel(timedelta(minutes=1)):
        jobs.tick()
    run = db.session.get_one(JobRun, run_id)
    assert (run.status, run.attempts) == ("succeeded", 1)
    assert outputs(db, run) == {1: "snoozes: 0\nsnoozes: 1\n"}


def test_async_handlers_and_their_threads_do_not_mix(jobs: CronJobs, db: SQLAlchemy) -> None:
    @jobs.task(keep_output=True)
    async def speak(word: str) -> None:
        for _ in range(3):
            print(word)
            await asyncio.sleep(0.01)
            await asyncio.to_thread(print, word)
            logging.getLogger("any").error(word)

    runs = [speak.using(commit=True).enqueue(word=word) for word in ("one", "two")]
    jobs.tick()
    for run, word, other_word in zip(runs, ("one", "two"), ("two", "one"), strict=True):
        output = outputs(db, run)[1]
        assert output.count(word) == 9
        assert other_word not in output


def test_threads_are_heard_that_run_in_the_context_of_the_handler(said: Said) -> None:
    def speak() -> None:
        context = contextvars.copy_context()
        copied = threading.Thread(target=context.run, args=(print, "heard"))
        unheard = threading.Thread(target=contextvars.Context().run, args=(print, "unheard"))
        for thread in (copied, unheard):
            thread.start()
            thread.join()

    assert said(speak) == "heard\n"


def test_only_the_end_of_a_long_output_is_kept(said: Said) -> None:
    def speak() -> None:
        for number in range(60_000):
            print(f"line {number}")

    output = said(speak)
    lines = output.splitlines()
    assert lines[0] == "… earlier output left out …"
    assert lines[-1] == "line 59999"
    assert all(line.startswith("line ") for line in lines[1:])
    assert 0.9 * MAX_OUTPUT_BYTES < len(output.encode()) <= MAX_OUTPUT_BYTES + 40


def test_credentials_and_odd_characters_are_hidden(said: Said) -> None:
    def speak() -> None:
        print("password=hunter2 postgresql://me:hunter2@db/x \0 \ud800")
        logging.getLogger().error("Authorization: Bearer hunter2hunter2")

    output = said(speak)
    assert "hunter2" not in output
    assert "password=***" in output


def test_no_end_of_a_credential_is_left_where_the_rest_is_cut_off() -> None:
    secret, address = "hunter2", "postgresql://me:hunter2@db/x"
    ends = [f"{secret[place:]}@" for place in range(len(secret))]
    for length in range(1, len(address)):
        line = f"{'-' * 400} {address}{' ' * (200 - length)}"
        tail = module.safe_tail(line, 200)
        assert not [end for end in ends if end in tail], f"of which {length} characters are kept"


def test_a_record_that_cannot_be_formatted_is_kept_as_it_is(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    assert said(lambda: logging.getLogger().error("%d runs", "x")) == "ERROR root: '%d runs'\n"


def test_a_message_that_cannot_be_read_fails_no_attempt(
    db: SQLAlchemy, perform: Perform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a row of the app that is read outside its session."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(logging.root, "handlers", [])  # Pytest's own would raise.

    class Row:
        def __repr__(self) -> str:
            raise RuntimeError("detached")

    run = perform(lambda: logging.getLogger("any").error(Row()), keep_output=True)
    assert run.status == "succeeded"
    assert outputs(db, run) == {1: "ERROR any: 'Row'\n"}


def test_click_which_tries_a_stream_with_bytes_can_print(said: Said) -> None:
    assert said(lambda: click.echo("printed")) == "printed\n"


@both_kinds
@pytest.mark.parametrize("value", [b"bytes", 7])
def test_what_a_stream_refuses_fails_the_attempt_and_is_not_kept(
    db: SQLAlchemy, perform: Perform, is_async: bool, value: Any
) -> None:
    def speak() -> None:
        print("before")
        sys.stdout.write(value)

    run = perform(of_kind(is_async, speak), keep_output=True)
    assert (run.status, run.error_type) == ("dead", "TypeError")
    assert run.last_error is not None
    assert "write() argument must be str" in run.last_error
    assert outputs(db, run) == {1: "before\n"}


@both_kinds
def test_the_keeper_cleans_no_output(
    said: Said, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Cleaning takes time, in which leases must be renewed."""
    cleaned: list[str] = []
    safe_tail = module.safe_tail

    def noted(text: str, limit: int) -> str:
        cleaned.append(threading.current_thread().name)
        return safe_tail(text, limit)

    monkeypatch.setattr(module, "safe_tail", noted)

    async def waits() -> None:
        await asyncio.to_thread(print, "hello")

    assert said(waits if is_async else lambda: print("hello")) == "hello\n"
    assert cleaned == [threading.current_thread().name]


def test_pruning_a_run_prunes_its_output(
    jobs: CronJobs, db: SQLAlchemy, state: State, perform: Perform
) -> None:
    run = perform(lambda: print("hello"), keep_output=True)
    db.session.execute(text("UPDATE job_runs SET finished_at = '2020-01-01 00:00:00.000000'"))
    db.session.commit()
    assert outputs(db, run) != {}
    assert jobs.prune() == 1
    assert db.session.scalars(select(JobOutput)).all() == []
