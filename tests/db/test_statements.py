"""Settings and prepared statements of bookkeeping, and frames that are released."""

from __future__ import annotations

import weakref
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg import Pipeline
from sqlalchemy import Engine, create_engine, make_url, text

from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.statements import deadlines, free_frames
from flask_cronjobs.errors import DatabaseTrouble
from tests.marks import on_postgresql
from tests.tables import copy_tables


def prepared_by(books: Bookkeeping) -> int:
    """Return how many statements the server has prepared after one was sent several times."""
    for _ in range(12):
        books.rows(text("SELECT count(*) FROM job_runs WHERE status = 'queued'"))
    counted: Any = books.rows(text("SELECT count(*) AS number FROM pg_prepared_statements"))
    return int(counted[0].number)


@pytest.mark.parametrize(
    ("database_url", "engine_options", "prepares"),
    [
        ("postgresql", {}, True),
        # Apps set this for a pooler.
        ("postgresql", {"connect_args": {"prepare_threshold": None}}, False),
        ("pgbouncer", {}, False),
    ],
    indirect=["database_url", "engine_options"],
)
def test_bookkeeping_prepares_statements_where_it_may(
    engine: Engine, postgresql_url: str, prepares: bool
) -> None:
    # Creating the tables by this engine would already prepare statements.
    assert copy_tables(postgresql_url)
    with Bookkeeping(engine) as books:
        assert (prepared_by(books) > 0) == prepares


def test_settings_of_bookkeeping_end_with_each_transaction(
    postgresql_url: str, request: pytest.FixtureRequest
) -> None:
    """PgBouncer has one connection to the server here, which other clients use next."""
    name = make_url(postgresql_url).database
    with psycopg.connect(postgresql_url.replace("+psycopg", "")) as direct:
        direct.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    engine = create_engine(request.getfixturevalue("pgbouncer_url"))
    query = text(
        "SELECT current_setting('enable_seqscan'), current_setting('transaction_isolation')"
    )
    ours, theirs = ("off", "read committed"), ("on", "serializable")
    with Bookkeeping(engine) as books, engine.connect() as session:
        for _ in range(3):
            assert tuple(books.rows(query)[0]) == ours
            in_transaction = books.transaction(lambda connection: connection.execute(query).one())
            assert tuple(in_transaction) == ours
            assert tuple(session.execute(query).one()) == theirs
            session.rollback()
    engine.dispose()


@on_postgresql
def test_statements_have_time_limits_again_after_the_system_has_refused_a_thread(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may reach its limit of processes and threads for a moment."""
    deadlines.end_thread()

    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Bookkeeping(engine, patience=0, limit=0.3) as books:
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                books.rows(text("SELECT 1"))
        with pytest.raises(DatabaseTrouble, match="canceling statement"):
            books.rows(text("SELECT pg_sleep(10)"))
    deadlines.end_thread()


@on_postgresql
def test_error_of_a_statement_is_its_own_and_nothing_is_logged(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise psycopg would log what follows an error in a pipeline."""
    with Bookkeeping(engine, patience=0) as books:
        for _ in range(3):
            with pytest.raises(DatabaseTrouble, match="division by zero"):
                books.rows(text("SELECT 1 / 0"))
        books.rows(text("SELECT 1"))
        with pytest.raises(DatabaseTrouble):
            books.rows(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        assert books.rows(text("SELECT 1 AS one"))[0].one == 1
    assert caplog.records == []


@on_postgresql
def test_migration_that_changes_the_type_of_a_column_costs_no_outcome(engine: Engine) -> None:
    """A prepared statement becomes unusable when the types of its results change."""
    create_tables(engine)
    with Bookkeeping(engine) as books:
        look = text("SELECT payload FROM job_runs")
        assert [list(books.rows(look)) for _ in range(4)] == [[]] * 4
        books.rows(text("ALTER TABLE job_runs ALTER payload DROP DEFAULT, ALTER payload TYPE text"))
        assert list(books.rows(look)) == []


@on_postgresql
def test_pipeline_whose_answers_psycopg_has_lost_is_a_broken_connection(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This was seen after a serialization failure. The next try has another connection."""
    leave = Pipeline.__exit__
    broken: list[bool] = []

    def lose_count(self: Pipeline, *exception: Any) -> None:
        leave(self, *exception)
        if not broken:
            broken.append(True)
            raise IndexError("pop from an empty deque")

    query = text("SELECT pg_backend_pid() AS pid")
    with Bookkeeping(engine) as books:
        first = books.rows(query)[0].pid
        monkeypatch.setattr(Pipeline, "__exit__", lose_count)
        assert books.rows(query)[0].pid != first
    assert broken


class Burden:
    """An object that a frame holds."""


def broken() -> tuple[BaseException, weakref.ref[Burden]]:
    """Return an exception, and an object in a frame through which it passed."""
    refs = []

    def work() -> None:
        burden = Burden()
        refs.append(weakref.ref(burden))
        raise KeyboardInterrupt

    try:
        work()
    except KeyboardInterrupt as error:
        return error, refs[0]
    raise AssertionError


def test_what_an_ended_frame_held_is_free() -> None:
    error, burden = broken()
    assert burden() is not None
    free_frames(error)
    assert burden() is None
