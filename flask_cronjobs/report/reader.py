"""One short-lived connection for the reads of a page, and the database's now."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
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

#: A SELECT. SQLAlchemy 2.0 and 2.1 type its columns in different ways, which no one text fits.
Query: TypeAlias = Any


@dataclass
class Reader:
    """An open connection that only reads, for one page or one command.

    :ivar statements: how many statements it has sent.
    """

    state: State
    connection: Connection
    statements: int = 0
    _now: list[datetime] = field(default_factory=list["datetime"])

    @property
    def now(self) -> datetime:
        """The database's now, read once: all that a page shows is of one moment."""
        if not self._now:
            self._now.append(cast("datetime", self.value(select(database_now()))))
        return self._now[0]

    @property
    def sqlite(self) -> bool:
        """Whether the database is SQLite."""
        return self.connection.dialect.name == "sqlite"

    def value(self, statement: Executable) -> object:
        """The one value of a statement with one row and one column."""
        return self.rows(statement)[0][0]

    def rows(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        """All rows of one statement."""
        self.statements += 1
        return self.connection.execute(statement, parameters or {}).all()


def readable(reader: Reader, column: Any) -> Any:
    """*column*; on SQLite, which takes any text for JSON, one that is none as a JSON string."""
    if not (reader.sqlite and isinstance(column.type, JSON)):
        return column
    shown = case((func.json_valid(column) == 1, column), else_=func.json_quote(column))
    return type_coerce(shown, JSONType).label(column.name)


#: Every report takes an app's state, or a `Reader` that several reports share.
Source: TypeAlias = State | Reader


@contextmanager
def reading(source: Source) -> Generator[Reader, None, None]:
    """A `Reader` over a connection of the app's pool, apart from ``db.session``.

    Given a `Reader`, that one: so one connection serves all reports of a page.

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
