"""Print lines so that nobody has to wait for whoever reads them.

A terminal may be stopped by Ctrl-S, a pager may read no further, a collector of logs may hang.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from ..log import logger

if TYPE_CHECKING:
    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # Python 3.10 cannot subscript it.

#: How many lines may wait for their reader. Further ones are dropped.
MOST = 10_000
#: How many bytes are written at once: a pipe that takes anything takes so many.
CHUNK: int = getattr(select, "PIPE_BUF", 512)
#: How long a flush waits for the reader to read anything, in seconds.
FLUSH_WITHIN = 5.0
#: How long a warning waits until it can be written, in seconds.
WARN_WITHIN = 0.2


class Lines:
    """Writes lines to a stream as far as somebody reads it; the others wait. Thread-safe.

    It writes to the stream's file and not through its buffer: a thread that is stuck in there holds
    the buffer's lock, and with that up a handler that prints, or the end of the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._number = _own_number(stream)
        self._encoding: str = stream.encoding or "utf-8"
        self._lines: list[str] = []
        self._left = b""
        self._dropped = 0
        self._lock = threading.Lock()

    def put(self, line: str, end: str = "\n") -> None:
        """Let the next `write` write *line*."""
        with self._lock:
            if len(self._lines) < MOST:
                self._lines.append(f"{line}{end}")
            else:
                self._dropped += 1

    def write(self, within: float = 0.0) -> bool:
        """Write all lines; stop, and return False, once nothing is read for *within* seconds."""
        with self._lock:
            try:
                while self._left or self._gather():
                    if not _is_read(self._number, within):
                        return False
                    self._write_some()
            except BlockingIOError:  # Somebody else was faster.
                return False
            except Exception as error:  # A full disk, a closed pipe.
                self._left = b""
                logger.error("Lines could not be printed: %r", error)
            return True

    def _gather(self) -> bool:
        """Make what is to be written of all lines; return whether it is anything."""
        if self._dropped:
            lost = f"({self._dropped} lines were dropped: nobody read them in time)\n"
            self._lines.append(lost)
            self._dropped = 0
        text, self._lines = "".join(self._lines), []
        self._left = text.encode(self._encoding, "backslashreplace")
        return bool(self._left)

    def _write_some(self) -> None:
        if self._number is None:
            self._stream.write(self._left.decode(self._encoding))
            self._stream.flush()
            self._left = b""
        else:
            self._left = self._left[os.write(self._number, self._left[:CHUNK]) :]


def _own_number(stream: TextIO) -> int | None:
    """Return the number of *stream*'s file; of a pipe or a terminal one of our own.

    The own one never waits. To set that for the stream's itself would set it for handlers, too.
    """
    number = file_number(stream)
    if number is not None and os.name == "posix":
        mode = os.fstat(number).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            with suppress(OSError):  # It belongs to another user.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
                return os.open(f"/dev/fd/{number}", flags)
    return number


def _is_read(number: int | None, within: float) -> bool:
    """Return whether a file can be written to, now or within some seconds."""
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
    """Open a stream anew that the caller closed, as by ``>&-``; let each take any character."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif stream.errors == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def unwritable(error: OSError) -> bool:
    """Return whether *error* says that a stream takes no more: a full disk, a closed terminal."""
    return error.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO) and error.filename is None


def buffer_lines() -> None:
    """Let handlers print line by line, in order with our own lines, and leave no rest."""
    reconfigure: Callable[..., None] | None = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)


class Warnings(TextHandler):
    """Prints to standard error what can be written there soon, and drops the rest."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print *record*, unless nobody reads."""
        if _is_read(file_number(self.stream), WARN_WITHIN):
            super().emit(record)
