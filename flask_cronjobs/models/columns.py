"""Building blocks of the job tables: column types, indexes, checks and storage parameters."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    DDL,
    JSON,
    CheckConstraint,
    ColumnElement,
    DateTime,
    Dialect,
    Index,
    Table,
    TypeDecorator,
    UnaryExpression,
    __version__,
    event,
    text,
    type_coerce,
)
from sqlalchemy.sql.operators import custom_op
from sqlalchemy.types import TypeEngine

from ..types import json_text, stored_json, time_or_none

#: Returned for a stored value that Python cannot represent as a time, so that a page can still show
#: the row: SQLite's columns accept any text, and PostgreSQL has infinity and years B.C.
UNREADABLE = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _read(value: object) -> datetime | None:
    # PostgreSQL may return a text, too: see `db.dialect.load_odd_values`.
    return None if value is None else time_or_none(value) or UNREADABLE


class UTCDateTime(TypeDecorator[datetime]):
    """An instant that is aware in Python and UTC in the database.

    SQLite would drop an offset without converting the time, so an aware value is converted first
    and a naive one is refused.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = DateTime(timezone=True)
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return *value* in UTC.

        :raises ValueError: *value* is naive.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(
                f"The time {value.isoformat()} has no time zone. Give an aware one, such as "
                "datetime.now(timezone.utc)."
            )
        return value.astimezone(timezone.utc)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return the function that reads what the driver returned."""
        return _read


def _read_json(value: Any) -> Any:
    try:
        return stored_json(value)
    except ValueError:  # SQLite accepts any text.
        return value.decode(errors="replace") if isinstance(value, bytes) else value


def _write_json(value: Any) -> str | None:
    return None if value is None else json_text(value)


#: SQLite's unary ``+`` returns its operand unchanged, but without the declared type.
_AS_IT_IS: custom_op[Any] = custom_op("+")


class StoredJSON(TypeDecorator[Any]):
    """JSON that our own functions write and read; unreadable values are returned as text.

    The app's engine and its driver may have other JSON functions, for types of the app. So a SELECT
    asks for a value of a type that neither of them converts: see `db.dialect.Dialect.unparsed`.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = JSON
    cache_ok: bool | None = True
    hashable: bool = False

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return the function that converts a value to a parameter."""
        return _write_json

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return the function that reads what the driver returned."""
        return _read_json

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the expression that a SELECT of *column* uses."""
        return type_coerce(UnaryExpression(column, operator=_AS_IT_IS), self)

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Return the type of the other operand of *op*, which is not JSON if it is a key."""
        return self.impl_instance.coerce_compared_value(op, value)


def partial(name: str, *columns: Any, where: str, **options: Any) -> Index:
    """Return a partial index of the rows that match *where*, on both databases."""
    condition = text(where)
    return Index(name, *columns, postgresql_where=condition, sqlite_where=condition, **options)


def unique(name: str, *columns: Any, where: str | None = None) -> Index:
    """Return a unique index of all rows, or of those that match *where*."""
    if where is None:
        return Index(name, *columns, unique=True)
    return partial(name, *columns, where=where, unique=True)


def check(name: str, condition: str) -> CheckConstraint:
    """Return a CHECK constraint."""
    return CheckConstraint(condition, name=name)


#: The storage parameters of ``job_runs``, the only table that has any.
#: Each run leaves two dead entries in the indexes of waiting runs, and each claim reads past all
#: those that no vacuum has removed. So vacuum after 10,000 dead rows plus 1 % of the table instead
#: of 20 %, and clean the indexes each time, which a vacuum omits if few pages have changed.
VACUUM_OFTEN: dict[str, object] = {
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 10_000,
    "vacuum_index_cleanup": "on",
}

_IS_OPTION = tuple(int(part) for part in __version__.split(".")[:2]) >= (2, 1)


def storage_options() -> dict[str, object]:
    """Return the table options that set the storage parameters of ``job_runs``.

    SQLAlchemy 2.0 has no such option, so `set_when_created` sets them there.
    """
    return {"postgresql_with": VACUUM_OFTEN} if _IS_OPTION else {}


def storage_statement(parameters: dict[str, object]) -> str:
    """Return the statement that sets storage *parameters* of ``job_runs``."""
    values = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    return f"ALTER TABLE job_runs SET ({values})"


def set_when_created(table: Table) -> None:
    """Set the storage parameters of *table* after its creation, if no table option does."""
    if table.name == "job_runs" and not _IS_OPTION:
        statement = DDL(storage_statement(VACUUM_OFTEN))  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", statement.execute_if(dialect="postgresql"))
