"""The app's engine: connections outside its pool, its driver, and how its tables are created."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from flask import Flask
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import (
    NullPool,
    Pool,
    PoolProxiedConnection,
    PoolResetState,
    SingletonThreadPool,
    StaticPool,
)

from ..errors import SetupError
from .dialect import dialect_of
from .statements import free_frames

#: Why a tick refuses to run on SQLite in memory, and what to do.
IN_MEMORY = (
    "The database is SQLite in memory, where all code shares one connection: a tick would commit "
    "the unfinished work of its handlers. Use a file, such as sqlite:///app.db. In tests, call "
    "db.create_all(), and use drain() of flask_cronjobs.testing, which works in memory, too."
)

#: The extensions for migrations, each with the commands that create a migration and apply it.
_MIGRATE = {
    "migrate": "flask db migrate, then: flask db upgrade",
    "alembic": "flask db revision 'job tables', then: flask db upgrade",
}
_ALEMBIC_ALONE = "alembic revision --autogenerate -m 'job tables', then: alembic upgrade head"
_SHOW_TABLES = (
    "Give CronJobs the metadata of your models, so that migrations see the job tables, too: "
    "CronJobs(app, metadata=Model.metadata). "
)
#: Each engine's app, and whether its metadata has the job tables. The app's extensions are looked
#: up later, since Flask-Migrate may be initialized last.
_apps: WeakKeyDictionary[Engine, tuple[ReferenceType[Flask], bool]] = WeakKeyDictionary()
#: Our own psycopg 3 engine for each psycopg2 engine.
_by_psycopg: WeakKeyDictionary[Engine, Engine] = WeakKeyDictionary()
_asking = threading.local()
#: Connect arguments that psycopg names differently, and those that it does not have.
_RENAMED = {"dsn": "conninfo", "database": "dbname"}
_OF_PSYCOPG2 = ("connection_factory", "cursor_factory", "async", "async_")


def remember_app(engine: Engine, app: Flask, shows_tables: bool) -> None:
    """Remember that *engine* belongs to *app*.

    :param shows_tables: whether the metadata of the app's models has copies of the job tables.
    """
    _apps[engine] = ref(app), shows_tables


def how_to_migrate(engine: Engine) -> str | None:
    """Return how the app's migrations create the job tables; None if it has no migrations.

    An app has migrations if an extension for them is initialized, or if the database has Alembic's
    table.
    """
    app_ref, shows_tables = _apps.get(engine, (None, True))
    app = app_ref() if app_ref is not None else None
    extensions = app.extensions if app is not None else {}
    make = next((_MIGRATE[name] for name in _MIGRATE if name in extensions), None)
    if make is None and _has_alembic_table(engine):
        make = _ALEMBIC_ALONE
    return make and f"{'' if shows_tables else _SHOW_TABLES}Run: {make}"


def _has_alembic_table(engine: Engine) -> bool:
    try:
        with connect_apart(engine) as connection:
            return inspect(connection).has_table("alembic_version")
    except SQLAlchemyError:
        return False


def is_in_memory(engine: Engine) -> bool:
    """Return whether *engine* keeps one connection, or one per thread, as with SQLite in memory."""
    return isinstance(engine.pool, (StaticPool, SingletonThreadPool))


def is_shared(database: Engine | Connection) -> bool:
    """Return whether all code shares the one connection of *database*, as in some tests."""
    return isinstance(database, Connection) or isinstance(database.pool, StaticPool)


def refuse_shared_memory(engine: Engine) -> None:
    """Refuse an engine with one shared connection.

    :raises SetupError: bookkeeping would commit the unfinished work of handlers.
    """
    if is_in_memory(engine):
        raise SetupError(IN_MEMORY)


#: How to fix an encoding that `unfit_encoding` names.
USE_UTF8 = (
    "Use a database made by CREATE DATABASE … ENCODING 'UTF8', and connect with "
    "client_encoding=utf8."
)


def unfit_encoding(driver: Any) -> str | None:
    """Return what is wrong with the encoding of PostgreSQL, or of *driver*'s connection to it.

    Errors, results and progress may contain any character, so both must be UTF-8. The server
    reported its encoding when the connection was opened, so this sends no query.
    """
    for name in ("server_encoding", "client_encoding"):
        if (encoding := driver.info.parameter_status(name)) not in (None, "UTF8"):
            return (
                f"PostgreSQL's {name} is {encoding}, which lacks characters that an error or a "
                "result may contain: recording such a run would end its worker."
            )
    return None


def without_echo(engine: Engine) -> Engine:
    """Return *engine*, or one with the same pool that does not print statements.

    ``SQLALCHEMY_ECHO`` is for the app's statements. Ours would drown them, and spoil the output of
    commands.
    """
    if not engine.echo:
        return engine
    silent = engine.execution_options()
    silent.echo = False
    return silent


def connect_apart(engine: Engine) -> Connection:
    """Open a connection with the app's connect arguments and listeners, outside its pool.

    A handler may hold all of the pool's connections.

    :param engine: the app's engine.
    :raises sqlalchemy.exc.DBAPIError: the database cannot be reached.
    """
    dbapi: Any = engine.dialect.loaded_dbapi
    pool = _copy_of_pool(engine.pool)  # It has the connect arguments and the events.
    own_connection: PoolProxiedConnection | None = None
    try:
        own_connection = pool.connect()
        connection = Connection(without_echo(engine), own_connection)
        connection.detach()  # Not before: a level in the engine's options needs the pool.
        return connection
    except dbapi.Error as error:
        raise DBAPIError.instance(None, None, error, dbapi.Error, dialect=engine.dialect) from error
    except BaseException as error:
        # If the driver has opened a connection, the traceback's frames or the pool hold it.
        own_connection = None
        if not isinstance(error, Exception):
            free_frames(error)
        pool.dispose()
        raise


def _copy_of_pool(pool: Pool) -> Pool:
    if not pool.echo:
        return pool.recreate()
    logger = logging.getLogger(f"{type(pool).__module__}.{type(pool).__name__}")
    before, logger.disabled = logger.disabled, True  # It would log to standard output.
    try:
        return pool.recreate()
    finally:
        logger.disabled = before


def by_psycopg(engine: Engine) -> Engine:
    """Return *engine*, or for a psycopg2 engine our own psycopg 3 engine of the same database.

    Bookkeeping waits, cancels and listens in ways that psycopg2 does not offer.

    :param engine: the app's engine.
    :raises SetupError: its database or driver is not supported.
    """
    dialect_of(engine)
    if engine.dialect.driver != "psycopg2":
        return engine
    own_engine = _by_psycopg.get(engine)
    if own_engine is None:
        event.listen(engine, "do_connect", _answer)
        app_engine = ref(engine)
        own_engine = _by_psycopg[engine] = create_engine(
            engine.url.set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            creator=lambda: _connect_like(app_engine()),
        )
    return own_engine


class _Answer(Exception):
    """Raised instead of connecting, with the arguments that the connection would get."""

    def __init__(self, arguments: list[Any], parameters: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments
        self.parameters = parameters


def _answer(_: object, __: object, arguments: list[Any], parameters: dict[str, Any]) -> None:
    if getattr(_asking, "now", False):
        raise _Answer(arguments, parameters)


def _connect_like(engine: Engine | None) -> Any:
    """Connect with psycopg 3 as *engine* does with psycopg2; listeners may supply the password."""
    import psycopg

    assert engine is not None  # Its app is running.
    _asking.now = True
    try:
        connection = _copy_of_pool(engine.pool).connect()
    except _Answer as answer:
        arguments, parameters = answer.arguments, answer.parameters
    else:
        connection.invalidate()
        raise SetupError(_OWN_CONNECTIONS)
    finally:
        _asking.now = False
    listeners = list(engine.dialect.dispatch.do_connect)
    for listener in listeners[listeners.index(_answer) + 1 :]:
        if listener(engine.dialect, None, arguments, parameters) is not None:
            raise SetupError(_OWN_CONNECTIONS)
    options = {_RENAMED.get(name, name): value for name, value in parameters.items()}
    return psycopg.connect(
        *arguments, **{name: options[name] for name in options if name not in _OF_PSYCOPG2}
    )


_OWN_CONNECTIONS = (
    "The app makes its connections with psycopg2 itself (creator=, or a listener of do_connect "
    "that returns one), so Flask-CronJobs cannot connect in the same way with psycopg 3. Let the "
    "listener change the connection's arguments, or use postgresql+psycopg:// for the app, too."
)


# Listeners that the transactions of the app's own connections need.


def begin_before_savepoints(engine: Engine) -> None:
    """Make SQLite connections of *engine* begin a transaction before a savepoint.

    sqlite3 sends BEGIN before INSERT, UPDATE and DELETE, but not before SAVEPOINT. To SQLite, a
    savepoint without a transaction is the whole transaction, so releasing it commits: runs that
    were enqueued in it would survive a rollback of the session, and work in it would not be atomic.
    The transaction must begin before the savepoint, since afterwards it is too late.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "savepoint", _begin)


