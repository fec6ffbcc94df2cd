"""Bounds for bookkeeping statements: their plans, their time, and their interruption.

On PostgreSQL each statement has one plan, made once, and runs in READ COMMITTED, whatever default
the role or the database has. A queue fills and empties within minutes, so its statistics are wrong
most of the time. With wrong statistics the planner reads and sorts a whole backlog for each claim,
or compares each outcome with each run. Every bookkeeping statement reads few rows and has an index
for them, so we forbid the other plans. That is set for each transaction, because a pooler would
pass a session's settings on to other clients.

For the same reason ``statement_timeout`` cannot bound the statements, and a server that does not
answer would ignore it. So a thread watches them. It cancels a statement that takes too long, and
if that does not help, it cuts the connection.

After an interruption, everything that its frames hold is freed: connections, cursors and locks.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from traceback import clear_frames
from types import FrameType
from typing import Any, ClassVar, TypeVar

from ..log import logger
from ..text import pattern

_OFF = (
    # These read a whole table, or everything that an index finds, and sort it.
    *("enable_seqscan", "enable_bitmapscan", "enable_sort"),
    # These compare every row of one side with every row of the other. Hashing remains allowed.
    *("enable_nestloop", "enable_mergejoin"),
    # Compiling a statement takes a hundred times as long as running it.
    "jit",
)
#: Sent before each statement that has a plan; its settings end with the transaction. It returns
#: the id of the server process, and the isolation level that a single statement would have.
SETTINGS = (
    "SELECT pg_backend_pid(), current_setting('default_transaction_isolation'), "
    "set_config('plan_cache_mode', 'force_generic_plan', true), "
    + ", ".join(f"set_config('{name}', 'off', true)" for name in _OFF)
)
#: The statement that begins a bookkeeping transaction.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

_HAS_PLAN = pattern(r"(?i)\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b")


def keep_plans(driver: Any) -> None:
    """Make a psycopg connection send `SETTINGS` together with each statement that has a plan.

    Both are sent at once and form one transaction, so no round trip is added. Without pipelines,
    which need libpq 14, the planner stays free to choose.

    BEGIN and COMMIT are sent, too, if a single statement would have another isolation level. A
    session setting would not do, since a pooler would pass it on to the app.

    Planning a claim takes ten times as long as running it, so its plan is kept as a prepared
    statement, unless the app has turned those off or a pooler is in between, which may not support
    them. A pooler is in between if the server process that answers is not the one that we connected
    to.
    """
    from psycopg import Pipeline

    may_prepare = driver.prepare_threshold is not None
    # Prepare nothing until we know which process serves us. Prepare nothing without the settings,
    # either: a plan that is made for one batch may be slow for another.
    driver.prepare_threshold = None
    if Pipeline.is_supported():
        driver.cursor_factory = _steady(driver.cursor_factory, may_prepare)


def _steady(base: Any, may_prepare: bool) -> type:
    """Return the cursor of `keep_plans` for one connection, made from *base*."""
    from psycopg.pq import TransactionStatus

    is_read_committed = False  # The server's default is not known yet.

    class SteadyCursor(base):  # type: ignore[misc]
        # While `collects` is true, statements are held back. They are sent together with the first
        # statement after that, in its transaction. `held` has the cursor of each, and the function
        # that sends it. SQLAlchemy sees none of their rows.
        collects = False
        held: ClassVar[list[tuple[Any, Callable[[], object]]]] = []

        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            nonlocal is_read_committed
            if not (isinstance(query, str) and _HAS_PLAN().match(query)):
                return base.execute(self, query, *args, **options)
            connection, settings = self.connection, base(self.connection)
            if self.collects:
                cursor = base(connection)  # SQLAlchemy closes `self`, which gets no rows.
                self.held.append((cursor, partial(cursor.execute, query, *args, **options)))
                return self
            send_this = partial(base.execute, self, query, *args, **options)
            sends: list[Callable[[], object]] = [*(send for _, send in self.held), send_this]
            is_alone = connection.info.transaction_status == TransactionStatus.IDLE
            _send_with_settings(connection, settings, sends, is_alone and not is_read_committed)
            server_pid, default = (settings.pgresult.get_value(0, place) for place in (0, 1))
            is_direct = may_prepare and int(server_pid) == connection.info.backend_pid
            # A tick with work sends its claim several times, so it is prepared at once.
            connection.prepare_threshold = 0 if is_direct else None
            is_read_committed = default == b"read committed"
            return self

    return SteadyCursor


def _send_with_settings(
    connection: Any, settings: Any, sends: Iterable[Callable[[], object]], begins: bool
) -> None:
    """Send `SETTINGS` and further statements in one pipeline.

    :param settings: the cursor for `SETTINGS`.
    :param sends: functions that send one statement each.
    :param begins: whether to add BEGIN and COMMIT.
    """
    from psycopg import Error, OperationalError

    first_error: Error | None = None
    try:
        with connection.pipeline():
            try:
                if begins:
                    connection.execute(BEGIN)
                settings.execute(SETTINGS)
                for send in sends:
                    send()
                if begins:
                    connection.execute("COMMIT")
            except Error as error:  # psycopg would log the errors that follow it.
                first_error = error
    except Error as error:
        first_error = first_error or error
    except IndexError as error:  # psycopg lost count of a failed pipeline's results.
        connection.close()
        first_error = OperationalError(f"the connection is lost: {error}")
    if first_error is not None:
        if begins:
            with suppress(Error):
                connection.rollback()
        raise first_error


T = TypeVar("T")

#: The largest number of errors in a chain whose frames are cleared.
MAX_CHAIN_ERRORS = 8


#: Seconds between two checks of the running statements.
CHECK_SECONDS = 0.25
#: Seconds for which the thread waits for another statement before it ends.
IDLE_SECONDS = 5.0
#: Seconds that a cancel may take before the connection is cut.
CANCEL_SECONDS = 1.0


class Deadlines:
    """The running statements of this process, each with its deadline and its connection."""

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
        """Limit the statement in this block to *seconds*.

        :param driver: the psycopg connection that it uses.
        """
        key = object()
        with self._lock:
            if self._thread is None:
                self._ending.clear()
                watch, name = self._watch, "cronjobs-deadlines"
                thread = threading.Thread(target=watch, name=name, daemon=True)
                thread.start()  # The system may refuse it.
                self._thread = thread
            self._watched[key] = (time.monotonic() + seconds, driver)
        try:
            yield
        finally:
            self._watched.pop(key, None)

    def end_thread(self) -> None:
        """End the thread before this process forks. The next statement starts it again.

        No statement may be running.
        """
        thread = self._thread
        if thread is not None:
            self._ending.set()
            thread.join()
            self._thread = None

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while not self._ending.wait(CHECK_SECONDS):
            now = time.monotonic()
            for key, (deadline, driver) in list(self._watched.items()):
                if now >= deadline:
                    self._end(key, driver)
            if self._watched:
                idle_since = now
            elif now - idle_since > IDLE_SECONDS:
                with self._lock:
                    if not self._watched:
                        self._thread = None
                        return

    def _end(self, key: object, driver: Any) -> None:
        logger.warning("A bookkeeping statement takes too long, so it is cancelled")
        cancel(driver)
        until = time.monotonic() + CANCEL_SECONDS
        while key in self._watched and time.monotonic() < until:
            time.sleep(0.02)
        if self._watched.pop(key, None) is not None:
            cut(driver)


#: Shared by all bookkeeping connections of the process.
deadlines: Deadlines = Deadlines()


def cancel(driver: Any) -> None:
    """Ask the server to cancel the query of *driver*, a psycopg connection."""
    with suppress(Exception):
        driver.cancel_safe(timeout=CANCEL_SECONDS)


def cut(driver: Any) -> None:
    """Shut down *driver*'s socket, so that a thread waiting for it sees a broken connection."""
    with suppress(Exception):
        duplicate = os.dup(driver.fileno())
        with socket.socket(fileno=duplicate) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def cancel_query(frame: FrameType | None) -> None:
    """Cancel the psycopg query that runs in *frame* or its callers, if there is one.

    Call this before an interruption is raised there. psycopg cancels a query for KeyboardInterrupt
    only; otherwise the server would continue it, and hold its locks, after the connection is
    closed.
    """
    psycopg = sys.modules.get("psycopg")
    while psycopg is not None and frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("psycopg."):
            # Up to Python 3.12, reading a frame's variables copies them all, so look at few.
            method = frame.f_code.co_varnames[:1] == ("self",)
            connection: Any = frame.f_locals.get("self") if method else None
            if isinstance(connection, psycopg.Connection):
                if connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    cancel(connection)
                # In a pipeline, psycopg may raise another error instead, and leave the connection
                # in pipeline mode. Then every later query on it would fail, even after the pool
                # has handed it to others.
                if connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF:
                    connection.close()
                return
        frame = frame.f_back


def free_frames(error: BaseException) -> None:
    """Free the objects, such as cursors, in the frames that *error* passed through.

    On SQLite an open cursor keeps the write lock, even if its connection is closed. And since an
    interruption outlives its run, everything that its handler held would live as long.

    After an interruption, reference cycles are collected, too: otherwise a connection that was
    about to be handed out would stay open until the garbage collector runs.
    """
    clear_chain(error)
    if not isinstance(error, Exception):
        gc.collect()


def clear_chain(error: BaseException) -> None:
    """Clear the frames of *error*, and of the errors that were being handled when it was raised."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN_ERRORS):
        if link is None:
            break
        clear_frames(link.__traceback__)
        link = link.__context__
