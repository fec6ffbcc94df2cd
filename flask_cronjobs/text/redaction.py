"""Redact secrets in payloads, texts and errors before they are shown or stored. Pure."""

from __future__ import annotations

import re
import reprlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from ..types import JSON
from . import clean, cut, one_line, pattern

#: The largest number of characters that are kept of an error message, and of a stack.
MAX_ERROR_CHARACTERS = 2_000
MAX_STACK_CHARACTERS = 16_000
#: The largest number of exceptions of a chain that a stack shows, and of frames of each.
MAX_CHAIN = 8
MAX_FRAMES = 30
#: Parts of the names of secrets; ``_`` matches ``-``, ``_``, a space or nothing.
SECRET_NAMES = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "credential"),
    *("cookie", "session", "jwt", "signature", "api_key", "access_key", "private_key"),
    *("account_key", "encryption_key", "signing_key"),
)
#: Names of secrets that also occur inside many other words.
_WORDS = r"(?<![a-z])(?:pass|auth|sig)(?![a-z])"
# "db.session: …" begins a sentence; it is not a secret.
_NAMES = "|".join(SECRET_NAMES).replace("_", "[ _-]?").replace("session", "session(?!:)")
# The patterns take linear time: repetitions are bounded, or consume what they have read.
_SECRET = pattern(
    rf"""(?ix)
    ( (?:{_NAMES}|{_WORDS}) [\w-]{{0,40}} \\{{0,4}} ["']? \]? \s{{0,20}} [=:] [=>]? [ ]? )
    [^\n]+"""
)
_WORD = pattern(rf"(?i){_WORDS}")
_BEARER = pattern(r"(?i)\b(bearer|basic)\s{1,20}[A-Za-z0-9._~+/=-]{8,}")
_URL = pattern(r"://\S*")
_PRIVATE_KEY = pattern(
    r"(?s)(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----).*?(?=-----END|\Z)"
)
_LONG = "(?=[A-Za-z0-9]{20})"
#: Prefixes of the tokens of GitHub, GitLab, Stripe, Slack, AWS, Google, npm, PyPI, SendGrid,
#: DigitalOcean, Hugging Face, Shopify, OpenAI, Anthropic, Docker, Vault, Linear and Atlassian, and
#: of JWTs.
_PREFIXES = (
    *("gh[oprsu]_", "github_pat_", "gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-", "xox[a-z]-"),
    *("[rps]k_(?:live|test)_", "whsec_", r"xapp-(?=\d)", r"ya29\.", r"SG\.(?=[\w-]{20})"),
    *("A(?:KIA|SIA)(?=[A-Z0-9]{16})", r"AIza(?=[\w-]{30})", f"npm_{_LONG}", f"hf_{_LONG}"),
    *("pypi-(?=AgE)", "do[opr]_v1_", "shp(?:at|ca|pa|ss)_", f"sk-(?:proj-|ant-|svcacct-|{_LONG})"),
    *("dckr_pat_", r"hvs\.", "lin_api_", "ATATT3", "eyJ"),
)
_TOKEN = pattern(rf"(?<![A-Za-z0-9])({'|'.join(_PREFIXES)})[A-Za-z0-9._~+/=-]{{8,}}")
# Matches the places where messages of SQLAlchemy and PostgreSQL show values.
_VALUES = pattern(
    r"""(?sx) ( \[parameters:[ ] | Failing[ ]row[ ]contains[ ]\( | \b[Kk]ey[ ]\([^\n]{1,200}?\)=\(
        | invalid[ ]input[ ](?:syntax|value)[ ]for[ ][^\n:]{1,100}:[ ]
        | field[ ]value[ ]out[ ]of[ ]range:[ ] | malformed[ ]\w{1,20}[ ]literal:[ ]
        | \nDETAIL:\s{1,4}(?:Token|Expected)[ ]
        | \nCONTEXT:\s{1,4}(?:JSON|(?:unnamed[ ])?portal|COPY)[ ][^\n:=]{0,120}(?:[:=][ ])? )
        .*? (?= \n (?: LINE[ ]\d | DETAIL: | HINT: | CONTEXT: | \[SQL:[ ] | \(Background[ ]on[ ]
                      | \n?Traceback[ ]\( ) | \Z )"""
)
#: Searching for a text is much faster than matching a pattern, and a message may be 50 MB long.
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
#: The number of levels of a value that are shown; deeper ones are hidden.
MAX_DEPTH = 32
#: The largest number of characters that are shown of the path to a value.
_MAX_PATH_CHARACTERS = 200
_BETWEEN_WORDS = str.maketrans("", "", "-_ ")


def strip_credentials(text: str) -> str:
    """Replace what looks like a credential with ``***``.

    1. The text after the name of a secret and ``=`` or ``:``, up to the end of the line.
    2. The token after ``Bearer`` or ``Basic``.
    3. The user and the password in a URL.
    4. The text after a service's token prefix, such as ``ghp_`` or ``eyJ``.
    5. A private key, from ``-----BEGIN`` to ``-----END``.
    """
    if "-----BEGIN" in text:
        text = _PRIVATE_KEY().sub(r"\1***", text)
    text = _BEARER().sub(r"\1 ***", _SECRET().sub(r"\1***", text))
    text = _TOKEN().sub(r"\1***", text)
    return _URL().sub(_without_user, text) if "://" in text else text


def _without_user(url: re.Match[str]) -> str:
    _, at_sign, host = url[0].rpartition("@")
    return f"://{HIDDEN}@{host}" if at_sign else url[0]


