"""Let other threads go on while a psycopg connection waits for its server."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

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
