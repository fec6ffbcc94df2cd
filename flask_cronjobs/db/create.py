"""Create the job tables."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from ..models import JobRun
from ..models.columns import STORAGE, storage_statement
from .connection import Bookkeeping, leave_transaction
from .dialect import dialect_of
from .engines import refuse_shared_memory
from .errors import explain

_STORAGE = """
SELECT relname, reloptions FROM pg_class
WHERE relname = ANY(:names) AND relkind = 'r' AND pg_table_is_visible(oid)
    AND pg_has_role(relowner, 'USAGE')
"""


def create_tables(engine: Engine) -> list[str]:
    """Create the job tables that do not exist yet, and set up what an older version did not.

    That is WAL mode on SQLite, and storage parameters on PostgreSQL.

    :returns: the names of the tables created.
    :raises SetupError: Flask-CronJobs does not work with this database.
    :raises DatabaseTrouble: the tables could not be created.
    """
    dialect_of(engine)
    refuse_shared_memory(engine)
    try:
        before = set(inspect(engine).get_table_names())
        JobRun.metadata.create_all(engine)
        set_wal(engine)
        set_storage(engine)
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return [table.name for table in JobRun.metadata.sorted_tables if table.name not in before]


def set_storage(engine: Engine) -> list[str]:
    """Set the storage parameters that the job tables lack on PostgreSQL; keep those that are set.

    A new table has them. One that an earlier version or its migration created has not. Reads and
    writes go on meanwhile.

    :returns: the names of the tables changed.
    :raises DatabaseTrouble: they could not be set.
    """
    if dialect_of(engine).one_writer:
        return []
    try:
        with engine.begin() as connection:
            missing = missing_storage(connection)
            for table, parameters in missing.items():
                connection.exec_driver_sql(storage_statement(table, parameters))
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return list(missing)


def missing_storage(connection: Connection) -> dict[str, dict[str, object]]:
    """Return the storage parameters that the job tables lack, of those tables that we may change.

    For PostgreSQL only.
    """
    rows = connection.execute(text(_STORAGE), {"names": list(STORAGE)})
    found: dict[str, list[str]] = {row.relname: row.reloptions or list[str]() for row in rows}
    missing: dict[str, dict[str, object]] = {}
    for name, options in found.items():
        present = {option.partition("=")[0] for option in options}
        lacking = {key: value for key, value in STORAGE[name].items() if key not in present}
        if lacking:
            missing[name] = lacking
    return missing


def are_tables_missing(engine: Engine) -> bool:
    """Return whether a job table does not exist.

    :raises DatabaseTrouble: the database cannot be read.
    """
    try:
        names = set(inspect(engine).get_table_names())
    except SQLAlchemyError as error:
        raise explain(error, engine) from error
    return not names.issuperset(JobRun.metadata.tables)


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
