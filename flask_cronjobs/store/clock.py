"""The database's clock: as SQL text, and as an SQLAlchemy expression made from it.

A test may move it, see `moved_by`. Then the texts have other times, so whatever keeps them must
tell them apart: by `Dialect.shift`, or by the parameter of `database_now`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Float, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from ..models.columns import UTCDateTime

#: By how many seconds a test has moved the clock, in this process.
_shift = 0.0


def clock_shift() -> float:
    """Return by how many seconds a test has moved the clock."""
    return _shift


@contextmanager
def moved_by(seconds: float) -> Generator[None]:
    """Move the clock *seconds* from the database's in this block, for this whole process.

    For tests. Only bookkeeping that is begun in the block has the moved clock.
    """
    global _shift
    before, _shift = _shift, seconds
    try:
        yield
    finally:
        _shift = before


def sql_now(dialect_name: str, seconds: str = "", shift: float = 0.0) -> str:
    """Return SQL for the database's time, plus *seconds* (an SQL expression) if given.

    :param shift: how many seconds to add.
    """
    if dialect_name == "postgresql":
        # clock_timestamp() is volatile, so PostgreSQL would not use it as an index condition. In a
        # scalar subquery it is read once, and the index is used.
        now = f"(SELECT {postgresql_clock(shift)})"
        if not seconds:
            return now
        return f"({now} + make_interval(secs => CAST({seconds} AS double precision)))"
    # SQLite's own "now" has whole seconds, and sorts before SQLAlchemy's text, which has six
    # digits. So this one has six as well.
    later = f", '{shift:+.3f} seconds'" if shift else ""
    later += f", printf('%+.3f seconds', {seconds})" if seconds else ""
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now'{later})"


def postgresql_clock(shift: float = 0.0) -> str:
    """Return SQL for PostgreSQL's time, read at each row, plus *shift* seconds."""
    moved = f" + interval '{shift:.6f} seconds'" if shift else ""
    return f"clock_timestamp(){moved}"


class database_now(FunctionElement[Any]):
    """The database's time, plus *seconds* if given."""

    inherit_cache: bool | None = True
    type: TypeEngine[Any] = UTCDateTime()

    def __init__(self, seconds: ColumnElement[float] | float | None = None) -> None:
        if _shift:
            moved = literal(_shift, Float())
            seconds = moved if seconds is None else moved + seconds
        super().__init__(*(() if seconds is None else (seconds,)))


@compiles(database_now, "postgresql", "sqlite")
def _compile(element: database_now, compiler: Any, **kw: Any) -> str:
    return sql_now(compiler.dialect.name, compiler.process(element.clauses, **kw))
