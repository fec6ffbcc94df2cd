"""Each check of the fuzz finds the problem that it is for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from tests.fuzz import driver
from tests.fuzz.inspection import Frames, inspector


class Burden:
    """An object that a frame keeps."""


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


def test_effects_in_doubt_are_not_wrong(connection: Connection, tmp_path: Path) -> None:
    _mark(connection, "1:1", "in_doubt")
    _mark(connection, "1:2", "in_doubt")
    # The effect 1:1 is called with in_doubt="redo", so it was repeated; 1:2 is in doubt, and not
    # done.
    assert wrong(connection, tmp_path, "1:0", "1:1", "1:1") == []


@pytest.mark.parametrize(
    ("effects", "problem"),
    [
        (["1:0", "1:0"], "the effect 1:0 was done 2 times"),
        (["1:0", "1:4"], "the effect 1:4 was done and has no mark"),
        ([], "the effect 1:0 is marked as done and was not"),
    ],
)
def test_wrong_effects_are_found(
    connection: Connection, tmp_path: Path, effects: list[str], problem: str
) -> None:
    assert wrong(connection, tmp_path, *effects) == [problem]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DELETE FROM fuzz_entries WHERE id = 1", "run 1 committed 1 rows of 2 in its step 0"),
        ("DELETE FROM fuzz_entries", "the atomic run 1 is succeeded, and left rows of 0 attempts"),
        (
            "UPDATE job_runs SET status = 'dead'",
            "the atomic run 1 is dead, and left rows of 1 attempts",
        ),
        ("INSERT INTO job_runs (job_type) VALUES ('session')", "run 2 is queued still"),
        (
            "INSERT INTO job_failures (run_id, attempt, worker, error_type, error) VALUES"
            " (1, 1, 'w', 'TimedOut', ''), (1, 2, 'w', 'sqlite3.ProgrammingError', '')",
            "attempt 2 of run 1 is recorded as sqlite3.ProgrammingError",
        ),
    ],
)
def test_wrong_rows_are_found(
    connection: Connection, tmp_path: Path, sql: str, problem: str
) -> None:
    connection.execute(text(sql))
    assert wrong(connection, tmp_path, "1:0") == [problem]


def burden(in_a_cycle: bool) -> list[object]:
    cycle: list[object] = [Burden()]
    if in_a_cycle:
        cycle.append(cycle)
    return cycle


@pytest.mark.parametrize(
    ("alive", "in_a_cycle", "kept"),
    [(True, False, "for good"), (False, True, "until the garbage"), (False, False, None)],
)
def test_a_frame_that_is_kept_is_found(alive: bool, in_a_cycle: bool, kept: str | None) -> None:
    frames = Frames()
    reference = burden(in_a_cycle)
    frames.keep(reference[0], "run 1")
    if not alive:
        del reference
    frames.check("run 2")
    frames.check("run 3")
    expected = [] if kept is None else [f"the frame of run 1 is kept {kept}"]
    assert [text[: len(expected[0])] for text in frames.kept] == expected


def writing(url: str) -> sqlite3.Connection | psycopg.Connection:
    """Return a connection that has written and not committed."""
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
