"""The database's clock as an SQL expression."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from ..models.columns import UTCDateTime

# clock_timestamp() is volatile, so PostgreSQL would not use it as an index condition; wrapped in a
# scalar subquery it is read once, and the index is used. SQLite's own text for "now" has whole
# seconds and sorts before SQLAlchemy's, which has six digits: so ours has six too.
POSTGRESQL_NOW = "(SELECT clock_timestamp())"
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


class database_now(FunctionElement[Any]):
    """The database's now, plus *seconds* if given."""

    inherit_cache: bool | None = True
    type: TypeEngine[Any] = UTCDateTime()

    def __init__(self, seconds: ColumnElement[float] | float | None = None) -> None:
        super().__init__(*(() if seconds is None else (seconds,)))


@compiles(database_now, "postgresql")
def _postgresql(element: database_now, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    if not seconds:
        return POSTGRESQL_NOW
    return f"({POSTGRESQL_NOW} + make_interval(secs => CAST({seconds} AS double precision)))"


@compiles(database_now, "sqlite")
def _sqlite(element: database_now, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    if not seconds:
        return SQLITE_NOW
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', {seconds}))"
