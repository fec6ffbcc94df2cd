"""What an interrupted handler must not leave: frames, locks, connections, threads, timers."""

from __future__ import annotations

import gc
import signal
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from sqlalchemy import make_url

#: How long another writer may have to wait, in seconds.
LOCK_WITHIN = 0.5
#: How long a connection may take to be closed at the server, in seconds.
CLOSED_WITHIN = 1.0


class Frames:
    """Notices when something in a handler's frame outlives its handler.

    :ivar kept: what was still alive when the next run had begun.
    """

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._held: tuple[weakref.ref[object], str] | None = None

    def keep(self, burden: object, whose: str) -> None:
        """Watch *burden*, which a local variable of a handler holds."""
        self._held = (weakref.ref(burden), whose)

    def check(self, when: str) -> None:
        """Check whether the watched burden is gone, without help of the garbage collector."""
        held, self._held = self._held, None
        if held is None or held[0]() is None:
            return
        gc.collect()
        until = "until the garbage collector comes" if held[0]() is None else "for good"
        self.kept.append(f"the frame of {held[1]} is kept {until}: seen in {when}")


class SqliteInspector:
    """Inspects a SQLite file from outside of the package."""

    def __init__(self, url: str) -> None:
        self._path = make_url(url).database or ""

    def locks(self) -> Iterator[str]:
        """Yield a problem if another connection cannot commit at once, as beside a reader."""
        connection = sqlite3.connect(self._path, timeout=LOCK_WITHIN, isolation_level=None)
        with closing(connection):
            try:
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                yield f"a lock is left: {error}"

    def connections(self) -> Iterator[str]:
        """Yield a problem if descriptors of the file are open in this process."""
        paths: list[str] = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                paths.append(str(descriptor.readlink()))
        still_open = [path for path in paths if path.startswith(self._path)]
        if still_open:
            yield f"{len(still_open)} descriptors of the database are open: {sorted(still_open)}"


class PostgresInspector:
    """Inspects a PostgreSQL database from outside of the package."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url).set(drivername="postgresql").render_as_string(False)

    def locks(self) -> Iterator[str]:
        """Yield a problem if another connection cannot write at once, with those in its way."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            try:
                connection.execute(f"SET lock_timeout = '{LOCK_WITHIN * 1000:g}ms'")
                connection.execute("UPDATE fuzz_shared SET number = number")
            except psycopg.errors.LockNotAvailable:
                yield f"a lock is left by {connection.execute(_OTHERS).fetchall()}"

    def connections(self) -> Iterator[str]:
        """Yield a problem if there are other connections, though all should be closed."""
        until = time.monotonic() + CLOSED_WITHIN
        with psycopg.connect(self._url, autocommit=True) as connection:
            while others := connection.execute(_OTHERS).fetchall():
                if time.monotonic() > until:
                    yield f"{len(others)} connections are open: {others}"
                    return
                time.sleep(0.02)


_OTHERS = """
SELECT pid, state, left(query, 80) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def inspector(url: str) -> SqliteInspector | PostgresInspector:
    """Return the inspector of the database at *url*."""
    return SqliteInspector(url) if url.startswith("sqlite") else PostgresInspector(url)


def threads() -> Iterator[str]:
    """Yield a problem if threads of the package are running, or if its timer is set."""
    # The thread that watches statements ends without help, some seconds after the last one.
    names = {thread.name for thread in threading.enumerate() if "cronjobs" in thread.name}
    names -= {"cronjobs-deadlines"}
    if names:
        yield f"threads are at work: {sorted(names)}"
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield "the timer of a timeout is set"
