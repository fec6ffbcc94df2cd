"""A terminal or another stream: writes for which nobody waits, and colors.

A terminal may be stopped by Ctrl-S, a pager may read no further, a collector of logs may hang.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # Python 3.10 cannot subscript it.

#: How many bytes are written at once: a pipe that takes anything takes so many.
BYTES_AT_ONCE: int = getattr(select, "PIPE_BUF", 512)
#: How long a warning waits until it can be written, in seconds.
WARN_WITHIN = 0.2


def write(stream: TextIO, text: str, within: float) -> bool:
    """Write *text* to *stream* as far as it is read; return whether all of it was written.

    It writes to the stream's file and not through its buffer: a thread that is stuck in there holds
    the buffer's lock, and with that up a handler that prints, or the end of the process.

    :param within: how long to wait for the reader, each time, in seconds.
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
    """Return whether a stream can be written to, now or within some seconds."""
    number = file_number(stream)
    try:
        return number is None or bool(select.select([], [number], [], within)[1])
    except (OSError, ValueError):  # Windows knows this of sockets only.
        return True


def file_number(stream: Any) -> int | None:
    """Return the number of a stream's file; None if it has none, as in tests."""
    try:
        number: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number


def leave(stream: TextIO) -> None:
    """Let the process end though nobody reads *stream*, which Python flushes at the end."""
    number = file_number(stream)
    if number is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def ready_streams() -> None:
    """Open a stream anew that the caller closed, as by ``>&-``; let each take any character.

    And print line by line, so that what handlers print is in order with our own lines.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure"):
            # Only where it must: it asks for the place in the file, which may have become a pipe.
            if stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
            stream.reconfigure(line_buffering=True)


class Warnings(TextHandler):
    """Prints to standard error what can be written there soon, and drops the rest."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print *record*, unless nobody reads."""
        if is_read(self.stream, WARN_WITHIN):
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
