"""Colors of statuses and levels, and how many cells of a terminal a text takes."""

from __future__ import annotations

import unicodedata

import click

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
