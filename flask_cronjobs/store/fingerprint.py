"""A text by which processes find out that they use the same database."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sqlalchemy import text

from .connection import Bookkeeping

#: Of the database in its cluster, and of the table.
_POSTGRESQL = """
    SELECT oid, to_regclass('job_runs')::oid,
        has_function_privilege('pg_control_system()', 'EXECUTE') AS may_ask
    FROM pg_database WHERE datname = current_database()
"""
#: By itself: to a role that may not call the function, it is refused.
_CLUSTER = "SELECT system_identifier FROM pg_control_system()"
_SQLITE = "SELECT file FROM pragma_database_list WHERE name = 'main'"


def fingerprint(books: Bookkeeping) -> str:
    """Return a text that two databases do not share, whatever a URL calls them. It tells nothing.

    A database that is restored or moved gets another one. On SQLite it is of the file and its disk.
    """
    if books.dialect.name == "postgresql":
        (row,) = books.rows(text(_POSTGRESQL))
        known = tuple(row) + (tuple(books.rows(text(_CLUSTER))[0]) if row.may_ask else ())
    else:
        file = Path(books.rows(text(_SQLITE))[0].file).stat()
        known = file.st_dev, file.st_ino
    return hashlib.sha256(repr(known).encode()).hexdigest()[:8]
