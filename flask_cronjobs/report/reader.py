"""One connection for all reads of a page or command, and the database's now."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias, cast

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Row,
    String,
    Table,
    TableValuedAlias,
    TypeDecorator,
    any_,
    event,
    func,
    literal,
    select,
    type_coerce,
)
from sqlalchemy.exc import SQLAlchemyError

from ..models.tables import Base
from ..state import State
from ..store.clock import database_now
from ..store.dialect import load_odd_values
from ..store.errors import explain
from ..store.shared import borrowed, is_shared

BATCHES: Table = Base.metadata.tables["job_batches"]
RUNS: Table = Base.metadata.tables["job_runs"]
DEFINITIONS: Table = Base.metadata.tables["job_definitions"]
FAILURES: Table = Base.metadata.tables["job_failures"]
OUTPUTS: Table = Base.metadata.tables["job_outputs"]
EFFECTS: Table = Base.metadata.tables["job_effects"]
PAUSES: Table = Base.metadata.tables["job_pauses"]
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


def is_one_of(
    reader: Reader, column: ColumnElement[int], ids: Iterable[int]
) -> ColumnElement[bool]:
    """Return the condition that *column* is one of many *ids*, which are sent as one parameter."""
    if not reader.sqlite:
        return column == any_(literal(list(ids), ARRAY(BigInteger)))
    return column.in_(select(_each(list(ids)).c.value))


def values_of(reader: Reader, values: Sequence[str]) -> TableValuedAlias:
    """Return a table with one column ``value``: *values*, which are sent as one parameter."""
    if not reader.sqlite:
        values_array = literal(list(values), ARRAY(String))
        return func.unnest(values_array).table_valued("value").render_derived()
    return _each(values)


def _each(values: Sequence[object]) -> TableValuedAlias:
    return func.json_each(json.dumps(values)).table_valued("value")


def _load_odd_values(connection: Connection, cursor: Any, *rest: object) -> None:
    # On each cursor, since the connection belongs to the app's pool.
    load_odd_values(cursor)


#: What a report reads from: an app's state, or a `Reader` that several reports share.
Source: TypeAlias = State | Reader


@contextmanager
def reading(source: Source) -> Generator[Reader, None, None]:
    """Open a `Reader` on a connection apart from ``db.session``; given a `Reader`, yield it.

    In a test where the session has the only connection there is, use that.

    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database cannot be read.
    """
    if isinstance(source, Reader):
        yield source
        return
    engine, database = source.engine, source.database
    shared = is_shared(database)
    try:
        with borrowed(database) if shared else engine.connect() as connection:
            if not shared and connection.dialect.name == "postgresql":
                event.listen(connection, "before_cursor_execute", _load_odd_values)
            yield Reader(source, connection)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
