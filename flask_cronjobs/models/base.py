"""The declarative base of the job tables, and the types of their columns."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, Integer, MetaData, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import JSON as JSONColumn
from sqlalchemy.types import TypeEngine

NOW = text("CURRENT_TIMESTAMP")
#: 64 bits on both: SQLite numbers rows by itself only in a column of the type INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")
JSONType: TypeEngine[Any] = JSONColumn(none_as_null=True).with_variant(
    JSONB(none_as_null=True), "postgresql"
)


class Base(DeclarativeBase):
    """The declarative base of the job tables, separate from the app's own."""

    # Fix every name, so that a naming convention of the app does not change those of the copies.
    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            **dict.fromkeys(("ck", "fk", "ix", "uq"), "%(constraint_name)s"),
        }
    )
