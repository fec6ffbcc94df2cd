"""Make texts from outside safe to store: shortened, cleaned, without credentials. Pure."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from urllib.parse import urlsplit

#: `did_you_mean` compares at most so many names, and so many characters of each.
_COMPARED, _HEAD = 1000, 60
#: How many characters of an error message and of a stack are kept.
MAX_ERROR = 2_000
MAX_STACK = 16_000
#: How many exceptions of a chain, and frames of each, a stack shows.
MAX_CHAIN = 8
MAX_FRAMES = 30


def _pattern(text: str) -> Callable[[], re.Pattern[str]]:
    """Return a function that compiles *text* at its first call: most processes need no pattern."""
    return cache(partial(re.compile, text))


_LONE_SURROGATE = _pattern("[\ud800-\udfff]")
_HIDDEN = _pattern("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# The patterns run in linear time: a failed match never rescans text.
_URL_CREDENTIALS = _pattern(
    r"""(?ix) :// (?: [^\s/@:?#"'<>]+  # a token,
        | [^\s/@:"'<>]* : (?!\d{1,5}[/?#]) (?: (?!://) [^\s"'<>] )*  # or user:password, no port
        | (?<!http://) (?<!https://) (?<!ws://) (?<!wss://)  # or one like a port, at no web server
          [^\s/@:"'<>]* : \d{1,5}/ (?: (?!://) [^\s"'<>?\#@] )*
        ) @"""
)
_HEADER = _pattern(
    r"""(?ix) ((?:authorization|cookie) ["']? \s{0,20} [=:] \s{0,20})
        ("[^"\n]*"? | '[^'\n]*'? | [^\n"']* (?: (?: "[^"\n]*" | (?<==)'[^'\n]*' ) [^\n"']* )* )"""
)
_NAMES = r"""(?:password|passwd|passphrase|pwd|secret|token|credentials?|jwt|session[_-]?id
    |signature|[?&]sig|(?<=[_-])pass|(?-i:(?<=[a-z])Pass)
    |(?:access|account|api|encryption|private|secret|signing)[ _-]?key)
    (?:(?P<plural>s)|[ _-]?(?:hash|hashed|digest|salt|value|confirm|confirmation|\d{1,3}))?"""
#: Words of everyday text too: a secret only as a name in code or in JSON.
_WORDS = "(?<![a-z])(?:pass|auth|session)"
_NAMED_SECRET = _pattern(
    rf"""(?ix) (?: {_NAMES} \\{{0,4}} ["']? \]? \s{{0,20}} (?:=>|:=|!=|={{1,3}}|:)
        | {_WORDS} (?: \\{{0,4}} ["'] \]? \s{{0,20}} (?:=>|:=|!=|={{1,3}}|:)
                     | \s{{0,20}} (?:=>|:=|!=|={{1,3}}) ))
        \s{{0,20}} (?:bearer\s{{1,20}}|basic\s{{1,20}})?"""
)
_PAIR = _pattern(
    rf"""(?ix) [\[(] \s{{0,20}} [bruf]{{0,2}} (?P<quote>["']) [\w.\ -]{{0,40}}?
        (?: authorization | cookie | {_NAMES} | {_WORDS} ) (?P=quote) \s{{0,20}} , \s{{0,20}}"""
)
#: Values that tell nothing.
_EMPTY = _pattern(r"""(?i)(?:none|null|true|false)(?=[\s,;&)\]}"']|\Z)""")
_NUMBER = _pattern(r"""\d[\d_.,]*(?=[\s;&)\]}"']|\Z)""")
_QUOTED = _pattern(
    r"""(?ix) [bruf]{0,2} (?: "(?:[^"\\\n]|\\.)*"? | '(?:[^'\\\n]|\\.)*'? )
        | \\{1,4}["'][^"'\n]*["']?"""
)
_UNQUOTED = _pattern(r"""(?:[^\s,;&"']|(?<=\w)'(?=\w))*""")
_PART_OF_DATA = _pattern(
    r"""(?x) "(?:[^"\\\n]|\\.)*"? | '(?:[^'\\\n]|\\.)*'? | [\[({] | [\])}] | \n
        | [^\[({\])}"'\n]+"""
)
_BEARER = _pattern(r"(?i)\b(bearer|basic)\s{1,20}[A-Za-z0-9._~+/=-]{8,}")

# Where the message of a database error shows values: as SQLAlchemy and PostgreSQL write them.
_AFTER = r"\n\[SQL:[ ] | \n\(Background[ ]on | \n{1,2}Traceback[ ]\( | \Z"
_FIELD = r"\n(?:LINE[ ]\d|DETAIL:|HINT:|CONTEXT:)"
_VALUES = _pattern(rf"(?sx) (\[parameters:[ ] | Failing[ ]row[ ]contains[ ]\() .*? (?= {_AFTER})")
_KEY = _pattern(rf"(?sx) (\b[Kk]ey[ ]\([^\n]{{1,200}}?\)=\() (.*?) (?= {_FIELD} | {_AFTER})")
_ABOUT_KEY = _pattern(
    r"\) (?:already exists|is not present in|is still referenced|conflicts with|is duplicated)"
)
_INPUT = _pattern(
    rf"""(?sx) (invalid[ ]input[ ](?:syntax|value)[ ]for[ ][^\n:]{{1,100}}:[ ]
        | (?:date/time|interval)[ ]field[ ]value[ ]out[ ]of[ ]range:[ ]
        | malformed[ ]\w{{1,20}}[ ]literal:[ ])
        "(.*?) (?= {_FIELD} | {_AFTER})"""
)
_INPUT_BEGINS = ("invalid input ", "field value out of range", "malformed ")
_INLINE = _pattern(
    r"""(?x) (\b(?:value|time[ ]zone)[ ]) "[^\n]{0,300}?"
        (?= [ ](?:is[ ]out[ ]of[ ]range|not[ ]recognized|for[ ]"))"""
)
_CONTEXT = _pattern(
    r"""(?x) (\nDETAIL:\s{1,4}(?:Token|Expected)[ ]
        | \nCONTEXT:\s{1,4}(?:JSON[ ]data,[ ]line[ ]\d+:
            | (?:unnamed[ ])?portal[ ][^\n=]{0,80}= | COPY[ ][^\n:]{1,120}:)[ ])
        [^\n]*"""
)


def clean(text: str | None) -> str | None:
    """Return *text* with NUL characters and lone surrogates, which no database takes, as U+FFFD."""
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
    """Return the head of *text*, of *limit* characters, the last of them ``…`` if it goes on."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def one_line(text: str) -> str:
    """Replace what is not printable: it could fake a log line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def printable(text: str) -> str:
    """Replace control characters and those that change the direction of writing by U+FFFD.

    Line breaks and tabs stay.
    """
    return text if text.isprintable() else _HIDDEN().sub("\ufffd", text)


def strip_credentials(text: str) -> str:
    """Replace passwords in URLs, in headers and in ``password=…`` or the like by ``***``."""
    text = _URL_CREDENTIALS().sub("://***@", text)
    text = _hidden(text, _NAMED_SECRET(), _named_end)
    text = _hidden(text, _PAIR(), _pair_end)
    # Behind those: it may end at a quote, and would leave a secret there without its name.
    text = _HEADER().sub(r"\1***", text)
    return _BEARER().sub(r"\1 ***", text)


def _hidden(
    text: str, name: re.Pattern[str], end_of_secret: Callable[[str, re.Match[str]], int]
) -> str:
    """Replace what follows each *name*, up to *end_of_secret*, by ``***``."""
    parts: list[str] = []
    done = 0
    while found := name.search(text, done):
        end = end_of_secret(text, found)
        parts.append(text[done : found.end()])
        if end > found.end():
            parts.append("***")
        done = max(end, found.end())
    return "".join((*parts, text[done:])) if parts else text


def _named_end(text: str, found: re.Match[str]) -> int:
    start = found.end()
    if _EMPTY().match(text, start) or (found["plural"] and _NUMBER().match(text, start)):
        return start
    return _value_end(text, start)


def _pair_end(text: str, found: re.Match[str]) -> int:
    """Return where the second of two members ends; of more, or of a mere list, hide nothing."""
    start, end = found.end(), _value_end(text, found.end())
    before = text[max(0, found.start() - 20) : found.start()].rstrip()[-1:]
    if text[found.start()] == "[" and before not in ("[", "(", ","):
        return start
    after = text[end : end + 20].lstrip()
    more = after.startswith(",") and after[1:].lstrip()[:1] not in (")", "]", "")
    return start if more else end


def _value_end(text: str, start: int) -> int:
    """Return where the value that begins at *start* ends."""
    if quoted := _QUOTED().match(text, start):
        return quoted.end()
    plain = _UNQUOTED().match(text, start)
    value = plain[0] if plain else ""
    if sum(map(value.count, "[({")) > sum(map(value.count, "])}")):
        return _data_end(text, start)  # As SecretStr('…') or ['…'].
    return start + len(value)


def _data_end(text: str, start: int) -> int:
    """Return where brackets that open after *start* are closed, or else the line's end.

    Data that is printed over several lines breaks them only behind a comma or beside a bracket.
    """
    depth, last = 0, ""
    position = start
    while part := _PART_OF_DATA().match(text, position):
        said = part[0].strip()
        if part[0] == "\n" and last not in ("[", "(", "{", ","):
            ahead = text[position : position + 80].lstrip()[:1]
            if ahead not in ("]", ")", "}", ","):
                break
        position = part.end()
        if said in ("[", "(", "{"):
            depth += 1
        elif said in ("]", ")", "}"):
            depth -= 1
            if depth <= 0:
                break
        last = said[-1:] or last
    return position


def without_values(text: str) -> str:
    """Leave out the values of a failed statement, since they may be personal data."""
    text = _VALUES().sub(r"\1***", text)
    # To look for a text is much faster than for a pattern, and a message may have 50 MB.
    if ")=(" in text:
        text = _KEY().sub(_without_key, text)
    if any(begin in text for begin in _INPUT_BEGINS):
        text = _INPUT().sub(_without_input, text)
    return text


def _without_input(found: re.Match[str]) -> str:
    behind = found[2].rpartition('"')[2]
    return f"{found[1]}***{behind}"


def _without_key(found: re.Match[str]) -> str:
    about = list(_ABOUT_KEY().finditer(found[2]))
    if not about:
        return f"{found[1]}***"
    if "conflicts with" in about[-1][0]:  # The other key's values follow.
        return f"{found[1]}***{about[-1][0]} an existing key"
    return f"{found[1]}***{found[2][about[-1].start() :]}"


def safe_text(text: str, limit: int) -> str:
    """Return *text* safe to store: cut to *limit* characters, cleaned, without credentials.

    The values of a failed statement are left out, since they may be personal data.
    """
    # Before the cut, which could remove the place where the values begin.
    text = without_values(text)
    # Cut first, so that a message of 50 MB does not go through the patterns. Cut at four times the
    # limit, so that a credential at the cut is still recognized.
    text = clean(cut(text, limit * 4)) or ""
    text = _CONTEXT().sub(r"\1***", _INLINE().sub(r"\1***", text))
    return cut(strip_credentials(text), limit)


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


def host_of(url: str) -> str:
    """Return the host of *url*, all of it that may be shown."""
    try:
        return urlsplit(url).hostname or "?"
    except ValueError:
        return "?"
