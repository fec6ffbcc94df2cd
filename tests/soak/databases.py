"""The faults of a soak that concern its database."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import make_url

from tests.postgres import LocalServer, Server
from tests.soak import odd_rows, timeline
from tests.soak.app import LEASE
from tests.soak.odd_rows import Odd
from tests.soak.timeline import Fault

#: How long a row is locked now and then, in seconds: longer than any tick may take.
LONG_LOCK = 25.0

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name <> 'nemesis' ORDER BY random() LIMIT %s
"""
BACKENDS = """
SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()
AND backend_type = 'client backend' AND application_name <> 'nemesis' ORDER BY random() LIMIT %s
"""
#: The rows whose lock would hold up a tick, the worst first: running runs, whose first are to be
#: reclaimed, runs to be claimed, and due definitions.
ROWS = (
    ("job_runs", "status = 'running'", "locked_until"),
    ("job_runs", "status IN ('queued', 'failed') AND run_at <= now()", "priority DESC, run_at"),
    ("job_definitions", "paused_at IS NULL", "next_run_at"),
)
LOCK = """
UPDATE {table} SET updated_at = updated_at WHERE id =
(SELECT id FROM {table} WHERE {where} ORDER BY {order} LIMIT 1 FOR UPDATE SKIP LOCKED)
"""

#: The process group for a connection that belongs to no tick.
NOBODY = -1


@dataclass(frozen=True, eq=False)
class Hold:
    """A fault that lasts for *seconds*, until *let_go* is called."""

    fault: Fault
    seconds: float
    let_go: Callable[[], Any]


class DatabaseFaults(ABC):
    """The faults of one kind of database.

    :ivar hold: takes each fault that is to end later.
    :ivar odd: the odd rows that were inserted.
    """

    sqlite: bool

    def __init__(self, url: str, seed: int) -> None:
        self.hold: Callable[[Hold], None]
        self.odd: list[Odd] = []
        self._url = make_url(url)
        self._random = random.Random(f"{seed}:database")
        self._left = odd_rows.kinds(self.sqlite)
        self._random.shuffle(self._left)

    @abstractmethod
    def faults(self) -> list[tuple[str, Callable[[], None], int]]:
        """Return the faults: each with its name and its weight."""

    @abstractmethod
    def _connect(self) -> Any:
        """Return a connection that commits each statement."""

    def _insert_odd_row(self) -> None:
        if not self._left:
            return
        with suppress(psycopg.OperationalError, sqlite3.OperationalError):
            with closing(self._connect()) as connection:
                statement, odd = odd_rows.insertion(self.sqlite, self._left[-1], len(self._left))
                (id_,) = connection.execute(statement).fetchone()
            self._left.pop()
            odd.id, odd.name = id_, odd.name or f"run {id_}"
            self.odd.append(odd)
            timeline.note("odd rows", note=f"{odd.what}: {odd.table} {id_}")


class PostgresFaults(DatabaseFaults):
    """Cut and hung connections, a server that restarts, locked rows, odd rows."""

    sqlite = False

    def __init__(self, url: str, seed: int, server: Server) -> None:
        super().__init__(url, seed)
        self._server = server

    def faults(self) -> list[tuple[str, Callable[[], None], int]]:
        """Return the faults: each with its name and its weight."""
        own = isinstance(self._server, LocalServer)
        return [
            ("cut", self._cut, 3),
            ("lock_row", self._lock_row, 4),
            ("odd_row", self._insert_odd_row, 4),
            *([("hang", self._hang, 2), ("restart", self._restart, 1)] if own else []),
        ]

    def _connect(self) -> psycopg.Connection:
        url = self._url.set(drivername="postgresql").render_as_string(False)
        return psycopg.connect(url, autocommit=True, connect_timeout=5, application_name="nemesis")

    def _cut(self) -> None:
        """Cut some connections at the server."""
        with suppress(psycopg.OperationalError), self._connect() as admin:
            for _ in admin.execute(CUT, [self._random.randint(1, 4)]).fetchall():
                timeline.note("connections cut")

    def _restart(self) -> None:
        """Restart the server, at times as if it had crashed."""
        assert isinstance(self._server, LocalServer)
        started = time.monotonic()
        self._server.stop(self._random.choice(["fast", "fast", "immediate"]))
        time.sleep(self._random.uniform(0, 2))
        self._server.start()
        timeline.add(Fault("restarts", started, time.monotonic(), delays=True))

    def _hang(self) -> None:
        """Stop some backends: their connections stay open, but nothing answers."""
        with suppress(psycopg.OperationalError), self._connect() as admin:
            for pid, name in admin.execute(BACKENDS, [self._random.randint(1, 3)]).fetchall():
                seconds = self._random.uniform(0.5, 3 * LEASE)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    group = int(name) if name.isdigit() else NOBODY
                    fault = Fault("connections hung", time.monotonic(), 0, group=group, delays=True)
                    self.hold(Hold(fault, seconds, _go_on(pid)))

    def _lock_row(self) -> None:
        """Lock a row in a transaction that stays open."""
        table, where, order = self._random.choice(ROWS)
        longest = self._random.choice([1, LEASE, 2 * LEASE, LONG_LOCK])
        seconds = longest * self._random.uniform(0.5, 1)
        with suppress(psycopg.OperationalError):
            connection = self._connect()
            connection.autocommit = False
            statement = LOCK.format(table=table, where=where, order=order)
            if not connection.execute(statement).rowcount:
                connection.close()
                return
            fault = Fault("rows locked", time.monotonic(), 0, note=f"{table}: {where}")
            self.hold(Hold(fault, seconds, connection.close))


class SqliteFaults(DatabaseFaults):
    """The write lock, held for a while, and odd rows."""

    sqlite = True

    def faults(self) -> list[tuple[str, Callable[[], None], int]]:
        """Return the faults: each with its name and its weight."""
        return [("lock", self._lock, 3), ("odd_row", self._insert_odd_row, 4)]

    def _lock(self) -> None:
        """Hold the write lock, at times for longer than a lease."""
        seconds = self._random.choice([1, LEASE, 2 * LEASE]) * self._random.uniform(0.2, 1)
        connection = self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            connection.close()
            return
        fault = Fault("write locks held", time.monotonic(), 0, delays=True)
        self.hold(Hold(fault, seconds, connection.close))

    def _connect(self) -> sqlite3.Connection:
        # Another thread closes it: see `Hold`.
        path = self._url.database or ""
        return sqlite3.connect(path, isolation_level=None, timeout=2, check_same_thread=False)


def _go_on(pid: int) -> Callable[[], None]:
    def go_on() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return go_on
