"""The SQL and values in which PostgreSQL and SQLite differ, and the database's clock."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

from ..errors import SetupError
from .statements import BEGIN

#: SQLite 3.33 added UPDATE … FROM, and 3.35 added RETURNING.
LEAST_SQLITE = (3, 35, 0)
_DRIVERS = ("psycopg", "psycopg2")
#: Seconds by which a test has moved this process's clock.
_shift = 0.0


def clock_shift() -> float:
    """Return the seconds by which a test has moved the clock."""
    return _shift


@contextmanager
def moved_by(seconds: float) -> Generator[None]:
    """Move this process's clock *seconds* ahead of the database's in this block, for tests.

    Only bookkeeping that begins in the block uses the moved clock.
    """
    global _shift
    before, _shift = _shift, seconds
    try:
        yield
    finally:
        _shift = before


class Dialect(NamedTuple):
    """How to write SQL and values for one of the databases.

    :ivar begin: the statement that begins a transaction. On SQLite it takes the write lock at once,
        since a transaction that reads first and writes later fails without waiting if another one
        has written in between.
    :ivar skip_locked: the clause that locks the rows of a SELECT and skips those that another
        transaction has locked. Rows that are only referenced by a foreign key are not skipped.
    :ivar one_writer: whether the database is a file with one writer at a time. Rows are not locked
        there, nobody is notified, a statement changes one table, and there are no arrays. The
        driver converts no times. A connection is cheap, and may be usable only in the thread that
        opened it.
    :ivar atomic_level: SQLAlchemy's name of the isolation level for atomic handlers: the lowest in
        which a concurrent heartbeat causes no serialization failure.
    :ivar shift: seconds by which a test has moved the clock.
    """

    name: str
    begin: str
    skip_locked: str
    one_writer: bool
    atomic_level: str
    shift: float = 0.0

    @property
    def now(self) -> str:
        """SQL for the database's time, which can be used in an index condition."""
        if self.name == "postgresql":
            # PostgreSQL uses no volatile function as an index condition. A scalar subquery reads
            # the clock once, so it can be one.
            return f"(SELECT {self.clock})"
        return _sqlite_now(self.shift)

    @property
    def clock(self) -> str:
        """SQL for the database's time, read anew for each row.

        On PostgreSQL it is cheaper to plan than `now`, and it prevents an index scan by time.
        """
        if self.name != "postgresql":
            return self.now
        shift = f" + interval '{self.shift:.6f} seconds'" if self.shift else ""
        return f"clock_timestamp(){shift}"

    def later(self, seconds: str) -> str:
        """Return SQL for *seconds* (an SQL expression) after the database's time."""
        if self.name == "postgresql":
            return f"({self.now} + make_interval(secs => CAST({seconds} AS double precision)))"
        return _sqlite_now(self.shift, f", printf('%+.3f seconds', {seconds})")

    def clock_after(self, seconds: str) -> str:
        """Return SQL for *seconds* (an SQL expression) after `clock`."""
        return self.later(seconds).replace(self.now, self.clock)

    def latest(self, nullable: str, time: str) -> str:
        """Return SQL for the later of two times; *nullable* may be NULL."""
        if self.name == "postgresql":
            return f"GREATEST({nullable}, {time})"
        return f"max(COALESCE({nullable}, {time}), {time})"

    def typed(self, value: str, kind: str) -> str:
        """Return *value* (SQL) with a cast to its type, where the database needs one."""
        return f"CAST({value} AS {kind})" if self.name == "postgresql" else value

    def epoch(self, time: str) -> str:
        """Return SQL for *time* (SQL) in whole seconds."""
        if self.name == "postgresql":
            return f"CAST(floor(extract(epoch FROM {time})) AS bigint)"
        return f"CAST(strftime('%s', {time}) AS integer)"

    @property
    def earliest(self) -> str:
        """A text that sorts before every time."""
        return "-infinity" if self.name == "postgresql" else ""

    def unparsed(self, column: str) -> str:
        """Return SQL for a JSON *column* as a text, for `stored_json`.

        This bypasses the JSON functions of the app's engine and driver: psycopg has a loader for
        the type, and sqlite3 may have a converter for columns declared as JSON.
        """
        return f"CAST({column} AS text)" if self.name == "postgresql" else f"+{column}"

    def json(self, value: str) -> str:
        """Return SQL that turns *value* (SQL for a JSON text) into a JSON column's value."""
        if self.name == "postgresql":
            return f"CAST({value} AS jsonb)"
        # SQLite's JSON column stores a text that looks like a number as one: 1.0 becomes 1, and a
        # long number is rounded. It stores a blob unchanged.
        is_number = f"{value} GLOB '[-0-9]*' AND ({value} GLOB '*[.e]*' OR length({value}) > 18)"
        return f"CASE WHEN {is_number} THEN CAST({value} AS BLOB) ELSE {value} END"

    def instant(self, moment: datetime) -> str:
        """Return *moment* as a text for a JSON parameter that the database compares correctly."""
        utc = moment.astimezone(timezone.utc)
        return utc.isoformat() if self.name == "postgresql" else f"{utc:%Y-%m-%d %H:%M:%S.%f}"

    def same_instant(self, column: str, value: str) -> str:
        """Return the SQL condition that *column* equals *value*, which is an `instant` or NULL.

        SQLite stores times as texts, and one written by hand may have another format. A value that
        `stored_time` cannot read counts as NULL.
        """
        readable = f"{column} >= '0002-01-01'"
        if self.name == "postgresql":
            moment = f"CASE WHEN {readable} AND {column} < '10000-01-01' THEN {column} END"
            return f"({moment}) IS NOT DISTINCT FROM CAST({value} AS timestamptz)"
        form = "'%Y-%m-%d %H:%M:%f'"
        moment = f"CASE WHEN {readable} THEN strftime({form}, {column}) END"
        return f"({moment}) IS strftime({form}, {value})"

    def sortable(self, time: str) -> str:
        """Return SQL for *time* (SQL) as a value that Python can sort, whatever it contains."""
        if self.name == "postgresql":
            return f"date_part('epoch', {time})"  # extract() returns a numeric, which is slow.
        return f"CAST({time} AS text)"

    def table(self, parameter: str, **columns: str) -> str:
        """Return SQL for *parameter*, a JSON array of objects, as a table.

        :param columns: the names of the columns, and their types in PostgreSQL.
        """
        if self.name == "postgresql":
            fields = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            return f"(SELECT * FROM jsonb_to_recordset(CAST(:{parameter} AS jsonb)) AS t({fields}))"
        expressions = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
        return f"(SELECT {expressions} FROM json_each(:{parameter}))"

    def any_of(self, column: str, select: str) -> str:
        """Return the SQL condition that *column* is one of the values of *select*.

        This is for few values, each of which is looked up in the column's index.
        """
        if self.name == "postgresql":
            return f"{column} = ANY(ARRAY({select}))"
        return f"{column} IN ({select})"

    def many(self, values: Iterable[object]) -> object:
        """Return *values*, ids or texts, as the parameter of `among`, `one_of` or `each`."""
        if self.name == "postgresql":
            return list(values)
        # SQLite accepts a blob as an id, and somebody may have written one by hand.
        return json.dumps([value for value in values if isinstance(value, (int, str))])

    def among(self, column: str, parameter: str = "ids", kind: str = "bigint") -> str:
        """Return the SQL condition that *column* is in *parameter*, which `many` made.

        :param kind: the type of the values in PostgreSQL.
        """
        if self.name == "postgresql":
            return f"{column} = ANY(CAST(:{parameter} AS {kind}[]))"
        return f"{column} IN (SELECT value FROM json_each(:{parameter}))"

    def one_of(self, column: str, parameter: str) -> str:
        """Return the SQL condition that *column* is in *parameter*, which `many` made of texts."""
        return self.among(column, parameter, "text")

    def each(self, parameter: str, name: str) -> str:
        """Return SQL for the texts of *parameter*, which `many` made, as a table."""
        if self.name == "postgresql":
            return f"unnest(CAST(:{parameter} AS text[])) AS each_value({name})"
        return f"(SELECT value AS {name} FROM json_each(:{parameter}))"

    def join_each(self, columns: str, from_sql: str) -> str:
        """Return SQL that joins each row to runs of its own, as ``r``.

        :param columns: the columns of the runs that are needed besides the id.
        :param from_sql: the SQL, from FROM on, that selects the runs of a row by its columns.
        """
        if self.name == "postgresql":
            return f"CROSS JOIN LATERAL (SELECT id, {columns} {from_sql}) AS r"
        return f"CROSS JOIN job_runs r WHERE r.id IN (SELECT id {from_sql})"


