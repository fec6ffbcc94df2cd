"""Begin a transaction before the first savepoint, which SQLite's driver does not do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event


def begin_before_savepoints(engine: Engine) -> None:
    """Let SQLite connections of *engine* send BEGIN before a savepoint that opens a transaction.

    sqlite3 sends BEGIN before INSERT, UPDATE and DELETE, but not before SAVEPOINT. To SQLite, such
    a savepoint is the whole transaction, so releasing it commits: runs that were enqueued in it
    would survive a rollback of the session, and work in it would not be atomic. At that time it is
    too late to begin one, so it must be done when the savepoint is made.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "savepoint", _begin)


def _begin(connection: Connection, name: str | None) -> None:
    driver: Any = connection.connection.dbapi_connection
    # An app whose driver leaves transactions to it (AUTOCOMMIT, or SQLAlchemy's recipe with a
    # listener that sends BEGIN) has decided by itself.
    ours = driver.isolation_level is not None and getattr(driver, "autocommit", False) is not True
    if ours and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")
