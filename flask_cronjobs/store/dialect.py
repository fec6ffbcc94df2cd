"""The dialect seam: the few places where PostgreSQL and SQLite must be spoken to differently."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, Engine

from ..errors import SetupError
from .clock import sql_now

#: UPDATE … FROM came with SQLite 3.33, RETURNING with 3.35.
LEAST_SQLITE = (3, 35, 0)


@dataclass(frozen=True)
class Dialect:
    """How to say on one database what both can do.

    :ivar begin: how a transaction begins: on SQLite with the write lock, since a transaction that
        reads first and writes later fails at once, and without waiting, when another wrote between.
    :ivar skip_locked: what makes a claim pass over rows that another claim is taking.
    :ivar one_statement: whether a single statement may change several tables.
    """

    name: str
    begin: str
    skip_locked: str
    one_statement: bool

    @property
    def now(self) -> str:
        """SQL for the database's time."""
        return sql_now(self.name)

    def later(self, seconds: str) -> str:
        """Return SQL for *seconds* (an SQL expression) after the database's time."""
        return sql_now(self.name, seconds)

    def json(self, value: str) -> str:
        """SQL for JSON *value* (an SQL text expression) as a JSON column wants it."""
        return f"CAST({value} AS jsonb)" if self.name == "postgresql" else value

    def instant(self, moment: datetime) -> str:
        """*moment* as text inside a JSON parameter, which compares right in the database."""
        utc = moment.astimezone(timezone.utc)
        return utc.isoformat() if self.name == "postgresql" else f"{utc:%Y-%m-%d %H:%M:%S.%f}"

    def same_instant(self, column: str, value: str) -> str:
        """SQL for *column* being *value*: an instant as above, or NULL if it holds no time.

        SQLite keeps times as texts, and a hand may have written one in another way than we do.
        """
        if self.name == "postgresql":
            return f"{column} IS NOT DISTINCT FROM CAST({value} AS timestamptz)"
        form = "'%Y-%m-%d %H:%M:%f'"
        return f"strftime({form}, {column}) IS strftime({form}, {value})"

    def table(self, parameter: str, **columns: str) -> str:
        """SQL for a JSON array of objects as a table; *columns* give PostgreSQL's types."""
        if self.name == "postgresql":
            typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            return f"(SELECT * FROM jsonb_to_recordset(CAST(:{parameter} AS jsonb)) AS t({typed}))"
        extracted = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
        return f"(SELECT {extracted} FROM json_each(:{parameter}))"

    def one_of(self, column: str, parameter: str) -> str:
        """SQL for *column* being in the JSON array of texts *parameter*."""
        if self.name == "postgresql":
            return f"{column} = ANY(CAST(:{parameter} AS text[]))"
        return f"{column} IN (SELECT value FROM json_each(:{parameter}))"

    def array(self, values: tuple[str, ...]) -> object:
        """*values* as `one_of` wants its parameter."""
        if self.name == "postgresql":
            return list(values)
        return json.dumps(values)

    def parsed(self, value: Any) -> Any:
        """A JSON column's *value* as a plain text statement returned it."""
        # psycopg has parsed it already. SQLite hands over text, but a number as such.
        return json.loads(value) if self.name == "sqlite" and isinstance(value, str) else value

    def moment(self, value: Any) -> datetime:
        """A time that a plain text statement returned, aware, in UTC."""
        found: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
        if found.tzinfo is None:
            return found.replace(tzinfo=timezone.utc)
        return found.astimezone(timezone.utc)

    def prepare(self, connection: Connection, busy_seconds: float) -> None:
        """Make a new bookkeeping connection ready."""
        if self.name == "postgresql":
            # Prepared, the exchange would after ten times get a generic plan, made for no number of
            # outcomes in particular: seen to be twice as slow. And a pooler may not know it.
            driver: Any = connection.connection.dbapi_connection
            driver.prepare_threshold = None
        else:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
            connection.commit()


POSTGRESQL = Dialect(
    name="postgresql",
    begin="BEGIN ISOLATION LEVEL READ COMMITTED",
    skip_locked="FOR UPDATE SKIP LOCKED",
    one_statement=True,
)
SQLITE = Dialect(
    name="sqlite",
    begin="BEGIN IMMEDIATE",
    skip_locked="",
    one_statement=False,
)


def dialect_of(engine: Engine) -> Dialect:
    """How to speak to *engine*'s database.

    :raises SetupError: it is neither PostgreSQL by psycopg nor SQLite 3.35 or later.
    """
    if engine.dialect.name == "postgresql":
        if engine.dialect.driver != "psycopg":
            raise SetupError(
                f"The database URL names the driver {engine.dialect.driver}. Flask-CronJobs speaks "
                "to PostgreSQL by psycopg 3: write postgresql+psycopg://…"
            )
        return POSTGRESQL
    if engine.dialect.name == "sqlite":
        if sqlite3.sqlite_version_info < LEAST_SQLITE:
            raise SetupError(
                f"This Python has SQLite {sqlite3.sqlite_version}. Flask-CronJobs needs "
                f"{'.'.join(map(str, LEAST_SQLITE))} or later."
            )
        return SQLITE
    raise SetupError(
        f"The database is {engine.dialect.name}. Flask-CronJobs works with PostgreSQL and SQLite."
    )
