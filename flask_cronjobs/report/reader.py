"""One connection for all reads of a page or command, and the database's now."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias, cast

from sqlalchemy import JSON, Connection, Executable, Row, Table, case, func, select, type_coerce
from sqlalchemy.exc import SQLAlchemyError

from ..models.columns import JSONType
from ..models.tables import Base
from ..state import State
from ..store.clock import database_now
from ..store.connection import refuse_shared_memory
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


def readable(reader: Reader, column: Any) -> Any:
    """Return *column*; on SQLite, a text that is not JSON becomes a JSON string."""
    if not (reader.sqlite and isinstance(column.type, JSON)):
        return column
    # A number may be a blob; see `Dialect.json`.
    is_json = (func.typeof(column) == "blob") | (func.json_valid(column) == 1)
    shown = case((is_json, column), else_=func.json_quote(column))
    return type_coerce(shown, JSONType).label(column.name)


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
            yield Reader(source, connection)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
