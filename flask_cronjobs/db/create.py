"""Create the job tables."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from ..models import JobRun
from ..models.columns import VACUUM_OFTEN, storage_statement
from .connection import Bookkeeping, leave_transaction
from .dialect import dialect_of
from .engines import refuse_shared_memory
from .errors import explain
from .schemas import are_complete, existing_tables

_STORAGE = """
SELECT reloptions FROM pg_class
WHERE relname = 'job_runs' AND relkind = 'r' AND pg_table_is_visible(oid)
    AND pg_has_role(relowner, 'USAGE')
"""


def create_tables(engine: Engine) -> list[str]:
    """Create the missing job tables, and apply the settings that an older version did not.

    The settings are WAL mode on SQLite and storage parameters on PostgreSQL.

    :returns: the names of the tables created.
    :raises SetupError: Flask-CronJobs does not work with this database.
    :raises DatabaseTrouble: the tables could not be created.
    """
    dialect_of(engine)
    refuse_shared_memory(engine)
    try:
        with engine.connect() as connection:
            before = existing_tables(connection)
        JobRun.metadata.create_all(engine)
        set_wal(engine)
        set_storage(engine)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return [table.name for table in JobRun.metadata.sorted_tables if table.name not in before]


def set_storage(engine: Engine) -> bool:
    """Set the storage parameters that ``job_runs`` lacks on PostgreSQL; keep those that are set.

    A new table has them, but a table from an earlier version or its migration may not. Reads and
    writes are not blocked.

    :returns: whether any were set.
    :raises DatabaseTrouble: they could not be set.
    """
    if dialect_of(engine).one_writer:
        return False
    try:
        with engine.begin() as connection:
            if missing_parameters := missing_storage(connection):
                connection.exec_driver_sql(storage_statement(missing_parameters))
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return bool(missing_parameters)


def missing_storage(connection: Connection) -> dict[str, object]:
    """Return the storage parameters that ``job_runs`` lacks, or none if we may not change it.

    This is for PostgreSQL only.
    """
    options_by_table: list[list[str] | None] = list(connection.scalars(text(_STORAGE)))
    keys = {option.partition("=")[0] for options in options_by_table for option in options or ()}
    return {
        key: value for key, value in VACUUM_OFTEN.items() if options_by_table and key not in keys
    }


def are_tables_missing(engine: Engine) -> bool:
    """Return whether any job table is missing.

    :raises DatabaseTrouble: the database cannot be read.
    """
    try:
        with engine.connect() as connection:
            return not are_complete(connection)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error


def set_wal(engine: Engine) -> bool:
    """Set a SQLite file to WAL mode, in which readers and writers do not block each other.

    :returns: whether this changed the mode.
    :raises DatabaseTrouble: the file cannot be used.
    """
    if not dialect_of(engine).one_writer:
        return False
    with Bookkeeping(engine) as books:
        return books.call(_set_wal)


def _set_wal(connection: Connection) -> bool:
    leave_transaction(connection)  # SQLite refuses to change the mode inside one.
    before = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    after = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
    connection.commit()
    return bool(before != after == "wal")
