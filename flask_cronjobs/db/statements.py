"""What keeps statements of bookkeeping in bounds: their plans, their time, what interrupts them.

On PostgreSQL each has one plan, which is made once, in READ COMMITTED, whatever the role or the
database has as its default. A queue is filled and emptied within minutes, so statistics about it
are wrong most of the time. With wrong ones the planner reads and sorts a whole backlog for each
claim, or compares each outcome with each run. Each statement of bookkeeping reads few rows, and
there is an index for them. So we forbid what is not needed, for each transaction by itself: behind
a pooler, a setting of the session would be passed on to others.

For the same reason ``statement_timeout`` cannot bound them, and a server that does not answer heeds
none. So a thread watches them. When one takes too long, it cancels it in the server; if that does
not help, it cuts the connection.

After an interruption, what its frames hold is freed: connections, cursors and their locks.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from traceback import clear_frames
from types import FrameType
from typing import Any, TypeVar

from ..log import logger
from ..text import pattern

_OFF = (
    # Read a whole table, or all that an index finds, and sort it.
    *("enable_seqscan", "enable_bitmapscan", "enable_sort"),
    # Compare each row of one side with each of the other. What is left is to hash one of them.
    *("enable_nestloop", "enable_mergejoin"),
    # Compile a statement, which takes a hundred times as long as to run it.
    "jit",
)
#: Sent before each statement that has a plan; its settings end with the transaction. It returns
#: the process that serves it, and the isolation that a statement by itself would have.
SETTINGS = (
    "SELECT pg_backend_pid(), current_setting('default_transaction_isolation'), "
    "set_config('plan_cache_mode', 'force_generic_plan', true), "
    + ", ".join(f"set_config('{name}', 'off', true)" for name in _OFF)
)
#: Begins a transaction of bookkeeping.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

_HAS_PLAN = pattern(r"(?i)\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b")


class Ahead:
    """Statements that are held back, to be sent ahead of the next one and in its transaction.

    Each goes through SQLAlchemy as all do, but has no answer there.

    :ivar collects: whether to hold back what is sent now.
    """

    def __init__(self) -> None:
        self.collects: bool = False
        self._held: list[tuple[Any, Callable[[], object]]] = []

    def hold(self, cursor: Any, send: Callable[[], object]) -> None:
        """Hold back what *send* sends by *cursor*."""
        self._held.append((cursor, send))

    def send(self) -> None:
        """Send what is held back."""
        for _, send in self._held:
            send()

    def answers(self) -> list[Sequence[Any]]:
        """Return the rows that each has answered, after the next statement was sent."""
        return [cursor.fetchall() for cursor, _ in self._held]

    def forget(self) -> None:
        """Hold back nothing more."""
        self.collects = False
        self._held.clear()


def ahead_of(driver: Any) -> Ahead | None:
    """Return what a connection of `keep_plans` holds back; None if it has no pipelines."""
    return getattr(driver.cursor_factory, "ahead", None)


def keep_plans(driver: Any) -> None:
    """Let a psycopg connection send `SETTINGS` along with each statement that has a plan.

    Both are sent at once and make one transaction, so it takes no more round trips than the
    statement alone. Without pipelines, which libpq has had since version 14, the planner is free.

    So do BEGIN and COMMIT go along with it where it would have another isolation by itself. They
    are not a setting of the session, since a pooler would pass that on to the app.

    To plan a claim takes ten times as long as to run it, so its plan is kept as a prepared
    statement; but not behind a pooler, which may not know those. There, the process that serves us
    is not the one that the connection began with. Nor if the app has turned them off.
    """
    from psycopg import Pipeline

    may_prepare = driver.prepare_threshold is not None
    # Until we know who serves us; and without the settings, a plan for any batch may be slow.
    driver.prepare_threshold = None
    if Pipeline.is_supported():
        driver.cursor_factory = _steady(driver.cursor_factory, may_prepare)


def _steady(base: Any, may_prepare: bool) -> type:
    """Return the cursor of `keep_plans` for one connection, made from *base*."""
    from psycopg.pq import TransactionStatus

    is_read_committed = False  # Until we know the default.

    class SteadyCursor(base):  # type: ignore[misc]
        ahead = Ahead()

        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            nonlocal is_read_committed
            if not (isinstance(query, str) and _HAS_PLAN().match(query)):
                return base.execute(self, query, *args, **options)
            connection, settings = self.connection, base(self.connection)
            if self.ahead.collects:
                cursor = base(connection)  # SQLAlchemy closes this one, which has no rows.
                self.ahead.hold(cursor, partial(cursor.execute, query, *args, **options))
                return self

            def send() -> None:
                self.ahead.send()
                base.execute(self, query, *args, **options)

            is_alone = connection.info.transaction_status == TransactionStatus.IDLE
            _send_with_settings(connection, settings, send, is_alone and not is_read_committed)
            served_by, default = (settings.pgresult.get_value(0, place) for place in (0, 1))
            direct = may_prepare and int(served_by) == connection.info.backend_pid
            # A tick that has work sends its claim several times, so it is prepared at once.
            connection.prepare_threshold = 0 if direct else None
            is_read_committed = default == b"read committed"
            return self

    return SteadyCursor


def _send_with_settings(
    connection: Any, settings: Any, send: Callable[[], object], begins: bool
) -> None:
    """Send `SETTINGS` by the cursor *settings* and statements by *send*, all at once.

    :param begins: whether to send BEGIN and COMMIT, too.
    """
    from psycopg import Error, OperationalError

    first: Error | None = None
    try:
        with connection.pipeline():
            try:
                if begins:
                    connection.execute(BEGIN)
                settings.execute(SETTINGS)
                send()
                if begins:
                    connection.execute("COMMIT")
            except Error as error:  # psycopg would log what comes after it.
                first = error
    except Error as error:
        first = first or error
    except IndexError as error:  # psycopg lost count of a failed pipeline's answers.
        connection.close()
        first = OperationalError(f"the connection is lost: {error}")
    if first is not None:
        if begins:
            with suppress(Error):
                connection.rollback()
        raise first


T = TypeVar("T")

#: Of how many errors in a chain the frames are cleared.
MAX_CHAIN = 8


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
    """Clear the frames of *error*, and of the errors that were being handled when it was raised."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            break
        clear_frames(link.__traceback__)
        link = link.__context__
