"""Print lines so that nobody has to wait for whoever reads them.

A terminal may be stopped by Ctrl-S, a pager may read no further, a collector of logs may hang.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from ..log import logger

if TYPE_CHECKING:
    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # Python 3.10 cannot subscript it.

#: How many lines may wait to be written. Further ones are dropped.
MOST = 10_000
#: How long lines are gathered before they are written together, in seconds.
GATHER = 0.01
#: How many bytes are written at once.
CHUNK = 4096
#: How long a flush waits for the reader to read anything, in seconds.
FLUSH_WITHIN = 5.0
#: How long `Lines.hold` waits for the thread to end, in seconds.
HOLD_WITHIN = 0.5
#: How long a warning waits until it can be written, in seconds.
WARN_WITHIN = 0.2


class Lines:
    """Writes lines to a stream in a thread of its own, as many at a time as have come.

    It writes to the stream's file and not through its buffer: a thread that is stuck in there holds
    the buffer's lock, and with that up a handler that prints, or the end of the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._last: Callable[[], str] | None = None
        self._dropped = 0
        self._written = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._writing = False
        self._held = False

    def put(self, line: str) -> None:
        """Let *line* be written soon."""
        with self._changed:
            if len(self._lines) >= MOST:
                self._dropped += 1
            else:
                self._lines.append(line)
                if len(self._lines) == 1:  # Otherwise the thread knows that there is something.
                    self._ensure_thread()

    def put_last(self, render: Callable[[], str]) -> None:
        """Let what *render* returns be written soon, behind all lines.

        It is called in the thread that writes; only the latest one is.
        """
        with self._changed:
            self._last = render
            self._ensure_thread()

    def hold(self) -> None:
        """End the thread until `go_on`, because the process is about to fork.

        A thread that is stuck in a write stays. It holds no lock of this object meanwhile, and the
        new process makes no use of it, so that does no harm.
        """
        with self._changed:
            self._held = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(HOLD_WITHIN)

    def go_on(self) -> None:
        """Go on after `hold`."""
        with self._changed:
            self._held = False
            if self._waits:
                self._ensure_thread()

    def flush(self) -> bool:
        """Wait until all is written; give up, and return False, once nobody reads."""
        until, written = time.monotonic() + FLUSH_WITHIN, self._written
        with self._changed:
            while self._writing or self._waits:
                self._changed.wait(0.1)
                if self._written != written:
                    until, written = time.monotonic() + FLUSH_WITHIN, self._written
                elif time.monotonic() >= until:
                    return False
        return True

    @property
    def _waits(self) -> bool:
        """Whether there is something to write."""
        return bool(self._lines) or self._last is not None

    def _ensure_thread(self) -> None:
        if self._thread is None and not self._held:
            self._thread = threading.Thread(target=self._run, name="cronjobs-printer", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while parts := self._next():
            try:
                for part in parts:
                    self._write(part())
            except Exception as error:  # A full disk, a closed pipe.
                logger.error("Lines could not be printed: %r", error)

    def _next(self) -> list[Callable[[], str]]:
        """Gather lines, and return what makes them; nothing if there are none: the thread ends."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()
        time.sleep(GATHER)
        with self._changed:
            if self._held or not self._waits:
                self._thread = None
                return []
            self._writing = True
            lines, self._lines = self._lines, []
            last, self._last = self._last, None
            if self._dropped:
                lines.append(f"({self._dropped} lines were dropped: nobody read them in time)")
                self._dropped = 0
        parts: list[Callable[[], str]] = [lambda: "".join(f"{line}\n" for line in lines)]
        return parts if last is None else [*parts, last]

    def _write(self, text: str) -> None:
        number = file_number(self._stream)
        if number is None:
            self._stream.write(text)
            self._stream.flush()
            return
        left = text.encode(self._stream.encoding or "utf-8", "backslashreplace")
        while left:
            left = left[os.write(number, left[:CHUNK]) :]
            self._written += 1


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
        if self._is_read():
            super().emit(record)

    def _is_read(self) -> bool:
        number = file_number(self.stream)
        try:
            return number is None or bool(select.select([], [number], [], WARN_WITHIN)[1])
        except (OSError, ValueError):  # Windows knows this of sockets only.
            return True
