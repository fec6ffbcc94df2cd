"""CPU time of this process and of the server, which other work on the machine does not change."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psycopg
from sqlalchemy import make_url


class Clock:
    """Measures the CPU seconds of this process, and of the processes that the server has reaped.

    :param url: of the database; SQLite has no server.
    """

    def __init__(self, url: str) -> None:
        self._server: int | None = None
        if make_url(url).get_backend_name() == "postgresql":
            plain = make_url(url).set(drivername="postgresql").render_as_string(False)
            with psycopg.connect(plain, autocommit=True) as connection:
                self._server = int(_stat(connection.info.backend_pid)[1])

    def __call__(self) -> float:
        """Return the CPU seconds so far, after the server has had time to reap its processes."""
        if self._server is None:
            return time.process_time()
        time.sleep(0.2)
        ticks = sum(int(field) for field in _stat(self._server)[11:15])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a running process, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
