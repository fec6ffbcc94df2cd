"""Free what frames hold that an exception passed through: connections, cursors and their locks."""

from __future__ import annotations

import gc
from contextlib import suppress
from traceback import walk_tb
from types import FrameType


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
