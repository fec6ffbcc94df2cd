"""Keep PostgreSQL to one plan for each statement of bookkeeping, and let it plan only once.

And keep each statement to READ COMMITTED, whatever the role or the database has as its default.

A queue is filled and emptied within minutes, so statistics about it are wrong most of the time.
With wrong ones the planner reads and sorts a whole backlog for each claim, or compares each outcome
with each run. Each statement of bookkeeping reads few rows, and there is an index for them. So we
forbid what is not needed, for each transaction by itself: behind a pooler, a setting of the session
would be passed on to others.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

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
#: How often psycopg sends a statement before it prepares it. A tick sends most of them once.
PREPARED_AFTER = 1

_HAS_PLAN = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


def keep_plans(driver: Any) -> None:
    """Let a psycopg connection send `SETTINGS` along with each statement that has a plan.

    Both are sent at once and make one transaction, so it takes no more round trips than the
    statement alone. Without pipelines, which libpq has had since version 14, the planner is free.

    So do BEGIN and COMMIT go along with it where it would have another isolation by itself. They
    are not a setting of the session, since a pooler would pass that on to the app.

    To plan a claim takes several times as long as to run it, so its plan is kept as a prepared
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
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            nonlocal is_read_committed
            if not (isinstance(query, str) and _HAS_PLAN.match(query)):
                return base.execute(self, query, *args, **options)
            connection, settings = self.connection, base(self.connection)
            send = partial(base.execute, self, query, *args, **options)
            is_alone = connection.info.transaction_status == TransactionStatus.IDLE
            _send_with_settings(connection, settings, send, is_alone and not is_read_committed)
            served_by, default = (settings.pgresult.get_value(0, place) for place in (0, 1))
            direct = may_prepare and int(served_by) == connection.info.backend_pid
            connection.prepare_threshold = PREPARED_AFTER if direct else None
            is_read_committed = default == b"read committed"
            return self

    return SteadyCursor


def _send_with_settings(
    connection: Any, settings: Any, send: Callable[[], object], begins: bool
) -> None:
    """Send `SETTINGS` by the cursor *settings* and a statement by *send*, both at once.

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

#: How long to wait for the first byte in one go, in seconds. Then psycopg looks after the rest.
AT_ONCE = 1.0


def wait_in(driver: Any, waiting: Callable[[], AbstractContextManager[None]]) -> None:
    """Let *driver*, psycopg's connection, wait for the begin of a result inside a context.

    The rest of the result is on its way by then. psycopg reads it in pieces.

    :param waiting: makes the context, in place of one of an earlier call.
    """
    driver.__dict__.pop("wait", None)
    if waiting is nullcontext or not hasattr(select, "poll"):  # On Windows.
        return
    from psycopg.waiting import WAIT_R

    wait = driver.wait

    def steps(work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Do the steps of *work*, which yields what it waits for."""
        waited = False
        try:
            wanted = next(work)
            while True:
                if wanted == WAIT_R and not waited:
                    waited = True
                    with waiting():
                        _wait_for_byte(driver.fileno())
                wanted = work.send((yield wanted))
        except StopIteration as end:
            result: T = end.value
            return result

    def wait_outside(work: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        result: T = wait(steps(work), *args, **options)
        return result

    driver.wait = wait_outside


def _wait_for_byte(file_number: int) -> None:
    poll = select.poll()
    poll.register(file_number, select.POLLIN)
    poll.poll(AT_ONCE * 1000)
