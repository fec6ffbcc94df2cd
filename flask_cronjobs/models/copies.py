"""Copy the job tables to the app's metadata, for DDL only.

With the copies, ``db.create_all()`` and Flask-Migrate see the tables. Their columns have the plain
types of the app's own dialect: a custom type, or a variant of a type, would make Alembic write
migrations that import our internals.
"""

from __future__ import annotations

from sqlalchemy import JSON, DateTime, MetaData, Table
from sqlalchemy.dialects.postgresql import JSONB

from .columns import UTCDateTime
from .tables import Base


def copy_tables(metadata: MetaData, dialect_name: str) -> None:
    """Add plain copies of the job tables to the app's *metadata*, for DDL only.

    :param metadata: ``db.metadata``. A copy that was made for another dialect is replaced.
    :param dialect_name: the app's dialect, which decides the types of the columns.
    """
    for table in Base.metadata.sorted_tables:
        present = metadata.tables.get(table.key)
        if present is not None:
            # A table without this mark is the app's own, so leave it.
            if present.info.get("cronjobs_dialect", dialect_name) == dialect_name:
                continue
            metadata.remove(present)
        copy = _copy(table, metadata)
        copy.info["cronjobs_dialect"] = dialect_name
        _make_plain(copy, dialect_name)


def _copy(table: Table, metadata: MetaData) -> Table:
    """Copy *table* without a schema: our statements name none, whatever the app's metadata says."""
    schema, metadata.schema = metadata.schema, None
    try:
        return table.to_metadata(metadata)
    finally:
        metadata.schema = schema


def _make_plain(table: Table, dialect_name: str) -> None:
    for column in table.columns:
        if isinstance(column.type, UTCDateTime):
            column.type = DateTime(timezone=True)
        elif isinstance(column.type, JSON):
            column.type = JSONB() if dialect_name == "postgresql" else JSON()
