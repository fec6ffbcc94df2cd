"""What works beside: threads, one of which goes first; a worker beside the server of the app."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundThread(Generic[T]):
    """Does pieces of work, one after the other, in a thread that starts with the first of them.

    :param do: does one, and never raises.
    :param most: how many may wait.
    """

    def __init__(self, name: str, do: Callable[[T], object], most: float = float("inf")) -> None:
        self._name = name
        self._do = do
        self._most = most
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, work: T) -> bool:
        """Let *work* be done soon. May be called from any thread.

        :returns: False if it is dropped: too much waits already, or `close` was called.
        :raises RuntimeError: no more threads can be started.
        """
        with self._starting:
            if self._closed or self._queue.qsize() >= self._most:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._queue.put(work)
        return True

    def close(self, patience: float) -> bool:
        """Wait until all is done, up to *patience* seconds; return whether it is.

        May be called again, to wait for longer.
        """
        with self._starting:
            self._closed = True
            if self._thread is None:
                return True
            self._queue.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            self._do(work)


#: How often Python asks a busy thread to give way to another while a worker works, in seconds.
SWITCH_SECONDS = 0.0001


@contextmanager
def switching_often() -> Generator[None]:
    """Let the threads of this process take turns often in this block.

    Only one thread runs Python code at a time, and a busy one is asked to give way only every 5 ms.
    The keeper waits for the server in each statement, and would continue 5 ms late, several times.
    Meanwhile the runner finishes its short runs, and then waits for the keeper.
    """
    before = sys.getswitchinterval()
    if before <= SWITCH_SECONDS:  # Another worker of this process has changed it.
        yield
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def patched_by_gevent() -> str:
    """Return what it means that gevent has replaced threads, as a sentence; empty if it has not."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return ""
    return (
        "gevent has patched threads, so leases are not renewed while a handler computes, and its "
        "runs end as lost. Run workers without monkey.patch_all(), such as by flask jobs work."
    )


def and_gevent(reason: str) -> str:
    """Return *reason*, why a lease was lost, and behind it `patched_by_gevent`."""
    return ". ".join(filter(None, (reason, patched_by_gevent())))


def start_worker(
    app: str | None,
    env: Mapping[str, str],
    by: str,
    user: int | None = None,
    group: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``flask jobs work``. It stops when this process has ended, however that ended.

    :param by: what this process is, for the doctor.
    :param app: what ``flask --app`` takes; None: Flask looks for it.
    :param user: as whom to run it, by number; None: as this process.
    :param group: likewise.
    """
    where = [] if app is None else ["--app", app]
    started = "--parent", str(os.getpid()), "--started-by", by
    return subprocess.Popen(
        [sys.executable, "-m", "flask", *where, "jobs", "work", *started],
        stdin=subprocess.DEVNULL,
        env=env,
        user=user,
        group=group,
    )
