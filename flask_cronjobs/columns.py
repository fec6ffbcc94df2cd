"""The column types of the job tables."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine


class UTCDateTime(TypeDecorator[datetime]):
    """An instant: aware in Python, UTC in the database, on both dialects.

    SQLite would drop an offset without converting, so a naive value is refused and an aware one
    is converted first.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = DateTime(timezone=True)
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """*value* in UTC.

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
        """*value* as an aware time in UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            return value.replace(tzinfo=timezone.utc)
        return value.astimezone(timezone.utc)


#: 64 bits on both; SQLite counts rowids up only in a column that is INTEGER by name.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")
JSONType: TypeEngine[Any] = JSON(none_as_null=True).with_variant(
    JSONB(none_as_null=True), "postgresql"
)
