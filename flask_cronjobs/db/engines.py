"""The app's engine: connections apart from its pool, and how its tables come to be."""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from flask import Flask
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection, SingletonThreadPool, StaticPool

from .deadlines import free_frames

#: Why nothing of an app may run whose database is SQLite in memory, and what to do.
IN_MEMORY = (
    "The database is SQLite in memory, with one connection for everybody: a tick would commit the "
    "unfinished work of its handlers. Use a file, such as sqlite:///app.db. In tests, call "
    "db.create_all(), and use drain() of flask_cronjobs.testing, which works in memory, too."
)

#: The app of each engine. Its extensions are asked later: Flask-Migrate may be initialized last.
_apps: WeakKeyDictionary[Engine, ReferenceType[Flask]] = WeakKeyDictionary()


def remember_app(engine: Engine, app: Flask) -> None:
    """Remember that *engine* is the one of *app*."""
    _apps[engine] = ref(app)


def uses_migrations(engine: Engine) -> bool:
    """Return whether Flask-Migrate is initialized, or Alembic has its table in the database."""
    known = _apps.get(engine)
    app = known() if known is not None else None
    if app is not None and "migrate" in app.extensions:
        return True
    try:
        with connect_apart(engine) as connection:
            return inspect(connection).has_table("alembic_version")
    except SQLAlchemyError:
        return False


def is_in_memory(engine: Engine) -> bool:
    """Return whether *engine* has one connection that everybody shares, as SQLite has in memory."""
    return isinstance(engine.pool, (StaticPool, SingletonThreadPool))


def how_to_create_tables(engine: Engine) -> str:
    """Return the command that creates the job tables in this app; no command can in memory.

    With migrations, ``init`` would do harm: the next migration would find nothing to do, and other
    databases would never get the tables.
    """
    if is_in_memory(engine):
        return IN_MEMORY.removesuffix(".")
    if uses_migrations(engine):
        return "Run: flask db migrate, then: flask db upgrade"
    return "Run: flask jobs admin init"


def connect_apart(engine: Engine) -> Connection:
    """Open a connection with the app's connect arguments and listeners, outside of its pool.

    A handler may hold all connections that the pool has.

    :param engine: the app's engine.
    :raises sqlalchemy.exc.DBAPIError: the database cannot be reached.
    """
    dbapi: Any = engine.dialect.loaded_dbapi
    pool = engine.pool.recreate()  # A copy has the connect arguments and the events.
    own: PoolProxiedConnection | None = None
    try:
        own = pool.connect()
        own.detach()
        return Connection(engine, own)
    except dbapi.Error as error:
        raise DBAPIError.instance(None, None, error, dbapi.Error, dialect=engine.dialect) from error
    except BaseException as error:
        # What the driver has opened so far is in the frames of the traceback, or in the pool.
        own = None
        if not isinstance(error, Exception):
            free_frames(error)
        pool.dispose()
        raise
