"""Copy the job tables to the app's metadata, for DDL only.

With the copies, ``db.create_all()`` and Flask-Migrate see the tables. Their columns have plain
types of the app's dialect, since a custom type or a variant would make Alembic write migrations
that import our internals.

The tables are mapped and copied when one of them, or the list of all tables, is first looked up.
Few processes do that, and for the others it would be most of the extension's startup time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from threading import RLock
from typing import Any, cast

from sqlalchemy import JSON, DateTime, MetaData, Table
from sqlalchemy.exc import NoReferencedColumnError, NoReferencedTableError
from sqlalchemy.types import NullType
from sqlalchemy.util import FacadeDict

from .columns import StoredJSON, UTCDateTime, set_when_created

#: Prefix of the job tables' names. Looking up such a name in the metadata makes the copies.
PREFIX = "job_"


def add_tables(metadata: MetaData, dialect_name: str) -> None:
    """Add plain copies of the job tables to the app's *metadata* when they are first looked up.

    :param metadata: ``db.metadata``. Copies for another dialect are replaced.
    :param dialect_name: the app's dialect, which decides the types of the columns.
    """
    tables = metadata.tables
    if isinstance(tables, _Tables):
        tables.copies.expected = dialect_name
    elif type(tables) is FacadeDict:
        lazy = cast("_Tables", _Tables())  # type: ignore[redundant-cast]
        # Its base class forbids setting attributes.
        vars(lazy)["copies"] = _Copies(metadata, dialect_name)
        lazy.keep(tables)
        metadata.tables = lazy
    else:
        copy_tables(metadata, dialect_name)


def table_of_its_own(metadata: MetaData) -> str | None:
    """Return the name of a table in *metadata* that clashes with a job table, or None."""
    tables = metadata.tables
    if isinstance(tables, _Tables):
        return None
    if not any(name.startswith(PREFIX) for name in tables):
        return None
    from .tables import JobRun

    for name, job_table in JobRun.metadata.tables.items():
        # A job table that the app has reflected from the database has all columns.
        if name in tables and not set(job_table.columns.keys()) <= set(tables[name].columns.keys()):
            return name
    return None


class _Copies:
    """The copies in one metadata, which are made when they are first looked up.

    :ivar expected: the dialect of the copies to be made; None once they are made.
    """

    def __init__(self, metadata: MetaData, dialect_name: str) -> None:
        self.expected: str | None = dialect_name
        self._metadata = metadata
        self._lock = RLock()
        self._copying = False

    def make(self) -> None:
        """Make the copies, unless they exist."""
        if self.expected is not None:
            with self._lock:  # Other threads wait; this one reads the tables while it copies.
                self._make()

    def _make(self) -> None:
        if self.expected is None or self._copying:
            return
        self._copying = True
        try:
            copy_tables(self._metadata, self.expected)
            self.expected = None
        finally:
            self._copying = False


class _Tables(FacadeDict[str, Table]):
    """The tables of a metadata, which gain the job tables when those are looked up."""

    copies: _Copies

    def keep(self, tables: Mapping[str, Table]) -> None:
        """Add the app's own *tables*."""
        for name, table in tables.items():
            self._insert_item(name, table)


def _make_copies_in(name: str, by_name: bool = False) -> None:
    """Make the method *name* of `_Tables` create the copies first.

    :param by_name: create them only if the argument may be the name of one.
    """
    method: Callable[..., Any] = getattr(FacadeDict, name)

    @wraps(method)
    def call(self: _Tables, *arguments: object) -> Any:
        if not by_name or str(arguments[0]).startswith(PREFIX):
            self.copies.make()
        return method(self, *arguments)

    setattr(_Tables, name, call)


for _method in ("__contains__", "__getitem__", "get"):
    _make_copies_in(_method, by_name=True)
for _method in ("__iter__", "__len__", "keys", "values", "items", "__eq__", "__repr__"):
    _make_copies_in(_method)


def copy_tables(metadata: MetaData, dialect_name: str) -> None:
    """Add plain copies of the job tables to the app's *metadata* now; see `add_tables`.

    They are created in our own metadata and only listed in the app's. Otherwise the app's schema
    and naming convention would apply to them, and to the foreign keys that Alembic writes.
    """
    from .tables import JobRun

    job_metadata = JobRun.metadata
    own_metadata = MetaData(naming_convention=job_metadata.naming_convention)
    any_metadata: Any = metadata
    for table in job_metadata.sorted_tables:
        copy = table.to_metadata(own_metadata)
        copy.info["cronjobs_dialect"] = dialect_name
        _make_plain(copy, dialect_name)
        set_when_created(copy)
        existing = metadata.tables.get(copy.key)
        if existing is not None:
            # A table without this mark belongs to the app, so leave it.
            if existing.info.get("cronjobs_dialect", dialect_name) == dialect_name:
                continue
            metadata.remove(existing)
        any_metadata._add_table(copy.name, None, copy)
    _take_types(metadata)


def _take_types(metadata: MetaData) -> None:
    """Set the type of the app's columns that refer to a job table and have no type of their own."""
    for table in list(metadata.tables.values()):
        for key in table.foreign_keys:
            refers = key.target_fullname.startswith(PREFIX)
            if refers and isinstance(key.parent.type, NullType):
                with suppress(NoReferencedTableError, NoReferencedColumnError):
                    key.parent.type = key.column.type


def _make_plain(table: Table, dialect_name: str) -> None:
    for column in table.columns:
        if isinstance(column.type, UTCDateTime):
            column.type = DateTime(timezone=True)
        elif isinstance(column.type, StoredJSON):
            column.type = _plain_json(dialect_name)


def _plain_json(dialect_name: str) -> JSON:
    if dialect_name != "postgresql":
        return JSON()
    from sqlalchemy.dialects.postgresql import JSONB

    json_type = JSONB()
    # DDL does not need this, and Alembic writes it without its module if another bind comes last.
    json_type.astext_type = cast("Any", None)
    return json_type
