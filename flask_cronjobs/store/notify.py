"""LISTEN and NOTIFY: how an enqueue on PostgreSQL wakes the resident workers that wait for runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session, scoped_session

from .clock import sql_now
from .connection import Bookkeeping

CHANNEL = "flask_cronjobs"

# At commit a NOTIFY takes a lock that all of the server's notifying transactions share, whether
# anybody listens or not: so it is sent only if somebody does. Who works writes a row each minute.
_NOTIFY = text(
    f"""
    SELECT pg_notify('{CHANNEL}', '') FROM (
        SELECT 1 FROM job_ticks
        WHERE started_at > {sql_now("postgresql")} - interval '3 minutes'
            AND listening AND finished_at IS NULL
        LIMIT 1
    ) AS listener
    """
)


def wake_listeners(session: scoped_session[Any] | Session) -> bool:
    """Wake the workers that listen as soon as *session*'s transaction commits.

    :returns: whether any listens.
    """
    own = session() if isinstance(session, scoped_session) else session
    # PostgreSQL refuses PREPARE TRANSACTION after a NOTIFY.
    if own.get_bind().dialect.name != "postgresql" or own.twophase:
        return False
    return own.execute(_NOTIFY).first() is not None


class Notifications:
    """A connection that listens. Not for use by two threads at once.

    :param engine: the app's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._books = Bookkeeping(engine, patience=0)

    def listen(self) -> bool:
        """Listen from now on, or answer that it would be in vain: a pooler would swallow all."""
        if self._books.dialect.name != "postgresql" or self._books.attempt(is_pooled):
            return False
        self._books.rows(text(f"LISTEN {CHANNEL}"))
        return True

    def wait(self, seconds: float) -> bool:
        """Wait so long for a notification; whether one came.

        :raises psycopg.OperationalError: the connection broke.
        """

        def heard(connection: Connection) -> bool:
            driver: Any = connection.connection.dbapi_connection
            return any(True for _ in driver.notifies(timeout=seconds, stop_after=1))

        return self._books.attempt(heard)

    def check(self) -> None:
        """Ask the server for a sign of life, or a dead connection would go on being silent.

        :raises DatabaseTrouble: there is none.
        """
        self._books.rows(text("SELECT 1"), repeat=False)

    def close(self) -> None:
        """Close the connection."""
        self._books.close()


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler such as PgBouncer stands between *connection* and PostgreSQL.

    The server told the client its process id when they met. A pooler tells one of its own.
    """
    driver: Any = connection.connection.dbapi_connection
    pid: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    return pid != int(driver.info.backend_pid)
