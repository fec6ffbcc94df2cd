"""Redact secrets: what people are shown and what is stored of payloads, texts and errors. Pure."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

from ..types import JSON
from . import clean, cut, pattern

#: How many characters of an error message and of a stack are kept.
MAX_ERROR = 2_000
MAX_STACK = 16_000
#: How many exceptions of a chain, and frames of each, a stack shows.
MAX_CHAIN = 8
MAX_FRAMES = 30
#: What the names of secrets contain, in payloads and in texts; ``_`` is any sign or none.
SECRET_NAMES = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "credential"),
    *("cookie", "session", "jwt", "signature", "api_key", "access_key", "private_key"),
    *("account_key", "encryption_key", "signing_key"),
)
#: Names of secrets that are parts of many other words.
SECRET_WORDS = "pass|auth"
# The patterns take linear time: each looks at a bounded number of characters beyond those that it
# takes, or at those up to the next place where it can begin.
_NAMES = "|".join(SECRET_NAMES).replace("session", "session_id").replace("_", "[ _-]?")
_SECRET = rf"(?:{_NAMES}|[?&]sig|(?<=[_-])(?:{SECRET_WORDS})|(?-i:(?<=[a-z])(?:Pass|Auth)))"
#: Words of everyday text, too: names of secrets in code and in JSON only.
_EVERYDAY = rf"(?<![a-z])(?:{SECRET_WORDS}|session)"
_ANY = rf"[\w.\ -]{{0,40}}? (?:{_SECRET} | {_EVERYDAY})"
_IS = "(?:=>|:=|!=|={1,3}(?![=>]))"
_MARKER = pattern(
    rf"""(?ix)
    (?: {_SECRET}
        (?: (?P<count> s(?:[_-][\w-]{{0,40}})? | [_-](?:count|limit|length) )
            | [_-](?!count|limit|length)[\w-]{{0,40}}
            | [ ]?(?:hash|hashed|digest|salt|value|confirm|confirmation|id|\d{{1,3}})
        )? \\{{0,4}} ["']? \]? \s{{0,20}} (?: {_IS} | :(?!=) )
        | {_EVERYDAY} (?: \\{{0,4}} ["'] \]? \s{{0,20}} (?: {_IS} | :(?!=) ) | \s{{0,20}} {_IS} )
    )
    (?! \s{{0,20}} (?: (?:none|null|true|false) | (?(count) \d[\d_.,]* | (?!) ) )  # No secrets.
        (?: [\s,;&)\]}}"'] | \Z ) )
    | (?: [\[(,] \s{{0,20}} \[ | \( ) \s{{0,20}} [bruf]{{0,2}} ["'] {_ANY}
      (?: s | [_-]?(?:hash|key|value|id|\d{{1,3}}) )? ["'] \s{{0,20}} ,
      (?! \s{{0,20}} [)\]] )  # The first of a pair.
    | (?<![\w-]) -- {_ANY} [\w-]{{0,40}} (?: ["'], | \s ) (?! \s{{0,20}} -- )  # An option.
    | (?P<label> (?<![a-z]) (?:name|key) ["']? \s{{0,20}} [:=] \s{{0,20}} ["'] {_ANY} ["'] )
    """
)
_BRACKET = pattern(r"[\[({<]")
_SPACE = pattern(r"\s{0,20}")
_INDENT = pattern(r"[ \t]*")
_BELOW = pattern(r"\s*\n([ \t]*)(?=\S)")
_BEARER = pattern(r"(?i)\b(bearer|basic)\s{1,20}[A-Za-z0-9._~+/=-]{8,}")
_USER = pattern(
    r"""(?ix) (?<!http) (?<!https) (?<!ws) (?<!wss) :// [^\s/@:"'<>\[]* :
        | :// [^\s/@:"'<>\[]* : (?! \d{1,5} (?: [\s/?\#"'<>,;)\]}] | \Z ) )  # At a web server.
        | :// [^\s/@:?\#"'<>]+ @  # A token."""
)
# Where the message of a database error shows values: as SQLAlchemy and PostgreSQL write them.
_VALUES = pattern(
    r"""(?sx) ( \[parameters:[ ] | Failing[ ]row[ ]contains[ ]\( | \b[Kk]ey[ ]\([^\n]{1,200}?\)=\(
        | invalid[ ]input[ ](?:syntax|value)[ ]for[ ][^\n:]{1,100}:[ ]
        | field[ ]value[ ]out[ ]of[ ]range:[ ] | malformed[ ]\w{1,20}[ ]literal:[ ]
        | \nDETAIL:\s{1,4}(?:Token|Expected)[ ]
        | \nCONTEXT:\s{1,4}(?:JSON|(?:unnamed[ ])?portal|COPY)[ ][^\n:=]{0,120}(?:[:=][ ])? )
        .*? (?= \n (?: LINE[ ]\d | DETAIL: | HINT: | CONTEXT: | \[SQL:[ ] | \(Background[ ]on[ ]
                      | \n?Traceback[ ]\( ) | \Z )"""
)
#: To look for texts is much faster than for a pattern, and a message may have 50 MB.
_VALUES_BEGIN = (
    *("[parameters: ", "Failing row contains (", ")=(", "invalid input ", "value out of range: "),
    *("malformed ", "\nDETAIL:", "\nCONTEXT:"),
)
#: Classes of SQLSTATE: data exceptions, and violations of constraints.
_ABOUT_VALUES = ("22", "23")
_INLINE = pattern(
    r"""(?x) (\b(?:value|time[ ]zone)[ ]) "[^\n]{0,300}?"
        (?= [ ](?:is[ ]out[ ]of[ ]range|not[ ]recognized|for[ ]"))"""
)
HIDDEN = "***"
#: How many levels of a value are shown; deeper ones are "…".
DEPTH = 32
_WORD = pattern(rf"(?i:(?<![a-z])(?:{SECRET_WORDS})(?![a-z]))|(?<=[a-z])(?:Pass|Auth)(?![a-z])")
#: Of names up to so many characters it is remembered whether they are of secrets.
_REMEMBERED = 100
_BETWEEN_WORDS = str.maketrans("", "", "-_ ")


def strip_credentials(text: str) -> str:
    """Replace what looks like a credential by ``***``, up to the end of its line.

    1. In a line with a URL that has a user or a password, all from there to the last ``@``.
    2. What follows ``password=``, ``"token":``, ``Authorization:``, ``("password",`` or
       ``--password``, up to the end of the line, and the lines below that are indented more deeply.
    3. The tokens behind ``Bearer`` and ``Basic``.
    """
    if "://" in text and "@" in text:
        text = "\n".join(map(_without_user, text.split("\n")))
    parts: list[str] = []
    done = 0
    while found := _MARKER().search(text, done):
        start, end = _hidden(text, found)
        parts += text[done:start], "***" if start < end else ""
        done = end
    return _BEARER().sub(r"\1 ***", "".join((*parts, text[done:])))


def _without_user(line: str) -> str:
    """Hide what is between the ``://`` of a user and the last ``@`` of *line*."""
    last = line.rfind("@")
    found = _USER().search(line, 0, last + 1)
    if found is None:
        return line
    start = line.index("://", found.start()) + 3
    # The name of a secret in what is hidden hides the rest of the line, too.
    rest = "" if _MARKER().search(line, start, last + 1) else line[last:]
    return f"{line[:start]}***{rest}"


def _hidden(text: str, marker: re.Match[str]) -> tuple[int, int]:
    """Return from where to where the secret goes of which *marker* tells.

    The label of a secret may stand behind it, as in ``{"value": …, "name": "password"}``. Then that
    goes from the first bracket of the line.
    """
    begin = text.rfind("\n", 0, marker.start()) + 1
    start = _end_of(_SPACE, text, marker.end())
    end = _end_of_line(text, start)
    depth = _end_of(_INDENT, text, begin) - begin
    while (below := _BELOW().match(text, end)) and len(below[1]) + bool(marker["label"]) > depth:
        end = _end_of_line(text, below.end())
    bracket = _BRACKET().search(text, begin, marker.start()) if marker["label"] else None
    return bracket.end() if bracket else start, end


def _end_of(pattern: Callable[[], re.Pattern[str]], text: str, start: int) -> int:
    found = pattern().match(text, start)
    return found.end() if found else start


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def redacted(value: JSON, names: Sequence[str]) -> JSON:
    """Return *value* with ``***`` under each key that contains one of *names*.

    Also hides the ``value`` of ``{"name": "password", "value": …}``, the second of
    ``["password", …]``, and what looks like a credential in a text.

    :param names: parts of keys; case, ``-``, ``_`` and spaces do not matter.
    """
    return _redacted(value, _plain_names(tuple(names)), DEPTH)


@lru_cache
def _plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_plain_name, names))


def _redacted(value: JSON, names: tuple[str, ...], depth: int) -> JSON:
    if isinstance(value, str):
        return strip_credentials(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth <= 0:
        return "…"
    if isinstance(value, list):
        if len(value) == 2 and _is_secret_name(value[0], names):
            return [value[0], HIDDEN]
        return [_redacted(member, names, depth - 1) for member in value]
    labels = [member for key, member in value.items() if _plain_name(str(key)) in ("name", "key")]
    hidden = (*names, "value") if any(_is_secret_name(label, names) for label in labels) else names
    return {
        key: HIDDEN if _is_secret_name(key, hidden) else _redacted(member, names, depth - 1)
        for key, member in value.items()
    }


def _is_secret_name(name: JSON, names: tuple[str, ...]) -> bool:
    if not isinstance(name, str):
        return False
    # Most payloads have the same few names.
    if len(name) <= _REMEMBERED:
        return _has_secret(name, names)
    return _has_secret.__wrapped__(name, names)


@lru_cache(maxsize=1000)
def _has_secret(name: str, names: tuple[str, ...]) -> bool:
    plain = _plain_name(name)
    return any(part in plain for part in names) or bool(_WORD().search(name))


def _plain_name(name: str) -> str:
    return name.lower().translate(_BETWEEN_WORDS)


def without_values(text: str) -> str:
    """Leave out the values of a failed statement, since they may be personal data."""
    if any(begin in text for begin in _VALUES_BEGIN):
        text = _VALUES().sub(r"\1***", text)
    return text


def safe_text(text: str, limit: int) -> str:
    """Return *text* safe to store: cut to *limit* characters, cleaned, without credentials.

    The values of a failed statement are left out, since they may be personal data.
    """
    # Before the cut, which could remove the place where the values begin.
    text = without_values(text)
    # Cut first, so that a message of 50 MB does not go through the patterns. Cut at four times the
    # limit and so that the line stays one, so that a credential at the cut is still recognized.
    if len(text) > limit * 4:
        tail = text[-2 * limit :]
        text = f"{text[: 2 * limit]} …{tail[max(0, tail.find(chr(10))) :]}"
    text = clean(text) or ""
    return cut(strip_credentials(_INLINE().sub(r"\1***", text)), limit)


def error_text(error: BaseException) -> str:
    """Return the message of *error*, even if its ``__str__`` raises."""
    try:
        message = _message(error)
    except BaseException as trouble:
        message = f"(its message could not be made: __str__ raised {type(trouble).__name__})"
    return safe_text(message, MAX_ERROR) or type_name(error)


def _message(error: BaseException) -> str:
    """Return ``str(error)``, without what a database error says apart from it of its values.

    PostgreSQL says it in the server's language, so no pattern finds it all.
    """
    shows = getattr(error, "hide_parameters", None) is False
    if not shows:
        return str(error)
    failed = cast("Any", error)  # A `StatementError` of SQLAlchemy.
    failed.hide_parameters = True
    try:
        message = str(failed)
    finally:
        failed.hide_parameters = False
    diag: Any = getattr(failed.orig, "diag", None)
    if diag is not None and (diag.sqlstate or "")[:2] in _ABOUT_VALUES:
        for quoted in filter(None, (diag.message_detail, diag.context)):
            message = message.replace(quoted, "***")
    return message


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


def host_of(url: str) -> str:
    """Return the host of *url*, all of it that may be shown."""
    try:
        return urlsplit(url).hostname or "?"
    except ValueError:
        return "?"
