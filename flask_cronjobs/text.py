"""Texts that come from outside, made safe to keep: cut, cleaned, stripped of credentials. Pure."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable, Iterator

#: Of how many names, and of how many characters of each, one that was mistyped is compared to.
_COMPARED, _HEAD = 1000, 60
#: How much of an error message and of a stack is kept, in characters.
MAX_ERROR = 2_000
MAX_STACK = 16_000
#: How many exceptions of a chain, and frames of each, a stack shows.
MAX_CHAIN = 8
MAX_FRAMES = 30

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# The patterns take time in proportion to the text: what one looks through in vain ends where the
# next may begin.
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

# What a database error says of a statement's values: by SQLAlchemy, and by PostgreSQL.
_VALUES = re.compile(
    r"""(?sx) (\[parameters:[ ] | Failing[ ]row[ ]contains[ ]\() .*?
        (?= \n\[SQL:[ ] | \n\(Background[ ]on | \n{1,2}Traceback[ ]\( | \Z)"""
)


def clean(text: str | None) -> str | None:
    """*text* without what no database takes: a NUL or lone surrogate becomes U+FFFD."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return _LONE_SURROGATE.sub("\ufffd", text.replace("\0", "\ufffd"))


def cut(text: str, limit: int) -> str:
    """*text* in at most about *limit* characters: its head and its tail, with a note between."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def one_line(text: str) -> str:
    """*text* without what would forge a line of a log, or what a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def strip_credentials(text: str) -> str:
    """*text* with passwords in URLs, such headers and ``password=…`` replaced by ``***``."""
    text = _URL_CREDENTIALS.sub("://***@", text)
    text = _HEADER.sub(r"\1***", text)
    text = _NAMED_SECRET.sub(r"\1***", text)
    return _BEARER.sub(r"\1 ***", text)


def safe_text(text: str, limit: int) -> str:
    """*text* fit to be kept: cut to *limit*, cleaned, stripped of credentials.

    The values of a statement that failed are left out, since they may be anyone's.
    """
    # A cut would take away where the values begin.
    text = _VALUES.sub(r"\1***", text)
    # Cut first, since a 50 MB message should not go through the patterns; with room for a
    # credential that straddles the cut to be recognized in what is left.
    return cut(strip_credentials(clean(cut(text, limit * 4)) or ""), limit)


def error_text(error: BaseException) -> str:
    """The message of *error*, whatever its ``__str__`` does."""
    try:
        message = str(error)
    except BaseException as trouble:
        message = f"(its message could not be made: __str__ raised {type(trouble).__name__})"
    return safe_text(message, MAX_ERROR) or type_name(error)


def type_name(error: BaseException) -> str:
    """The name of *error*'s type, with its module unless it is a builtin."""
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return safe_text(name.removeprefix("flask_cronjobs.errors."), 200)


def stack_text(error: BaseException) -> str:
    """The stack of *error* and of its causes, bounded in every direction.

    The standard formatter is not used for the whole: it recurses through groups and causes without
    bound, and calls ``__str__`` of each.
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
    """A sentence that offers the names in *known* that are close to *name*, or lists them."""
    known = sorted(known)
    # By their heads, and not by all of thousands: a comparison takes the square of their length.
    heads = {each[:_HEAD]: each for each in reversed(known[:_COMPARED])}
    close = [heads[head] for head in difflib.get_close_matches(name[:_HEAD], heads, n=3)]
    if close:
        return f" Did you mean {' or '.join(map(repr, close))}?"
    if not known:
        return " None is declared: is the module that declares them imported?"
    return f" There are: {', '.join(known[:20])}."
