"""Others may go on while the bookkeeping connection waits for the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, text

from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.errors import DatabaseTrouble


class Waits:
    """Notes the waits of a connection."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds.append(time.monotonic() - began)


def test_waits_are_told_of_and_change_no_result(database_url: str) -> None:
    engine, waits = create_engine(database_url), Waits()
    with Bookkeeping(engine, waiting=waits.waiting) as books:
        slowly = " FROM pg_sleep(0.01)" if engine.name == "postgresql" else ""
        sent = text(f"SELECT CAST(:number AS integer) AS n{slowly}")
        for number in range(3):
            assert books.rows(sent, {"number": number})[0].n == number
        before = len(waits.seconds)
        assert before >= 3
        assert books.transaction(lambda c: c.execute(sent, {"number": 5}).scalar()) == 5
        assert len(waits.seconds) > before
    engine.dispose()


def test_whole_time_of_a_slow_statement_is_a_wait(postgresql_url: str) -> None:
    engine, waits = create_engine(postgresql_url), Waits()
    with Bookkeeping(engine, waiting=waits.waiting) as books:
        books.rows(text("SELECT 1"))
        waits.seconds.clear()
        sent = text("SELECT pg_sleep(0.3), repeat('x', 100000) AS long")
        assert len(books.rows(sent)[0].long) == 100_000
        assert max(waits.seconds) >= 0.25
    engine.dispose()


def test_statement_that_fails_or_loses_its_connection_says_so(postgresql_url: str) -> None:
    engine, waits = create_engine(postgresql_url), Waits()
    with Bookkeeping(engine, patience=0, waiting=waits.waiting) as books:
        with pytest.raises(DatabaseTrouble, match="division by zero"):
            books.rows(text("SELECT 1 / 0"))
        with pytest.raises(DatabaseTrouble):
            books.rows(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        assert books.rows(text("SELECT 1 AS one"))[0].one == 1
    engine.dispose()
