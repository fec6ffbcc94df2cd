"""What the job tables are made of: the type of a time, indexes, checks, storage."""

from __future__ import annotations

from datetime import MINYEAR, datetime, timezone
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    DDL,
    CheckConstraint,
    DateTime,
    Dialect,
    Index,
    Table,
    TypeDecorator,
    __version__,
    event,
    text,
)
from sqlalchemy.types import TypeEngine

#: Read in place of what Python has no time for: SQLite accepts any text in a time's column, and
#: PostgreSQL has infinity and years B.C. Also in place of the first year, since its first moment is
#: B.C. in other time zones.
UNREADABLE = datetime(1970, 1, 1, tzinfo=timezone.utc)


@lru_cache(maxsize=1)
def _sqlite_time() -> Any:
    """Return the type of a time in SQLite."""
    # Here, since an app on PostgreSQL has no use for the other dialect, which takes long to import.
    from sqlalchemy.dialects import sqlite

    class SQLiteTime(sqlite.DATETIME):
        """Reads a text that is no time as `UNREADABLE`, so that a page can still show."""

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

    return SQLiteTime


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
            return dialect.type_descriptor(_sqlite_time()())
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
        # Not always a datetime: see `db.dialect.load_odd_values`.
        if getattr(value, "year", MINYEAR) <= MINYEAR:
            return UNREADABLE
        if value.tzinfo is None:
            return value.replace(tzinfo=timezone.utc)
        try:
            return value.astimezone(timezone.utc)
        except OverflowError:
            return UNREADABLE


def partial(name: str, *columns: Any, where: str, **options: Any) -> Index:
    """Return an index of the rows that match *where*, on both databases."""
    condition = text(where)
    return Index(name, *columns, postgresql_where=condition, sqlite_where=condition, **options)


def unique(name: str, *columns: Any, where: str | None = None) -> Index:
    """Return a unique index of all rows, or of those that match *where*."""
    if where is None:
        return Index(name, *columns, unique=True)
    return partial(name, *columns, where=where, unique=True)


def check(name: str, condition: str) -> CheckConstraint:
    """Return a CHECK of that name."""
    return CheckConstraint(condition, name=name)


#: The storage parameters of ``job_runs``, the one table that has some.
#: Each run leaves two dead entries in the indexes of what waits, and each claim passes over all
#: those that no vacuum has removed. So vacuum after 10,000 dead rows and one in a hundred, not
#: after one in five; and clean the indexes each time, which a vacuum omits where few pages of the
#: table have changed.
VACUUM_OFTEN: dict[str, object] = {
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 10_000,
    "vacuum_index_cleanup": "on",
}

_IS_OPTION = tuple(int(part) for part in __version__.split(".")[:2]) >= (2, 1)


def storage_options() -> dict[str, object]:
    """Return the options of ``job_runs`` that set its storage parameters.

    SQLAlchemy 2.0 has no such option: there, `set_when_created` sets them.
    """
    return {"postgresql_with": VACUUM_OFTEN} if _IS_OPTION else {}


def storage_statement(parameters: dict[str, object]) -> str:
    """Return the statement that sets storage *parameters* of ``job_runs``."""
    values = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    return f"ALTER TABLE job_runs SET ({values})"


def set_when_created(table: Table) -> None:
    """Set the parameters of *table*, if it has some, after it was created, if no option does."""
    if table.name == "job_runs" and not _IS_OPTION:
        statement = DDL(storage_statement(VACUUM_OFTEN))  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", statement.execute_if(dialect="postgresql"))
