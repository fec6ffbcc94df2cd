"""The processes of a soak: those of its hosts, and those whose parent was killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: How long a worker may continue, awake, after its parent was killed, in seconds.
ORPHAN_LIMIT = 10.0
#: How often the watcher polls, in seconds.
LOOK_EVERY = 0.2


@dataclass(frozen=True)
class Process:
    """One process, as /proc shows it."""

    pid: int
    parent: int
    group: int
    stopped: bool


class Processes:
    """Finds the processes that the hosts have started, by a variable that they inherit.

    So it also finds a worker whose parent was killed.

    :param hosts: the ids of the hosts' own processes.
    :param mark: ``NAME=value`` in the environment of the hosts.
    """

    def __init__(self, hosts: Collection[int], mark: str) -> None:
        self.hosts = frozenset(hosts)
        self._mark = mark.encode()
        self._ours: dict[int, bool] = {}

    def living(self) -> list[Process]:
        """Return all processes but the hosts themselves and zombies."""
        pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        self._ours = {pid: ours for pid, ours in self._ours.items() if pid in pids}
        processes = [_look(pid) for pid in sorted(pids - self.hosts) if self._is_ours(pid)]
        return [process for process in processes if process is not None]

    def _is_ours(self, pid: int) -> bool:
        if pid not in self._ours:
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                return False
            self._ours[pid] = self._mark in environment.split(b"\0")
        return self._ours[pid]

    def orphans(self, living: Collection[Process]) -> list[Process]:
        """Return those of *living* whose parent is neither a host nor one of them."""
        parents = self.hosts | {process.pid for process in living}
        return [process for process in living if process.parent not in parents]


def _look(pid: int) -> Process | None:
    with suppress(OSError):
        # The command's name is in parentheses, and may contain any character.
        _, _, facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        state, parent, group, *_ = facts.split()
        if state not in "ZX":
            return Process(pid, int(parent), int(group), state in "Tt")
    return None


class Watcher(threading.Thread):
    """Watches the processes: reports the stopped ones, and measures how long orphans live.

    :param on_stopped: called with each stopped process at each poll.
    """

    def __init__(self, processes: Processes, on_stopped: Callable[[Process], None]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.processes = processes
        self.awake: dict[int, float] = {}
        """For how many seconds each orphan existed without being stopped."""
        self._on_stopped = on_stopped
        self._stopped = threading.Event()

    def run(self) -> None:
        """Poll until stopped."""
        before = time.monotonic()
        while not self._stopped.wait(LOOK_EVERY):
            now = time.monotonic()
            self._look(now - before)
            before = now

    def _look(self, passed: float) -> None:
        living = self.processes.living()
        for process in living:
            # It is read again, since the process may have been released meanwhile.
            if process.stopped and (again := _look(process.pid)) and again.stopped:
                self._on_stopped(process)
        for orphan in self.processes.orphans(living):
            if not orphan.stopped:
                self.awake[orphan.pid] = self.awake.get(orphan.pid, -passed) + passed

    def stop(self) -> None:
        """Stop polling."""
        self._stopped.set()
        self.join()

    def left(self, within: float) -> list[Process]:
        """Return the processes that still exist after *within* seconds, and kill them."""
        until = time.monotonic() + within
        while (living := self.processes.living()) and time.monotonic() < until:
            time.sleep(LOOK_EVERY)
        for process in living:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return living
