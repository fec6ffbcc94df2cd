"""Bound how long a statement may take on PostgreSQL, also when its connection hangs.

Settings such as ``statement_timeout`` cannot do it: a pooler would pass them on to others, and a
server that does not answer heeds none. So a thread watches the statements of bookkeeping. When one
takes too long, it cancels it in the server; if that does not help, it cuts the connection.

After an interruption, what its frames hold is freed: connections, cursors and their locks.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from types import FrameType
from typing import Any

from ..log import logger

#: How often the thread looks at the statements under way, in seconds.
CHECK_EVERY = 0.25
#: How long the thread stays without statements to watch, in seconds.
IDLE = 5.0
#: How long a cancel in the server may take before the connection is cut, in seconds.
CANCEL_WITHIN = 1.0


class Deadlines:
    """The statements under way in this process, each with its deadline and its connection."""

    def __init__(self) -> None:
        self._start_over()
        if hasattr(os, "register_at_fork"):  # A child has none of its parent's threads.
            os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        self._watched: dict[object, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def within(self, seconds: float, driver: Any) -> Generator[None]:
        """Let the statement in this block take *seconds* at most.

        :param driver: psycopg's connection that it uses.
        """
        key = object()
        self._watched[key] = (time.monotonic() + seconds, driver)
        self._ensure_thread()
        try:
            yield
        finally:
            self._watched.pop(key, None)

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                self._ending.clear()
                self._thread = threading.Thread(
                    target=self._watch, name="cronjobs-deadlines", daemon=True
                )
                self._thread.start()

    def end_thread(self) -> None:
        """End the thread, since this process is about to fork. The next statement starts it again.

        No statement may be under way.
        """
        thread = self._thread
        if thread is not None:
            self._ending.set()
            thread.join()
            self._thread = None

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while not self._ending.wait(CHECK_EVERY):
            now = time.monotonic()
            for key, (deadline, driver) in list(self._watched.items()):
                if now >= deadline:
                    self._end(key, driver)
            if self._watched:
                idle_since = now
            elif now - idle_since > IDLE:
                with self._lock:
                    if not self._watched:
                        self._thread = None
                        return

    def _end(self, key: object, driver: Any) -> None:
        logger.warning("A statement of bookkeeping takes too long, and is cancelled")
        cancel(driver)
        until = time.monotonic() + CANCEL_WITHIN
        while key in self._watched and time.monotonic() < until:
            time.sleep(0.02)
        if self._watched.pop(key, None) is not None:
            cut(driver)


#: Shared by all bookkeeping connections of the process.
deadlines: Deadlines = Deadlines()


def cancel(driver: Any) -> None:
    """Ask the server to cancel what *driver*, psycopg's connection, is doing."""
    with suppress(Exception):
        driver.cancel_safe(timeout=CANCEL_WITHIN)


def cut(driver: Any) -> None:
    """Shut down *driver*'s socket, so that whoever waits for it sees a broken connection."""
    with suppress(Exception):
        duplicate = os.dup(driver.fileno())
        with socket.socket(fileno=duplicate) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def cancel_query(frame: FrameType | None) -> None:
    """Cancel the query of psycopg's that is under way in *frame* or its callers, if one is.

    For an interruption that is about to be raised there. psycopg cancels the query for a
    KeyboardInterrupt alone; else the server would go on with it, and hold its locks, after the
    connection is closed.
    """
    psycopg = sys.modules.get("psycopg")
    while psycopg is not None and frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("psycopg."):
            # Not the variables of each frame: up to Python 3.12, to read them is to copy them.
            method = frame.f_code.co_varnames[:1] == ("self",)
            connection: Any = frame.f_locals.get("self") if method else None
            if isinstance(connection, psycopg.Connection):
                if connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    cancel(connection)
                return
        frame = frame.f_back


def free_frames(error: BaseException) -> None:
    """Free what the frames that *error* passed through hold, such as cursors.

    On SQLite an open cursor keeps the write lock, even of a closed connection. And an interruption
    outlives its run: without this, all that its handler held would live as long.

    After an interruption, also free what is left in a cycle: a connection that was about to be
    handed out would stay open until the garbage collector happens to come.
    """
    clear_chain(error)
    if not isinstance(error, Exception):
        gc.collect()


def clear_chain(error: BaseException) -> None:
    """Clear the frames of *error*, and of all errors that led to it or are inside it."""
    seen: set[int] = set()
    chain: list[object] = [error]
    while chain:
        link = chain.pop()
        if isinstance(link, BaseException) and id(link) not in seen:
            seen.add(id(link))
            with suppress(Exception):  # An exception's attributes may be code that raises.
                for frame, _ in walk_tb(link.__traceback__):
                    _clear(frame)
                chain += [link.__cause__, link.__context__]
                if isinstance(group := getattr(link, "exceptions", None), tuple):
                    chain += group


def _clear(frame: FrameType) -> None:
    """Clear the variables of *frame*, if it has ended."""
    with suppress(RuntimeError):  # It is at work.
        frame.clear()
        # Up to Python 3.12, whoever read them has made a copy, which lives until the next reading.
        _ = frame.f_locals
