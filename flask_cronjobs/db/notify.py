"""LISTEN and NOTIFY: on PostgreSQL, an enqueue wakes the resident workers that wait for runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from .connection import Bookkeeping
from .dialect import POSTGRESQL, dialect_of

CHANNEL = "flask_cronjobs"
#: Minimum seconds between two notifications from one process. A worker polls again after this time,
#: since one notification may mean several runs. The time is counted from the enqueue, not from the
#: commit. So if the transaction of a notification is rolled back or commits late, the runs that
#: other threads enqueue meanwhile wait for a worker's next poll, which comes within two seconds.
WAKE_SECONDS = 0.05

# NOTIFY takes a lock at commit that all notifying transactions of the server share, even without a
# listener. So it is sent only if a worker listens; a listening worker writes a row every minute.
#: The query that wakes the listening workers when its transaction commits. It returns true if there
#: are any, and no row or NULL otherwise. It is for PostgreSQL only, and not for a session with
#: ``twophase``, since PostgreSQL refuses PREPARE TRANSACTION after a NOTIFY.
WAKE = f"""
    SELECT pg_notify('{CHANNEL}', '') IS NOT NULL FROM (
        SELECT 1 FROM job_ticks
        WHERE started_at > {POSTGRESQL.now} - interval '3 minutes'
            AND listening AND finished_at IS NULL
        LIMIT 1
    ) AS listener
"""


def wake_listeners(session: Session, connection: Connection) -> bool:
    """Wake the listening workers when *session*'s transaction commits.

    :param connection: the connection on which the session writes runs.
    :returns: whether any worker listens.
    """
    may_notify = not (dialect_of(connection.engine).one_writer or session.twophase)
    return may_notify and bool(connection.scalar(text(WAKE)))


def wake_all(books: Bookkeeping) -> None:
    """Wake the listening workers now, because a worker has made runs runnable."""
    if not books.dialect.one_writer:
        books.rows(text(f"SELECT pg_notify('{CHANNEL}', '')"))


class Notifications(Bookkeeping):
    """A connection that listens for notifications, and does not retry."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, patience=0)

    def listen(self) -> bool:
        """Start listening; return False if no notification can arrive.

        SQLite has no notifications, and a pooler such as PgBouncer does not forward them.
        """
        if self.dialect.one_writer or self.call(is_pooled):
            return False
        self.rows(text(f"LISTEN {CHANNEL}"))
        return True

    def wait(self, seconds: float) -> bool:
        """Wait at most *seconds* for a notification; return whether one came.

        :raises psycopg.OperationalError: the connection broke.
        """

        def receive(connection: Connection) -> bool:
            driver: Any = connection.connection.dbapi_connection
            return any(True for _ in driver.notifies(timeout=seconds, stop_after=1))

        return self.call(receive)

    def check(self) -> None:
        """Check that the server answers, since a dead connection just stays silent.

        :raises DatabaseTrouble: it does not answer.
        """
        self.rows(text("SELECT 1"))


def is_pooled(connection: Connection) -> bool:
    """Return whether a pooler such as PgBouncer is between *connection* and PostgreSQL.

    A server sends its process id when a client connects, while a pooler sends its own number.
    """
    driver: Any = connection.connection.dbapi_connection
    pid: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    return pid != int(driver.info.backend_pid)
