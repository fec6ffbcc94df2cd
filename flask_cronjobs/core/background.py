"""Background threads, processes that handlers fork, and a worker beside the app's server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Generic, NoReturn, TypeVar

from ..log import logger

T = TypeVar("T")


class BackgroundThread(Generic[T]):
    """Does pieces of work one after the other in a thread, which starts with the first of them.

    :param do: does one piece of work, and never raises.
    :param most: the most pieces of work that may wait.
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
        """Queue *work*. Any thread may call this.

        :returns: False if it was dropped, since too much work is waiting or `close` was called.
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
        """Wait up to *patience* seconds until all work is done; return whether it is.

        It may be called again to wait longer.
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


#: While a worker runs, Python asks a busy thread to yield to another after this many seconds.
SWITCH_SECONDS = 0.0001


@contextmanager
def switching_often() -> Generator[None]:
    """Make the threads of this process take turns often in this block.

    Only one thread runs Python code at a time, and by default a busy thread is asked to yield every
    5 ms. The keeper waits for the server in each statement, and could resume up to 5 ms after the
    answer. Meanwhile the runner would finish its short runs, and wait for the keeper.
    """
    interval = sys.getswitchinterval()
    if interval <= SWITCH_SECONDS:  # Another worker in this process has changed it.
        yield
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def patched_by_gevent() -> str:
    """Return a warning if gevent has patched threads; otherwise an empty string."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return ""
    return (
        "gevent has patched threads, so no lease is renewed while a handler computes, and a long "
        "computation loses its run. Run workers without monkey.patch_all(), for example with flask "
        "jobs work."
    )


def and_gevent(reason: str) -> str:
    """Return *reason*, which says why a lease was lost, and any warning of `patched_by_gevent`."""
    return ". ".join(filter(None, (reason, patched_by_gevent())))


def flush_output() -> None:
    """Flush the buffers of standard output and standard error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # A full disk, a closed pipe.
            stream.flush()


def end_fork() -> NoReturn:
    """End this process, which a handler has forked, and which has left the handler.

    Otherwise it would continue as a second worker with the same claims.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        status = int(error is not None)
        logger.error(
            "Process %d, which a handler forked, did not exit in the handler, so it was ended. End "
            "a forked process with os._exit().",
            os.getpid(),
            exc_info=error,
        )
    flush_output()
    os._exit(status & 0xFF)


def start_worker(
    app: str | None,
    env: Mapping[str, str],
    by: str,
    user: int | None = None,
    group: int | None = None,
    script: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start ``flask jobs work``, which stops once this process has ended, for whatever reason.

    :param app: the argument of ``flask --app``; None lets Flask find the app.
    :param by: the name of this process's server, such as ``gunicorn``, which the doctor reports.
    :param user: the id of the user to run it as; None for this process's user.
    :param group: the id of the group to run it as; None for this process's group.
    :param script: the arguments with which Python runs the app's own script instead of ``flask``.
    """
    app_option = [] if app is None else ["--app", app]
    options = "--parent", str(os.getpid()), "--started-by", by
    return subprocess.Popen(
        [sys.executable, *(script or ("-m", "flask")), *app_option, "jobs", "work", *options],
        stdin=subprocess.DEVNULL,
        env=env,
        user=user,
        group=group,
    )
