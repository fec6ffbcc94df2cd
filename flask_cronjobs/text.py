"""Make texts from outside safe to store: shortened, cleaned, without credentials. Pure."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable, Iterator

#: `did_you_mean` compares at most so many names, and so many characters of each.
_COMPARED, _HEAD = 1000, 60
#: How many characters of an error message and of a stack are kept.
MAX_ERROR = 2_000
MAX_STACK = 16_000
#: How many exceptions of a chain, and frames of each, a stack shows.
MAX_CHAIN = 8
MAX_FRAMES = 30

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# The patterns run in linear time: a failed match never rescans text.
_URL_CREDENTIALS = re.compile(
    r"""(?x) :// (?: [^\s/@:?#"'<>]+  # a token,
        | [^\s/@:"'<>]* : (?!\d{1,5}[/?#]) (?: (?!://) [^\s"'<>] )*  # or user:password, no port
        ) @"""
)
_HEADER = re.compile(
    r"""(?ix) ((?:authorization|cookie) ["']? \s{0,20} [=:] \s{0,20})
        ("[^"\n]*"? | '[^'\n]*'? | [^\n"']* (?: "[^"\n]*" [^\n"']* )* )"""
)
_NAMED_SECRET = re.compile(
    r"""(?ix) ((?:password|passwd|passphrase|pwd|secret|token|credentials?|jwt|session[_-]?id
        |signature|[?&]sig|(?:access|account|api|encryption|private|secret|signing)[ _-]?key)
        \\{0,4} ["']? \s{0,20} (?:=>|:=|[=:]) \s{0,20} (?:bearer\s{1,20}|basic\s{1,20})?)
        (b?"(?:[^"\\\n]|\\.)*"? | b?'(?:[^'\\\n]|\\.)*'? | \\{1,4}["'][^"'\n]*["']?
        | [^\s,;&"']+)"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s{1,20}[A-Za-z0-9._~+/=-]{8,}")

# Where the message of a database error shows values: as SQLAlchemy and PostgreSQL write them.
_VALUES = re.compile(
    r"""(?sx) (\[parameters:[ ] | Failing[ ]row[ ]contains[ ]\() .*?
        (?= \n\[SQL:[ ] | \n\(Background[ ]on | \n{1,2}Traceback[ ]\( | \Z)"""
)


def clean(text: str | None) -> str | None:
    """Return *text* with NUL characters and lone surrogates, which no database takes, as U+FFFD."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return _LONE_SURROGATE.sub("\ufffd", text.replace("\0", "\ufffd"))


def cut(text: str, limit: int) -> str:
    """Shorten *text* to about *limit* characters: its head and tail, with a note between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def one_line(text: str) -> str:
    """Replace what is not printable: it could fake a log line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def printable(text: str) -> str:
    """Replace control characters and those that change the direction of writing by U+FFFD.

    Line breaks and tabs stay.
    """
    return text if text.isprintable() else _HIDDEN.sub("\ufffd", text)


def strip_credentials(text: str) -> str:
    """Replace passwords in URLs, in headers and in ``password=…`` or the like by ``***``."""
    text = _URL_CREDENTIALS.sub("://***@", text)
    text = _HEADER.sub(r"\1***", text)
    text = _NAMED_SECRET.sub(r"\1***", text)
    return _BEARER.sub(r"\1 ***", text)


def safe_text(text: str, limit: int) -> str:
    """Return *text* safe to store: cut to *limit* characters, cleaned, without credentials.

    The values of a failed statement are left out, since they may be personal data.
    """
    # Before the cut, which could remove the place where the values begin.
    text = _VALUES.sub(r"\1***", text)
    # Cut first, so that a message of 50 MB does not go through the patterns. Cut at four times the
    # limit, so that a credential at the cut is still recognized.
    return cut(strip_credentials(clean(cut(text, limit * 4)) or ""), limit)


def error_text(error: BaseException) -> str:
    """Return the message of *error*, even if its ``__str__`` raises."""
    try:
        message = str(error)
    except BaseException as trouble:
        message = f"(its message could not be made: __str__ raised {type(trouble).__name__})"
    return safe_text(message, MAX_ERROR) or type_name(error)


def type_name(error: BaseException) -> str:
    """Return the name of *error*'s type, with its module unless it is a builtin."""
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return safe_text(name.removeprefix("flask_cronjobs.errors."), 200)


def stack_text(error: BaseException) -> str:
    """Return the stack of *error* and of its causes, limited in frames, causes and length.

    The standard formatter recurses through groups and causes without a limit, and calls the
    ``__str__`` of each; so it formats only the frames here.
    """
    parts = [_one_stack(link) for link in _chain(error)]
    return safe_text("\n".join(reversed(parts)), MAX_STACK)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < MAX_CHAIN:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _one_stack(error: BaseException) -> str:
    try:
        frames = traceback.extract_tb(error.__traceback__)
        shown = frames if len(frames) <= MAX_FRAMES else frames[:10] + frames[10 - MAX_FRAMES :]
        lines = "".join(traceback.format_list(shown))
    except BaseException as trouble:
        lines = f"  (the stack could not be read: {type(trouble).__name__})\n"
    return f"Traceback (most recent call last):\n{lines}{type_name(error)}: {error_text(error)}\n"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the names in *known* that are similar to *name*, or with all."""
    known = sorted(known)
    # Compare only the heads of a limited number: the time grows with the square of the length.
    heads = {each[:_HEAD]: each for each in reversed(known[:_COMPARED])}
    close = [heads[head] for head in difflib.get_close_matches(name[:_HEAD], heads, n=3)]
    if close:
        return f" Did you mean {' or '.join(map(repr, close))}?"
    if not known:
        return " None is declared: check that the module that declares them is imported."
    return f" There are: {', '.join(known[:20])}."
