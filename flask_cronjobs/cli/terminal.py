"""Write to a terminal or another stream without blocking for long, and color texts.

A terminal may be stopped by Ctrl-S, a pager may stop reading, and a collector of logs may hang.
"""

from __future__ import annotations

import logging
import os
import select
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # Python 3.10 cannot subscript it.

#: The number of bytes to write at once. A pipe that is ready accepts that many.
BYTES_AT_ONCE: int = getattr(select, "PIPE_BUF", 512)
#: Seconds that a warning waits until it can be written.
WARN_SECONDS = 0.2


def write(stream: TextIO, text: str, within: float) -> bool:
    """Write *text* to *stream*, unless its reader is stuck; return whether all of it was written.

    This writes directly to the stream's file. A thread that is stuck in a buffered write would hold
    the buffer's lock, which would block handlers that print and the end of the process.

    :param within: the seconds to wait for the reader before each part.
    """
    number = file_number(stream)
    if number is None:
        stream.write(text)
        stream.flush()
        return True
    left = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while left and is_read(stream, within):
        left = left[os.write(number, left[:BYTES_AT_ONCE]) :]
    return not left


def is_read(stream: TextIO, within: float) -> bool:
    """Return whether *stream* accepts output, now or at most *within* seconds later."""
    number = file_number(stream)
    try:
        return number is None or bool(select.select([], [number], [], within)[1])
    except (OSError, ValueError):  # On Windows, select supports only sockets.
        return True


def file_number(stream: Any) -> int | None:
    """Return the file descriptor of a stream; None if it has none, as in tests."""
    try:
        number: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number


def leave(stream: TextIO) -> None:
    """Discard the rest of *stream*, so that Python's flush at the end does not block."""
    number = file_number(stream)
    if number is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


class Warnings(TextHandler):
    """Prints records that standard error accepts soon, and drops the others."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print *record*, unless the reader is stuck."""
        if is_read(self.stream, WARN_SECONDS):
            super().emit(record)


COLORS = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "dead": "red",
    "cancelled": "bright_black",
    "skipped": "bright_black",
    "ok": "green",
    "info": "blue",
    "warn": "yellow",
    "warning": "yellow",
    "error": "red",
    "late": "red",
    "never": "red",
    "overdue": "red",
    "in_doubt": "red",
    "begun": "cyan",
    "done": "green",
}


def paint(status: str, text: str | None = None) -> str:
    """Return *text* in the color of a status or level; `click.echo` strips colors in pipes."""
    text = status if text is None else text
    return click.style(text, fg=COLORS[status]) if status in COLORS else text