POSTGRESQL = Dialect(
    name="postgresql",
    begin=BEGIN,
    skip_locked="FOR NO KEY UPDATE SKIP LOCKED",
    one_writer=False,
    atomic_level="READ COMMITTED",
)
SQLITE = Dialect(
    name="sqlite",
    begin="BEGIN IMMEDIATE",
    skip_locked="",
    one_writer=True,
    atomic_level="SERIALIZABLE",
)


def _sqlite_now(shift: float, modifiers: str = "") -> str:
    # SQLite's CURRENT_TIMESTAMP has whole seconds, so it sorts before SQLAlchemy's text, which has
    # six more digits. This one has six, too.
    shift_modifier = f", '{shift:+.3f} seconds'" if shift else ""
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now'{shift_modifier}{modifiers})"


def busy_timeout(seconds: float) -> str:
    """Return the PRAGMA that lets a SQLite statement wait *seconds* for another writer."""
    return f"PRAGMA busy_timeout = {int(seconds * 1000)}"


def load_odd_values(driver: Any) -> None:
    """Let psycopg return text for a time that Python cannot represent, instead of failing.

    Examples are infinity and years B.C. The statement has succeeded by then, so an exception would
    lose all of its rows.

    :param driver: a psycopg connection or cursor.
    """
    from psycopg.pq import Format

    oid = driver.adapters.types["timestamptz"].oid
    plain = driver.adapters.get_loader(oid, Format.TEXT)
    driver.adapters.register_loader(oid, _or_text(plain))


