"""A terminal: its colors, its cells, and its lowest line, which shows the runs at work."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from typing import TextIO

import click

from ..text import one_line
from ..types import RunAtWork
from .lines import Lines, file_number

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
    """Return *text* in at most *size* cells of a terminal."""
    if text_width(text) <= size:
        return text
    left, kept = size - 1, ""
    for char, cells in zip(text, _widths(text), strict=True):
        left -= cells
        if left < 0:
            break
        kept += char
    return f"{kept}…"


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

    :param stream: a terminal; the line stays hidden if it is none, or one that can do nothing.
    :param lines: writes to that stream.
    """

    def __init__(self, stream: TextIO, lines: Lines) -> None:
        self._lines = lines
        self._number = file_number(stream) if _is_able(stream) else None
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


def _is_able(stream: TextIO) -> bool:
    """Return whether *stream* is a terminal that knows a region that scrolls."""
    return os.name == "posix" and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


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
