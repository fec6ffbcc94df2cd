"""Each check of the fuzz finds what it is for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from tests.fuzz import driver
from tests.fuzz.driver import Report
from tests.fuzz.inspection import Frames, inspector, threads


class Burden:
    """Something to keep."""


@pytest.fixture
def url(database_url: str, tmp_path: Path) -> str:
    """The URL of a database with the fuzz's tables."""
    driver.prepare(database_url, tmp_path)
    return database_url


@pytest.fixture
def connection(sqlite_url: str, tmp_path: Path) -> Iterator[Connection]:
    """A connection to a database with the fuzz's tables and one run that has succeeded."""
    driver.prepare(sqlite_url, tmp_path)
    engine = create_engine(sqlite_url)
    with engine.connect() as connection:
        insert = "INSERT INTO job_runs (job_type, status, finished_at) VALUES (:type, :status, :at)"
        at = "2026-01-05 07:00:00.000000"
        connection.execute(text(insert), {"type": "atomic", "status": "succeeded", "at": at})
        entry = "INSERT INTO fuzz_entries (run_id, token, step) VALUES (1, 'a', 0), (1, 'a', 0)"
        connection.execute(text(entry))
        _mark(connection, "1:0", "done")
        yield connection
    engine.dispose()


def _mark(connection: Connection, key: str, state: str) -> None:
    values = {"key": key, "state": state, "at": "2026-01-05" if state == "done" else None}
    insert = "INSERT INTO job_effects (key, state, done_at) VALUES (:key, :state, :at)"
    connection.execute(text(insert), values)


def wrong(connection: Connection, tmp_path: Path, *effects: str) -> list[str]:
    (tmp_path / "effects").write_text("".join(f"{key}\n" for key in effects))
    return list(driver.wrong(connection, tmp_path))


def test_what_may_be_is_not_wrong(connection: Connection, tmp_path: Path) -> None:
    _mark(connection, "1:1", "in_doubt")
    _mark(connection, "1:2", "in_doubt")
    # Called with in_doubt="redo", so done again; in doubt, and not begun.
    assert wrong(connection, tmp_path, "1:0", "1:1", "1:1") == []


def test_effect_done_twice_is_wrong(connection: Connection, tmp_path: Path) -> None:
    assert wrong(connection, tmp_path, "1:0", "1:0") == ["the effect 1:0 was done 2 times"]


def test_effect_without_a_mark_is_wrong(connection: Connection, tmp_path: Path) -> None:
    found = wrong(connection, tmp_path, "1:0", "1:4")
    assert found == ["the effect 1:4 was done and has no mark"]


def test_mark_without_an_effect_is_wrong(connection: Connection, tmp_path: Path) -> None:
    assert wrong(connection, tmp_path) == ["the effect 1:0 is marked as done and was not"]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("DELETE FROM fuzz_entries WHERE id = 1", "run 1 committed 1 rows of 2 in its step 0"),
        ("DELETE FROM fuzz_entries", "the atomic run 1 is succeeded, and left rows of 0 attempts"),
        (
            "UPDATE job_runs SET status = 'dead'",
            "the atomic run 1 is dead, and left rows of 1 attempts",
        ),
        ("INSERT INTO job_runs (job_type) VALUES ('session')", "run 2 is queued still"),
    ],
)
def test_wrong_rows_are_found(connection: Connection, tmp_path: Path, sql: str, found: str) -> None:
    connection.execute(text(sql))
    assert wrong(connection, tmp_path, "1:0") == [found]


def test_error_of_a_driver_is_wrong(connection: Connection, tmp_path: Path) -> None:
    insert = (
        "INSERT INTO job_failures (run_id, attempt, worker, error_type, error)"
        " VALUES (1, :attempt, 'w', :error, '')"
    )
    for attempt, error in enumerate(["TimedOut", "sqlite3.ProgrammingError"], 1):
        connection.execute(text(insert), {"attempt": attempt, "error": error})
    found = ["attempt 2 of run 1 is recorded as sqlite3.ProgrammingError"]
    assert wrong(connection, tmp_path, "1:0") == found


def test_kept_frame_is_found() -> None:
    frames = Frames()
    burden = Burden()
    frames.keep(burden, "run 1")
    frames.check("run 2")
    frames.check("run 3")
    assert frames.kept == ["the frame of run 1 is kept for good: seen in run 2"]


def test_frame_in_a_cycle_is_found() -> None:
    frames = Frames()
    burden: list[object] = [Burden()]
    burden.append(burden)
    frames.keep(burden[0], "run 1")
    del burden
    frames.check("run 2")
    assert len(frames.kept) == 1


def test_frame_that_is_gone_is_well() -> None:
    frames = Frames()
    frames.keep(Burden(), "run 1")
    frames.check("run 2")
    assert frames.kept == []


def writing(url: str) -> sqlite3.Connection | psycopg.Connection:
    """A connection that has written and not committed."""
    parsed = make_url(url)
    write = "UPDATE fuzz_shared SET number = number + 1"
    connection: sqlite3.Connection | psycopg.Connection
    if url.startswith("sqlite"):
        connection = sqlite3.connect(parsed.database or "")
    else:
        plain = parsed.set(drivername="postgresql").render_as_string(False)
        connection = psycopg.connect(plain)
    connection.execute(write)
    return connection


def test_lock_and_connection_are_found(url: str) -> None:
    looking = inspector(url)
    assert [*looking.locks(), *looking.connections()] == []
    with closing(writing(url)):
        (lock,) = looking.locks()
        assert lock.startswith("a lock is left")
        assert len(list(looking.connections())) == 1
    assert [*looking.locks(), *looking.connections()] == []


def test_no_thread_of_the_package_is_at_work_here() -> None:
    assert list(threads()) == []


def test_report_adds_what_workers_say() -> None:
    report = Report()
    for said in (
        {"interrupted": "once", "how": "cancel", "error": "Cancelled"},
        {"wrong": "a lock is left"},
        {"unheard": "run 1"},
        {"done": 1},
    ):
        driver.hear(report, said)  # type: ignore[arg-type]
    assert report.interrupted == {("once", "cancel", "Cancelled"): 1}
    assert report.wrong == ["a lock is left (after 1 interruptions)"]
    assert (report.unheard, report.done) == (["run 1"], True)
