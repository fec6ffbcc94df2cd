"""The column types of the job tables."""

from __future__ import annotations

from datetime import MINYEAR, datetime, timezone
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, TypeDecorator
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

#: Read in place of what Python has no time for: SQLite accepts any text in a time's column, and
#: PostgreSQL has infinity and years B.C. Also in place of the first year, since its first moment is
#: B.C. in other time zones.
UNREADABLE = datetime(1970, 1, 1, tzinfo=timezone.utc)


class _SQLiteTime(sqlite.DATETIME):
    """A time in SQLite; `UNREADABLE` for a text that is not one, so that a page can still show."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a function that reads a time from a text."""
        read: Any = super().result_processor(dialect, coltype)

        def process(value: object) -> object:
            try:
                found: object = read(value)
            except (TypeError, ValueError):
                return UNREADABLE
            return found

        return process


class UTCDateTime(TypeDecorator[datetime]):
    """An instant: aware in Python and UTC in the database, on both dialects.

    SQLite would drop an offset without converting the time. So an aware value is converted first,
    and a naive one is refused.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = DateTime(timezone=True)
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type that reads and writes on *dialect*."""
        if dialect.name == "sqlite":
            made: Any = _SQLiteTime  # Its base class's __init__ has no annotations.
            return dialect.type_descriptor(made())
        return super().load_dialect_impl(dialect)

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

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return *value* as an aware time in UTC."""
        if value is None:
            return None
        # Not always a datetime: see load_odd_values.
        if getattr(value, "year", MINYEAR) <= MINYEAR:
            return UNREADABLE
        if value.tzinfo is None:
            return value.replace(tzinfo=timezone.utc)
        try:
            return value.astimezone(timezone.utc)
        except OverflowError:
            return UNREADABLE


#: 64 bits on both: SQLite numbers rows by itself only in a column of the type INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")
JSONType: TypeEngine[Any] = JSON(none_as_null=True).with_variant(
    JSONB(none_as_null=True), "postgresql"
)
