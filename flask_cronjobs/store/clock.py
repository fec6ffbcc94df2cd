"""The database's clock: as SQL text, and as an SQLAlchemy expression made from it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from ..models.columns import UTCDateTime


def sql_now(dialect_name: str, seconds: str = "") -> str:
    """Return SQL for the database's time, plus *seconds* (an SQL expression) if given."""
    if dialect_name == "postgresql":
        # clock_timestamp() is volatile, so PostgreSQL would not use it as an index condition. In a
        # scalar subquery it is read once, and the index is used.
        now = "(SELECT clock_timestamp())"
        if not seconds:
            return now
        return f"({now} + make_interval(secs => CAST({seconds} AS double precision)))"
    # SQLite's own "now" has whole seconds, and sorts before SQLAlchemy's text, which has six
    # digits. So this one has six as well.
    later = f", printf('%+.3f seconds', {seconds})" if seconds else ""
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now'{later})"


class database_now(FunctionElement[Any]):
    """The database's time, plus *seconds* if given."""

    inherit_cache: bool | None = True
    type: TypeEngine[Any] = UTCDateTime()

    def __init__(self, seconds: ColumnElement[float] | float | None = None) -> None:
        super().__init__(*(() if seconds is None else (seconds,)))


@compiles(database_now, "postgresql", "sqlite")
def _compile(element: database_now, compiler: Any, **kw: Any) -> str:
    return sql_now(compiler.dialect.name, compiler.process(element.clauses, **kw))