def redacted(value: JSON, names: Sequence[str]) -> JSON:
    """Return *value* with ``***`` under each key that contains one of *names*.

    What looks like a credential in a text is hidden, too, and so is what is nested too deeply.

    :param names: parts of keys; case, ``-``, ``_`` and spaces do not matter.
    """
    return _redacted(value, tuple(map(_plain_name, names)), MAX_DEPTH)


def _redacted(value: JSON, names: tuple[str, ...], depth: int) -> JSON:
    if isinstance(value, str):
        return strip_credentials(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth <= 0:
        return HIDDEN
    if isinstance(value, list):
        return [_redacted(member, names, depth - 1) for member in value]
    return {
        key: HIDDEN if _is_secret(key, names) else _redacted(member, names, depth - 1)
        for key, member in value.items()
    }


def shown_path(keys: Iterable[object], names: Sequence[str]) -> str:
    """Return the path of *keys*, such as ``payload['orders'][0]``, up to a hidden value.

    :param keys: the name of the outermost value, then its keys.
    :param names: parts of the keys of hidden values, as for `redacted`.
    """
    path, plain_names = "", tuple(map(_plain_name, names))
    for key in keys:
        safe_key = strip_credentials(key) if isinstance(key, str) else key
        path += f"[{reprlib.repr(safe_key)}]" if path else str(safe_key)
        if isinstance(key, str) and _is_secret(key, plain_names):
            break
    return (
        path
        if len(path) <= _MAX_PATH_CHARACTERS
        else f"{path[: _MAX_PATH_CHARACTERS // 2]}…{path[-_MAX_PATH_CHARACTERS // 2 :]}"
    )


def _is_secret(name: str, names: tuple[str, ...]) -> bool:
    plain = _plain_name(name)
    return any(part in plain for part in names) or bool(_WORD().search(name))


def _plain_name(name: str) -> str:
    return name.lower().translate(_BETWEEN_WORDS)


def without_values(text: str) -> str:
    """Remove the values of a failed statement, which may be personal data."""
    if any(begin in text for begin in _VALUES_BEGIN):
        text = _VALUES().sub(r"\1***", text)
    return text


def safe_text(text: str, limit: int) -> str:
    """Make *text* safe to store: cut to *limit* characters, cleaned, without credentials.

    The values of a failed statement are removed, since they may be personal data.
    """
    # Do this before the cut, which could remove the place where the values begin.
    text = without_values(text)
    # Cut first, so that a message of 50 MB does not pass through the patterns. Cut at four times
    # the limit and within a line, so that a credential at the cut is still recognized.
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
    return safe_text(message, MAX_ERROR_CHARACTERS) or type_name(error)


def _message(error: BaseException) -> str:
    """Return ``str(error)`` without the values that a database error contains.

    PostgreSQL's messages are in the server's language, so no pattern would find all values.
    """
    shows_values = getattr(error, "hide_parameters", None) is False
    if not shows_values:
        return str(error)
    statement_error = cast("Any", error)  # A `StatementError` of SQLAlchemy.
    statement_error.hide_parameters = True
    try:
        message = str(statement_error)
    finally:
        statement_error.hide_parameters = False
    diag: Any = getattr(statement_error.orig, "diag", None)
    if diag is not None and (diag.sqlstate or "")[:2] in _ABOUT_VALUES:
        for quoted in filter(None, (diag.message_detail, diag.context)):
            message = message.replace(quoted, "***")
    return message


def type_name(error: BaseException) -> str:
    """Return the name of *error*'s type, with its module unless it is built in.

    It has no line breaks, since forms, which send it back, cannot send them unchanged.
    """
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return one_line(safe_text(name.removeprefix("flask_cronjobs.errors."), 200))


def stack_text(error: BaseException) -> str:
    """Return the stack of *error* and its causes, limited in frames, causes and length.

    The standard formatter recurses through groups and causes without a limit, and calls the
    ``__str__`` of each, so only the frames are formatted by it.
    """
    parts = [_one_stack(link) for link in _chain(error)]
    return safe_text("\n".join(reversed(parts)), MAX_STACK_CHARACTERS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    ids: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in ids and len(ids) < MAX_CHAIN:
        ids.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _one_stack(error: BaseException) -> str:
    try:
        frames = traceback.extract_tb(error.__traceback__)
        excerpt = frames if len(frames) <= MAX_FRAMES else frames[:10] + frames[10 - MAX_FRAMES :]
        lines = "".join(traceback.format_list(excerpt))
    except BaseException as trouble:
        lines = f"  (the stack could not be read: {type(trouble).__name__})\n"
    return f"Traceback (most recent call last):\n{lines}{type_name(error)}: {error_text(error)}\n"


def host_of(url: str) -> str:
    """Return the host of *url*, the only part that may be shown."""
    try:
        return urlsplit(url).hostname or "?"
    except ValueError:
        return "?"


#: The names of this package's modules: an app's folder may have the package's name, too.
_PARTS = "|".join(path.stem for path in Path(__file__).parents[1].iterdir())
#: Matches a frame of this package, which does not help to find an error in a handler.
_OWN = re.compile(rf'  File ".*[/\\]flask_cronjobs[/\\](?:{_PARTS})(?:[/\\]|\.py")')


def without_own_frames(stack: str) -> str:
    """Return *stack* without the frames of this package."""
    lines: list[str] = []
    is_own = False
    for line in stack.split("\n"):
        if line.startswith("  File "):
            is_own = _OWN.match(line) is not None
        elif not line.startswith("    "):
            is_own = False
        if not is_own:
            lines.append(line)
    return "\n".join(lines)
