"""Connections that do not come from the app's pool: a handler may hold all that it has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolProxiedConnection

from .frames import free_frames


def connect_apart(engine: Engine) -> Connection:
    """Open a connection with the app's connect arguments and listeners, outside of its pool.

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
