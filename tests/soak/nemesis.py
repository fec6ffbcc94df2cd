"""The nemesis of a soak: random faults, each counted."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from tests.postgres import LocalServer, Server
from tests.soak.app import LEASE

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s
"""


class Nemesis(threading.Thread):
    """Troubles the ticks of *hosts*, and their database.

    :param server: the PostgreSQL server; None for SQLite.
    """

    def __init__(
        self,
        hosts: Sequence[subprocess.Popen[Any]],
        url: str,
        server: Server | None,
        seed: int,
    ) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.skewed = server is not None
        """Whether the hosts' clocks can be wrong: SQLite's clock is that of the process."""
        self._hosts = hosts
        self._url = make_url(url)
        self._server = server
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._frozen: dict[int, float] = {}

    def stop(self) -> None:
        """Stop troubling, and let all that is frozen go on."""
        self._stopped.set()
        self.join()
        self._thaw(float("inf"))

    def run(self) -> None:
        """Until stopped, do harm."""
        faults: list[tuple[Callable[[], None], int]] = [
            (self._kill, 6),
            (self._freeze, 4),
            (self._terminate, 4),
        ]
        faults += [(self._cut, 3), (self._restart, 1)] if self._server else [(self._lock, 2)]
        weights = [weight for _, weight in faults]
        try:
            while not self._stopped.wait(self._random.uniform(0.3, 1.5)):
                self._thaw(time.monotonic())
                self._random.choices([fault for fault, _ in faults], weights)[0]()
        except BaseException as error:
            self.error = error

    def _kill(self) -> None:
        if self._signal(signal.SIGKILL):
            self.counts["kills"] += 1

    def _terminate(self) -> None:
        if self._signal(signal.SIGTERM):
            self.counts["terms"] += 1

    def _freeze(self) -> None:
        pid = self._signal(signal.SIGSTOP)
        if pid:
            self.counts["stops"] += 1
            self._frozen[pid] = time.monotonic() + self._random.uniform(0.2, 2.5 * LEASE)

    def _thaw(self, now: float) -> None:
        for pid, until in list(self._frozen.items()):
            if until <= now:
                del self._frozen[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> int | None:
        """Send a random process of a random host a signal; its id, if there was one."""
        host = self._random.choice(self._hosts)
        victims = _descendants(host.pid)
        if not victims:
            return None
        pid = self._random.choice(victims)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return pid
        return None

    def _cut(self) -> None:
        """Cut some connections at the server."""
        plain = self._url.set(drivername="postgresql").render_as_string(False)
        with suppress(psycopg.OperationalError), psycopg.connect(plain, autocommit=True) as admin:
            cut = admin.execute(CUT, [self._random.randint(1, 4)]).fetchall()
            self.counts["connections cut"] += len(cut)

    def _restart(self) -> None:
        """Restart the server, now and then as if it had crashed."""
        if isinstance(self._server, LocalServer):
            self._server.stop(self._random.choice(["fast", "fast", "immediate"]))
            time.sleep(self._random.uniform(0, 2))
            self._server.start()
            self.counts["restarts"] += 1

    def _lock(self) -> None:
        """Hold SQLite's write lock for up to 3 s."""
        path = self._url.database or ""
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        try:
            with suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(self._random.uniform(0.1, 3))
                connection.execute("ROLLBACK")
                self.counts["locks held"] += 1
        finally:
            connection.close()


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            found += [child, *_descendants(child)]
    return found
