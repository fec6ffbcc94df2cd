"""A terminal or another stream: lines for which nobody waits, colors, cells, and the lowest line.

A terminal may be stopped by Ctrl-S, a pager may read no further, a collector of logs may hang. The
lowest line of a terminal shows the runs at work.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TextIO

import click

from ..log import logger
from ..text import one_line
from ..types import RunAtWork

if TYPE_CHECKING:
    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # Python 3.10 cannot subscript it.

#: How many lines may wait for their reader. Further ones are dropped.
LINES_WAITING = 10_000
#: How many bytes are written at once: a pipe that takes anything takes so many.
BYTES_AT_ONCE: int = getattr(select, "PIPE_BUF", 512)
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
            if len(self._lines) < LINES_WAITING:
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
            self._left = self._left[os.write(self._number, self._left[:BYTES_AT_ONCE]) :]


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
        if _is_read(file_number(self.stream), WARN_WITHIN):
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


#: Categories of characters that add nothing to a line's width: marks on others, and controls.
_NO_WIDTH = {"Mn", "Me", "Cf"}
#: The character that makes the one before it an emoji, two cells wide.
_EMOJI = "\ufe0f"


def text_width(text: str) -> int:
    """Return how many cells of a terminal *text* takes: two for a wide character, as ``漢``."""
    return len(text) if text.isascii() else sum(_widths(text))


def cut_to_width(text: str, size: int) -> str:
    """Return *text* in at most *size* cells of a terminal.

    A name, which has no space, is cut in the middle: its end tells as much as its beginning.
    """
    if text_width(text) <= size:
        return text
    widths = _widths(text)
    tail = 0 if " " in text else (size - 1) // 2
    head = _fitting(widths, size - 1 - tail)
    end = len(text) - _fitting(widths[::-1], tail)
    while end < len(text) and (widths[end] == 0 or text[end] == _EMOJI):
        end += 1  # It belongs to the character before it, which is cut.
    return f"{text[:head]}…{text[end:]}"


def _fitting(widths: list[int], size: int) -> int:
    """Return how many of the first characters fit into *size* cells."""
    return bisect_right(list(accumulate(widths)), size)


def _widths(text: str) -> list[int]:
    """Return the width of each character of *text*, in cells."""
    widths: list[int] = []
    for char in text:
        if char == _EMOJI and widths and widths[-1] == 1:
            widths.append(1)
        elif unicodedata.category(char) in _NO_WIDTH or "\u1160" <= char <= "\u11ff":
            widths.append(0)  # The latter are later parts of a Korean syllable.
        else:
            widths.append(2 if unicodedata.east_asian_width(char) in "WF" else 1)
    return widths


#: A smaller terminal has no line to spare, in rows and columns.
LEAST = (6, 40)

_SAVE, _RESTORE = "\x1b7", "\x1b8"
#: Scroll up if the cursor is in the lowest line, so that this is free; the column stays.
_MAKE_ROOM = "\x1bD\x1b[A"
_INVERSE, _NORMAL = "\x1b[7m", "\x1b[0m"


class StatusLine:
    """Shows a text in the lowest line, out of which the terminal keeps all other output.

    The other lines are made a region of their own, in which the terminal scrolls. So whatever
    handlers and their programs print, they neither overwrite the line nor are overwritten. Each
    change is one write that leaves the cursor where it was.

    :param stream: a terminal; the line stays hidden on one that can do nothing.
    :param lines: writes to that stream.
    """

    def __init__(self, stream: TextIO, lines: Lines) -> None:
        self._lines = lines
        # Windows and a dumb terminal know no region that scrolls.
        is_able = os.name == "posix" and os.environ.get("TERM", "dumb") != "dumb"
        self._number = file_number(stream) if is_able else None
        # Of the terminal, when the line was last drawn there.
        self._size: os.terminal_size | None = None

    @property
    def enabled(self) -> bool:
        """Whether it can show anything."""
        return self._number is not None

    def show(self, text: str | None) -> None:
        """Show *text*, cut to the width of the terminal; None: give the line back."""
        if self._number is None or (text is None and self._size is None):
            return
        if text is None or self._lines.write():  # Where nobody reads, one drawing waits at most.
            self._lines.put(self._drawn(self._number, text), end="")
            self._lines.write()

    def _drawn(self, number: int, text: str | None) -> str:
        """Return what changes the terminal to show *text*."""
        size = None if text is None else os.get_terminal_size(number)
        if text is None or size is None or size.lines < LEAST[0] or size.columns < LEAST[1]:
            end, self._size = self._end(), None
            return end
        begin = "" if size == self._size else f"{self._end()}{_begin(size)}"
        self._size = size
        shown = cut_to_width(one_line(text), size.columns - 1)
        return f"{begin}{_in_row(size.lines, f'{_INVERSE}{shown}{_NORMAL}')}"

    def _end(self) -> str:
        if self._size is None:
            return ""
        return f"{_SAVE}\x1b[r{_RESTORE}{_in_row(self._size.lines, '')}"


def _begin(size: os.terminal_size) -> str:
    return f"{_MAKE_ROOM}{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}"


def _in_row(row: int, text: str) -> str:
    """Return what writes *text* in a row of the terminal, and nothing else there."""
    return f"{_SAVE}\x1b[{row};1H\x1b[2K{text}{_RESTORE}"


def describe(runs: Iterable[RunAtWork]) -> str:
    """Return how many runs are at work and which, those first that began first."""
    ordered = sorted(runs, key=lambda run: -run.seconds)
    return f"{len(ordered)} at work: {'; '.join(map(_described, ordered))}"


def _described(run: RunAtWork) -> str:
    from ..jobs.humanize import duration, roughly

    age = roughly(run.seconds) if run.seconds < 60 else duration(int(run.seconds))
    attempt = "" if run.attempt == 1 else f", attempt {run.attempt}"
    progress = "" if run.progress is None else f", {run.progress:.0%}"
    message = f" {run.message}" if run.message else ""
    return f"{run.task} run {run.id}{attempt}, {age}{progress}{message}"
