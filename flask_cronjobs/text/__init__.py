"""Shorten texts, and make untrusted texts safe for databases, logs and terminals. Pure."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

#: The largest number of names that `similar_names` compares, and of characters of each.
_COMPARED, _HEAD = 1000, 60


def pattern(text: str) -> Callable[[], re.Pattern[str]]:
    """Return a function that compiles *text* when first called, since few patterns are needed."""
    return cache(partial(re.compile, text))


_LONE_SURROGATE = pattern("[\ud800-\udfff]")
_HIDDEN = pattern("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def clean(text: str | None) -> str | None:
    """Replace NUL characters and lone surrogates, which databases refuse, with U+FFFD."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return _LONE_SURROGATE().sub("\ufffd", text.replace("\0", "\ufffd"))


def cut(text: str, limit: int) -> str:
    """Shorten *text* to about *limit* characters: its head and tail, with a note between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def shortened(text: str, limit: int) -> str:
    """Cut *text* to *limit* characters; the last one is ``…`` if the text was longer."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


#: Characters that join or separate letters in Persian and Hindi. Python calls them unprintable.
_JOINERS = str.maketrans("", "", "\u200c\u200d")


def is_printable(text: str) -> bool:
    """Return whether *text* could neither fake a log line nor control a terminal."""
    return text.isprintable() or text.translate(_JOINERS).isprintable()


def one_line(text: str) -> str:
    """Replace each character that is not printable with a space; see `is_printable`."""
    if text.isprintable():  # Most texts are.
        return text
    return "".join(char if is_printable(char) else " " for char in text)


def printable(text: str) -> str:
    """Replace control characters, and those that change the writing direction, with U+FFFD.

    Line breaks and tabs stay.
    """
    return text if text.isprintable() else _HIDDEN().sub("\ufffd", text)


def argument(name: str) -> str:
    """Return *name* as the last argument of a command in a shell.

    ``--`` comes before a name with a dash, which would otherwise be taken for an option.
    """
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence with those of *names* that are similar to *name*, or with all."""
    names = sorted(names)
    if close := similar_names(name, names):
        return f" Did you mean {' or '.join(map(repr, close))}?"
    if not names:
        return " None is declared: check that the module that declares them is imported."
    return f" Known names: {', '.join(names[:20])}."


def similar_names(name: str, names: Sequence[str]) -> list[str]:
    """Return up to three of *names* that are similar to *name*, the most similar first."""
    # Compare only the heads of some names: the time grows with the square of the length.
    heads = {candidate[:_HEAD]: candidate for candidate in reversed(names[:_COMPARED])}
    return [heads[head] for head in difflib.get_close_matches(name[:_HEAD], heads)]
