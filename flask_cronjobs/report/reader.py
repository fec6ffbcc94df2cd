"""One connection for all reads of a page or command, and the database's now."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias, cast

from sqlalchemy import (
    JSON,
    Connection,
    Executable,
    Row,
    String,
    Table,
    TypeDecorator,
    event,
    select,
    type_coerce,
)
from sqlalchemy.exc import SQLAlchemyError

from ..models.tables import Base
from ..state import State
from ..store.clock import database_now
from ..store.connection import refuse_shared_memory
from ..store.dialect import load_odd_values
from ..store.errors import explain

RUNS: Table = Base.metadata.tables["job_runs"]
DEFINITIONS: Table = Base.metadata.tables["job_definitions"]
FAILURES: Table = Base.metadata.tables["job_failures"]
EFFECTS: Table = Base.metadata.tables["job_effects"]
TICKS: Table = Base.metadata.tables["job_ticks"]

#: A SELECT. SQLAlchemy 2.0 and 2.1 type its columns differently; no annotation fits both.
Query: TypeAlias = Any


@dataclass
class Reader:
    """An open connection that only reads, for one page or one command."""

    state: State
    connection: Connection

    @cached_property
    def now(self) -> datetime:
        """The database's now, read once, so that a page shows one moment."""
        return cast("datetime", self.value(select(database_now())))

    @property
    def sqlite(self) -> bool:
        """Return whether the database is SQLite."""
        return self.connection.dialect.name == "sqlite"

    def value(self, statement: Executable) -> object:
        """Return the value of a statement with one row and one column."""
        return self.rows(statement)[0][0]

    def rows(self, statement: Executable) -> Sequence[Row[Any]]:
        """Return all rows of *statement*."""
        return self.connection.execute(statement).all()


class _JSONOrText(TypeDecorator[object]):
    """The value of a JSON column in SQLite; its text, if it cannot be parsed."""

    impl = String
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> object:
        """Parse *value*."""
        try:
            return json.loads(value) if isinstance(value, (str, bytes)) else value
        except (ValueError, RecursionError):
            return value.decode(errors="replace") if isinstance(value, bytes) else value


def readable(reader: Reader, column: Any) -> Any:
    """Return *column*; what cannot be parsed as JSON is returned as text.

    On PostgreSQL, `reading` sees to that.
    """
    if not (reader.sqlite and isinstance(column.type, JSON)):
        return column
    return type_coerce(column, _JSONOrText).label(column.name)


def _load_odd_values(connection: Connection, cursor: Any, *rest: object) -> None:
    # On each cursor, since the connection belongs to the app's pool.
    load_odd_values(cursor)


#: What a report reads from: an app's state, or a `Reader` that several reports share.
Source: TypeAlias = State | Reader


@contextmanager
def reading(source: Source) -> Generator[Reader, None, None]:
    """Open a `Reader` on a connection apart from ``db.session``; given a `Reader`, yield it.

    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database cannot be read.
    """
    if isinstance(source, Reader):
        yield source
        return
    engine = source.engine
    refuse_shared_memory(engine)
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                event.listen(connection, "before_cursor_execute", _load_odd_values)
            yield Reader(source, connection)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