def end_interrupted_transactions(engine: Engine) -> None:
    """Make sure that no connection of *engine* keeps a transaction that was interrupted.

    After an interruption inside a query, SQLAlchemy closes the connection. SQLite keeps the
    transaction of a closed connection, and its write lock, while any cursor is open. SQLAlchemy's
    frames have one, and they live on in the exception's traceback.

    After an interruption at the start of a commit, SQLAlchemy believes that the transaction has
    ended, and returns the connection to the pool with its locks, and with work that the next user
    of the connection would commit. This was seen with SQLAlchemy 2.1.9 on both databases.
    """
    if engine.dialect.name == "sqlite":
        event.listen(engine, "invalidate", _roll_back)
    event.listen(engine, "reset", _roll_back_unended)


#: The engines for which `end_transactions_of_listeners` was called.
_setting_levels: WeakSet[Engine] = WeakSet()


def end_transactions_of_listeners(engine: Engine) -> None:
    """Let the isolation level of each new connection of *engine* be set.

    On PostgreSQL, a ``SET …`` of a listener of ``connect`` begins a transaction. As long as it is
    open, the driver refuses to change the level.
    """
    if engine.dialect.name == "postgresql" and engine not in _setting_levels:
        _setting_levels.add(engine)
        event.listen(engine, "set_connection_execution_options", _commit)


def _begin(connection: Connection, name: str | None) -> None:
    driver: Any = connection.connection.dbapi_connection
    # An app that handles transactions itself (AUTOCOMMIT, or SQLAlchemy's recipe with a listener
    # that sends BEGIN) has made its own choice.
    is_ours = (
        driver.isolation_level is not None and getattr(driver, "autocommit", False) is not True
    )
    if is_ours and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN")


def _commit(connection: Connection, options: Mapping[str, Any]) -> None:
    driver: Any = connection.connection.dbapi_connection
    if "isolation_level" in options and not connection.in_transaction():
        driver.commit()  # Without a transaction, the driver sends nothing.


def _roll_back(driver: Any, _record: object, _error: object) -> None:
    with suppress(Exception):  # The connection may be broken or closed already.
        driver.rollback()


def _roll_back_unended(driver: Any, _record: object, state: PoolResetState) -> None:
    # This sends no query. sqlite3 has `in_transaction`, psycopg has `info`, others have neither.
    status: Any = getattr(getattr(driver, "info", None), "transaction_status", 0)  # `IDLE` is 0.
    if state.transaction_was_reset and getattr(driver, "in_transaction", status):
        driver.rollback()
