"""Settings and prepared statements: for bookkeeping alone, not behind a pooler; frames set free."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from psycopg import Pipeline
from sqlalchemy import create_engine, text

from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.statements import free_frames
from flask_cronjobs.errors import DatabaseTrouble


def prepared_by(books: Bookkeeping) -> int:
    """How many statements are prepared in the server after one was sent time and again."""
    for _ in range(12):
        books.rows(text("SELECT count(*) FROM job_runs WHERE status = 'queued'"))
    counted: Any = books.rows(text("SELECT count(*) AS number FROM pg_prepared_statements"))
    return int(counted[0].number)


@pytest.mark.parametrize(
    ("url", "options", "prepares"),
    [
        ("postgresql_url", {}, True),
        ("postgresql_url", {"prepare_threshold": None}, False),  # As an app sets it for a pooler.
        ("pgbouncer_url", {}, False),
    ],
)
def test_bookkeeping_prepares_statements_where_it_may(
    postgresql_url: str, request: pytest.FixtureRequest, url: str, options: Any, prepares: bool
) -> None:
    # Not through the pooler, where the app's engine may prepare some.
    direct = create_engine(postgresql_url)
    create_tables(direct)
    engine = create_engine(request.getfixturevalue(url), connect_args=options)
    with Bookkeeping(engine) as books:
        assert (prepared_by(books) > 0) == prepares
    engine.dispose()
    direct.dispose()


def test_settings_of_bookkeeping_end_with_each_transaction(pgbouncer_url: str) -> None:
    """PgBouncer has one connection to the server here, which others use next."""
    engine = create_engine(pgbouncer_url)
    sent = text("SELECT current_setting('enable_seqscan') AS seqscan")
    with Bookkeeping(engine) as books, engine.connect() as others:
        for _ in range(3):
            assert books.rows(sent)[0].seqscan == "off"
            in_transaction = books.transaction(lambda connection: connection.execute(sent).scalar())
            assert in_transaction == "off"
            assert others.execute(sent).scalar() == "on"
            others.rollback()
    engine.dispose()


def test_error_of_a_statement_is_its_own_and_nothing_is_logged(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg would log what follows an error in a pipeline."""
    engine = create_engine(postgresql_url)
    with Bookkeeping(engine, patience=0) as books:
        for _ in range(3):
            with pytest.raises(DatabaseTrouble, match="division by zero"):
                books.rows(text("SELECT 1 / 0"))
        books.rows(text("SELECT 1"))
        with pytest.raises(DatabaseTrouble):
            books.rows(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        assert books.rows(text("SELECT 1 AS one"))[0].one == 1
    engine.dispose()
    assert caplog.records == []


def test_migration_that_changes_the_type_of_a_column_costs_no_outcome(postgresql_url: str) -> None:
    """A prepared statement cannot be used any more when the types of its results change."""
    engine = create_engine(postgresql_url)
    create_tables(engine)
    with Bookkeeping(engine) as books:
        look = text("SELECT payload FROM job_runs")
        assert [list(books.rows(look)) for _ in range(4)] == [[]] * 4
        books.rows(text("ALTER TABLE job_runs ALTER payload DROP DEFAULT, ALTER payload TYPE text"))
        assert list(books.rows(look)) == []
    engine.dispose()


def test_pipeline_whose_answers_psycopg_has_lost_is_a_broken_connection(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen after a serialization failure. The next try has another connection."""
    leave = Pipeline.__exit__
    broken: list[bool] = []

    def lose_count(self: Pipeline, *exception: Any) -> None:
        leave(self, *exception)
        if not broken:
            broken.append(True)
            raise IndexError("pop from an empty deque")

    engine = create_engine(postgresql_url)
    sent = text("SELECT pg_backend_pid() AS pid")
    with Bookkeeping(engine) as books:
        first = books.rows(sent)[0].pid
        monkeypatch.setattr(Pipeline, "__exit__", lose_count)
        assert books.rows(sent)[0].pid != first
    assert broken
    engine.dispose()


class Burden:
    """Something that a frame holds."""


def broken(look: Callable[[], object]) -> tuple[BaseException, weakref.ref[Burden]]:
    """An exception, and what a frame held that it passed through.

    :param look: called in that frame.
    """
    seen = []

    def work() -> None:
        burden = Burden()
        seen.append(weakref.ref(burden))
        look()
        raise KeyboardInterrupt

    try:
        work()
    except KeyboardInterrupt as error:
        return error, seen[0]
    raise AssertionError


@pytest.mark.parametrize(
    "look",
    [lambda: None, lambda: sys._getframe(1).f_locals],
    ids=["alone", "its variables were read"],
)
def test_what_an_ended_frame_held_is_free(look: Callable[[], object]) -> None:
    error, burden = broken(look)
    assert burden() is not None
    free_frames(error)
    assert burden() is None


def test_what_the_frame_of_a_cause_held_is_free() -> None:
    cause, burden = broken(lambda: None)
    error = ValueError()
    error.__cause__ = cause
    free_frames(error)
    assert burden() is None


def test_frame_that_is_at_work_keeps_no_other_from_being_cleared() -> None:
    seen = []

    def work() -> None:
        burden = Burden()
        seen.append(weakref.ref(burden))
        raise KeyboardInterrupt

    try:
        work()
    except KeyboardInterrupt as error:
        free_frames(error)  # This frame is the first that the error passed through.
        assert seen[0]() is None
