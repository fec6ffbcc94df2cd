"""Create the job tables."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from ..models.tables import Base
from .connection import Bookkeeping, leave_transaction, refuse_shared_memory
from .dialect import dialect_of
from .errors import explain


def create_tables(engine: Engine) -> list[str]:
    """Create the job tables that do not exist yet, and set a SQLite file to WAL mode.

    :returns: the names of the tables created.
    :raises SetupError: Flask-CronJobs does not work with this database.
    :raises DatabaseTrouble: the tables could not be created.
    """
    dialect_of(engine)
    refuse_shared_memory(engine)
    try:
        before = set(inspect(engine).get_table_names())
        Base.metadata.create_all(engine)
        set_wal(engine)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return [table.name for table in Base.metadata.sorted_tables if table.name not in before]


def are_tables_missing(engine: Engine) -> bool:
    """Return whether a job table does not exist.

    :raises DatabaseTrouble: the database cannot be read.
    """
    try:
        names = set(inspect(engine).get_table_names())
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return not names.issuperset(Base.metadata.tables)


def set_wal(engine: Engine) -> bool:
    """Set a SQLite file to WAL mode, in which readers and writers do not block each other.

    :returns: whether this changed the mode.
    :raises DatabaseTrouble: the file cannot be used.
    """
    if engine.dialect.name != "sqlite":
        return False
    with Bookkeeping(engine) as books:
        return books.attempt(_set_wal)


def _set_wal(connection: Connection) -> bool:
    leave_transaction(connection)  # SQLite refuses to change the mode inside one.
    before = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    after = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
    connection.commit()
    return bool(before != after == "wal")
