"""Job tables in new databases, made in one step: to create them takes longer than most tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, create_engine, create_mock_engine, make_url


def copy_tables(url: str) -> None:
    """Put the job tables into the database of *url*, if it has none and is not in memory.

    They are as ``db.create_all()`` leaves them.
    """
    parts = make_url(url)
    if parts.get_backend_name() == "postgresql":
        _create_at_once(parts)
        return
    if parts.get_backend_name() != "sqlite" or parts.database in (None, "", ":memory:"):
        return
    path = Path(str(parts.database))
    if not path.exists() and path.parent.is_dir() and not parts.query:
        shutil.copyfile(_file_with_tables(), path)


def _create_at_once(url: URL) -> None:
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        found = connection.execute("SELECT to_regclass('job_runs')").fetchone()
        if found == (None,):
            connection.execute(_script())


@lru_cache(maxsize=1)
def _script() -> bytes:
    """Return the statements of ``create_all``, which psycopg sends in one go."""
    from flask_cronjobs.models.tables import Base

    statements: list[str] = []

    def note(statement: Any, *arguments: object, **options: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = create_mock_engine("postgresql+psycopg://", note)
    Base.metadata.create_all(engine, checkfirst=False)
    return ";".join(statements).encode()


@lru_cache(maxsize=1)
def _file_with_tables() -> Path:
    from flask_cronjobs.models.tables import Base

    folder = tempfile.mkdtemp(prefix="cronjobs-tables-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "tables.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path