@lru_cache
def _or_text(plain: Any) -> type:
    """Return a psycopg loader that loads as *plain* does, and returns a text where that fails."""

    class OrText:
        format = plain.format

        def __init__(self, oid: int, context: Any = None) -> None:
            self._load = plain(oid, context).load

        def load(self, data: Any) -> object:
            with suppress(Exception):
                return self._load(data)
            return bytes(data).decode(errors="replace")

    return OrText


#: The dialects of the engines that `dialect_of` has checked.
_dialects: WeakKeyDictionary[Engine, Dialect] = WeakKeyDictionary()


def dialect_of(engine: Engine) -> Dialect:
    """Return the dialect of *engine*'s database, with the current shift of the clock.

    :raises SetupError: see `_checked`.
    """
    dialect = _dialects.get(engine)
    if dialect is None:
        dialect = _dialects[engine] = _checked(engine)
    return dialect._replace(shift=_shift) if _shift else dialect


def _checked(engine: Engine) -> Dialect:
    """Return the dialect of *engine*, after checking that bookkeeping can use it.

    :raises SetupError: the database is neither PostgreSQL with psycopg or psycopg2 nor SQLite 3.35
        or later; or psycopg 3, which bookkeeping always uses, is not installed.
    """
    name, driver = engine.dialect.name, engine.dialect.driver
    is_supported = driver in _DRIVERS if name == "postgresql" else name == "sqlite"
    if engine.dialect.is_async or not is_supported:
        raise SetupError(
            f"The database URL names {name}+{driver}, but Flask-CronJobs supports only SQLite, and "
            "PostgreSQL with psycopg 3. For PostgreSQL: pip install 'Flask-CronJobs[postgres]', "
            "and begin the URL with postgresql+psycopg://"
        )
    if driver == "psycopg2" and find_spec("psycopg") is None:
        raise SetupError(
            "The app uses psycopg2, which can stay. The workers of Flask-CronJobs use psycopg 3, "
            "which is not installed: pip install 'psycopg[binary]'."
        )
    if name == "sqlite":
        import sqlite3  # An app with PostgreSQL does not need it.

        if sqlite3.sqlite_version_info < LEAST_SQLITE:
            raise SetupError(
                f"This Python has SQLite {sqlite3.sqlite_version}. Flask-CronJobs needs "
                f"{'.'.join(map(str, LEAST_SQLITE))} or later."
            )
    return POSTGRESQL if name == "postgresql" else SQLITE
