"""Lending the job tables to the app's metadata, for DDL only.

``db.create_all()`` and Flask-Migrate see plain copies: a custom type, or a variant of one, would
make Alembic write migrations that import our internals. So the copies carry the plain types of the
app's own dialect.
"""

from __future__ import annotations

from sqlalchemy import JSON, DateTime, MetaData, Table
from sqlalchemy.dialects.postgresql import JSONB

from .columns import UTCDateTime
from .tables import Base


def lend_tables(metadata: MetaData, dialect_name: str) -> None:
    """Put plain copies of the job tables into the app's *metadata*, for DDL only.

    :param metadata: ``db.metadata``.
    :param dialect_name: the app's dialect, whose plain types the copies carry. A copy lent before
        for another dialect is replaced.
    """
    for table in Base.metadata.sorted_tables:
        lent = metadata.tables.get(table.key)
        if lent is not None:
            if lent.info.get("cronjobs_dialect") == dialect_name:
                continue
            if "cronjobs_dialect" not in lent.info:
                continue  # A table of the app's own by that name: not ours to replace.
            metadata.remove(lent)
        copy = table.to_metadata(metadata)
        copy.info["cronjobs_dialect"] = dialect_name
        _make_plain(copy, dialect_name)


def _make_plain(table: Table, dialect_name: str) -> None:
    for column in table.columns:
        if isinstance(column.type, UTCDateTime):
            column.type = DateTime(timezone=True)
        elif isinstance(column.type, JSON):
            column.type = JSONB() if dialect_name == "postgresql" else JSON()
