"""Job tables in new databases, created in one step, since creating them is slower than most tests.

On PostgreSQL, the tables that a test leaves are emptied and put aside for the next test.
"""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import URL, create_engine, create_mock_engine, make_url

#: The schema of the tables that are put aside.
ASIDE = "aside"

#: The state of the tables just after they were created.
_as_made: _Looks | None = None


def copy_tables(url: str) -> bool:
    """Put the job tables into the database of *url*, unless it has some or is in memory.

    They are as ``db.create_all()`` creates them.

    :returns: whether the database has them now.
    """
    parts = make_url(url)
    if parts.get_backend_name() == "postgresql":
        _create_at_once(parts)
        return True
    if parts.get_backend_name() != "sqlite" or parts.database in (None, "", ":memory:"):
        return False
    path = Path(str(parts.database))
    if not path.parent.is_dir() or parts.query:
        return False
    if path.exists():
        with closing(sqlite3.connect(path)) as connection:
            tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'job_runs'")
            return tables.fetchone() is not None
    shutil.copyfile(_file_with_tables(), path)
    return True


def make_tables(app: Flask, db: SQLAlchemy) -> None:
    """Create the tables as ``db.create_all()`` does for the default database, in less time."""
    copied = copy_tables(app.config["SQLALCHEMY_DATABASE_URI"])
    # Count with `dict` itself: reading the metadata would copy the job tables to it.
    if not copied or dict.__len__(db.metadata.tables) > 0:
        with app.app_context():
            db.create_all()


def _create_at_once(url: URL) -> None:
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        row = connection.execute(
            "SELECT to_regclass('job_runs'), to_regclass(%s), count(*) FROM pg_class"
            " WHERE relnamespace = to_regnamespace('public')",
            [f"{ASIDE}.job_runs"],
        ).fetchone()
        assert row is not None
        if row[0] is not None:
            return
        if row[1] is not None and row[2] == 0:
            connection.execute(f"DROP SCHEMA public; ALTER SCHEMA {ASIDE} RENAME TO public")
        else:
            connection.execute(f"DROP SCHEMA IF EXISTS {ASIDE} CASCADE")
            connection.execute(_script())
            if row[2] == 0:  # Otherwise a table of the test would be put aside with them.
                _remember(connection)


def put_aside(connection: psycopg.Connection) -> None:
    """Empty the schema ``public``, and put its job tables aside if their definitions are unchanged.

    `copy_tables` brings them back. A test sees nothing of the earlier rows, numbers and statistics,
    except some pages of deleted rows.
    """
    try:
        is_aside = _put_aside(connection)
    except psycopg.errors.InsufficientPrivilege:  # Only a superuser may delete statistics.
        is_aside = False
    if not is_aside:
        connection.execute("DROP SCHEMA public CASCADE")
    connection.execute("CREATE SCHEMA public")


def _put_aside(connection: psycopg.Connection) -> bool:
    if _as_made is None:
        return False
    with connection.transaction():
        if connection.execute(f"SELECT to_regclass('{ASIDE}.job_runs')").fetchone() != (None,):
            return False  # The last test did not use the tables, so they are still there.
        current = _looks(connection)
        if current.definitions != _as_made.definitions:
            for (table,) in connection.execute(_OTHER_TABLES, [list(_names())]).fetchall():
                connection.execute(f"DROP TABLE {table} CASCADE")
            current = _looks(connection)
            if current.definitions != _as_made.definitions:
                return False
        if current.statistics == _as_made.statistics:
            connection.execute(";".join(f"DELETE FROM {name}" for name in _names()))
        else:
            connection.execute(f"TRUNCATE {','.join(_names())}")
            connection.execute("DELETE FROM pg_statistic WHERE starelid >= 16384")
            _remember(connection)
        connection.execute("SELECT pg_stat_reset()")
        connection.execute(_RESTART)
        connection.execute(f"ALTER SCHEMA public RENAME TO {ASIDE}")
    return True


class _Looks(NamedTuple):
    definitions: str
    statistics: str


def _remember(connection: psycopg.Connection) -> None:
    global _as_made
    _as_made = _looks(connection)


def _looks(connection: psycopg.Connection) -> _Looks:
    row = connection.execute(_LOOKS).fetchone()
    assert row is not None
    return _Looks(*row)


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    from flask_cronjobs.models import JobRun

    return tuple(table.name for table in reversed(JobRun.metadata.sorted_tables))


_OTHER_TABLES = """
    SELECT quote_ident(relname) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> ALL (%s)
"""
_RESTART = """
    SELECT setval(oid::regclass, 1, false) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
"""
#: These values change with each change of a definition, and when tables grow or are analyzed.
_LOOKS = """
    WITH relations AS (
        SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace
    )
    SELECT
        (SELECT concat_ws(' ', count(*), max(xmin::text::bigint)) FROM pg_class
            WHERE relnamespace = 'public'::regnamespace)
        || (SELECT concat_ws(' ', '', count(*), max(xmin::text::bigint)) FROM pg_attribute
            WHERE attrelid >= 16384)
        || (SELECT concat_ws(' ', '', count(*), max(xmin::text::bigint)) FROM pg_constraint
            WHERE conrelid >= 16384)
        || (SELECT concat_ws(' ', '', count(*)) FROM pg_trigger)
        || (SELECT concat_ws(' ', '', count(*)) FROM pg_depend  -- Sequences of columns.
            WHERE refobjid >= 16384 AND refobjsubid > 0 AND deptype = 'a')
        || (SELECT concat_ws(' ', '', count(*)) FROM pg_depend
            WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'public'::regnamespace),
        (SELECT string_agg(concat_ws(' ', relname, relpages, reltuples,
                pg_relation_size(oid) > 16 * 8192), ',' ORDER BY relname)
            FROM relations WHERE relkind IN ('r', 'i'))
"""


@lru_cache(maxsize=1)
def _script() -> bytes:
    """Return the statements of ``create_all`` as one text, which psycopg sends at once."""
    from flask_cronjobs.models import JobRun

    statements: list[str] = []

    def note(statement: Any, *arguments: object, **options: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = create_mock_engine("postgresql+psycopg://", note)
    JobRun.metadata.create_all(engine, checkfirst=False)
    return ";".join(statements).encode()


@lru_cache(maxsize=1)
def _file_with_tables() -> Path:
    from flask_cronjobs.models import JobRun

    folder = tempfile.mkdtemp(prefix="cronjobs-tables-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "tables.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    JobRun.metadata.create_all(engine)
    engine.dispose()
    return path
