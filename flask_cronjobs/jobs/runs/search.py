"""What people are shown of a run: what it is for, and its keys; and the search in that.

Neither shows or finds what the pages hide.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import Row, Text, and_, case, func, or_, select, text, union_all
from sqlalchemy import cast as as_type

from ...models.conditions import KEYED, ORDERED
from ...text import one_line, shortened
from ...text.redaction import HIDDEN, redacted
from ...types import JSON, MAX_ID
from ..reader import RUNS, Reader, is_one_of, readable
from ..state import State


class Depth(NamedTuple):
    """How far a search goes.

    :ivar rows: at how many runs it looks at most.
    :ivar seconds: for how long, in CPU time, so that it goes as far on a busy machine.
    """

    rows: int
    seconds: float


#: Of a page, and of an action on all runs that are found.
SEARCH_PAGE, SEARCH_ALL = Depth(10_000, 0.07), Depth(1_000_000, 10.0)
#: How many payloads are read together at first, and twice as many where that took less seconds.
_READ_AT_FIRST, _QUICK = 50, 0.01
#: How many of the runs that wait, have a turn or run with a concurrency key are found at once.
_MOST_OF_KEY = 10
#: What a run has beside its payload: ``label:TEXT`` and ``key:TEXT`` look there alone.
_OWN = ("label", "key")
#: How many letters before a hit in a payload are shown, and how many from there on.
_BEFORE, _FROM = 20, 60

_AS_JSON = json.JSONEncoder(ensure_ascii=False).encode
_OF_FIELD = re.compile(r"\s*([^\W\d][\w-]*):\s*(\S.*?)\s*", re.DOTALL)

#: How many letters of a payload stand for a label, and of how long a payload at most.
HEAD, LONGEST = 80, 4_000
#: Shorter values are not looked for in keys: they stand there by chance.
_LEAST = 4


def payload_columns(reader: Reader) -> tuple[Any, ...]:
    """Return the columns that `label_of` needs beside the label; none where payloads are hidden."""
    if not reader.state.settings.show_payload:
        return ()
    is_needed = and_(RUNS.c.label.is_(None), func.length(as_type(RUNS.c.payload, Text)) <= LONGEST)
    return (readable(reader, case((is_needed, RUNS.c.payload)).label("payload")),)


def label_of(reader: Reader, row: Row[Any]) -> str | None:
    """Return the label of *row*, or the head of what is shown of its payload."""
    payload = getattr(row, "payload", None)
    if row.label is not None or not payload:
        return None if row.label is None else one_line(str(row.label))
    shown = redacted(payload, reader.state.settings.redact)
    if not isinstance(shown, dict):
        return None
    pairs = (f"{key}: {_plain(value)}" for key, value in shown.items())
    return shortened(one_line(", ".join(pairs)), HEAD)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Keys(NamedTuple):
    """The keys of a run, as people are shown them."""

    idempotency: str | None
    concurrency: str | None


#: What `shown_keys` needs of a run, beside its payload.
KEYS = RUNS.c.job_type, RUNS.c.idempotency_key, RUNS.c.concurrency_key


def shown_keys(state: State, row: Any) -> Keys:
    """Return the keys of *row*, which has `KEYS` and the payload."""
    return Keys(
        shown_key(state, row.job_type, row.payload, "unique", row.idempotency_key),
        shown_key(state, row.job_type, row.payload, "concurrency_key", row.concurrency_key),
    )


def keys_of(reader: Reader, ids: Iterable[int]) -> dict[int, Keys]:
    """Return the keys of the runs *ids*."""
    some = select(RUNS.c.id, *KEYS, readable(reader, RUNS.c.payload))
    rows = reader.rows(some.where(is_one_of(reader, RUNS.c.id, ids)))
    return {row.id: shown_keys(reader.state, row) for row in rows}


def shown_key(state: State, task: str, payload: object, option: str, key: str | None) -> str | None:
    """Return *key* of a run without the values that are hidden in its payload.

    If the task's template has made it, it is made again of what is shown. Another one is hidden if
    it has a hidden value in it.

    :param payload: as it is stored.
    :param option: the option of the task that makes such keys.
    """
    if key is None:
        return None
    handler = state.registry.tasks.get(task)
    whole = cast("JSON", payload)
    if handler is not None and isinstance(payload, Mapping):
        whole = cast("JSON", {**handler.arguments.defaults, **payload})
    shown = redacted(whole, state.settings.redact)
    if shown == whole:
        return key
    template = None if handler is None else getattr(handler.options, option)
    if template is not None and _filled(template, whole) == key:
        return _filled(template, shown) or HIDDEN
    # By hand, perhaps. To hide a part of it would tell which part is the value.
    is_inside = any(len(value) >= _LEAST and value in key for value in _hidden(whole, shown))
    return HIDDEN if is_inside else key


def _filled(template: str, payload: JSON) -> str | None:
    try:
        return template.format_map(cast("Any", payload))
    except (LookupError, AttributeError, TypeError, ValueError):
        return None


def _hidden(stored: JSON, shown: JSON) -> Iterator[str]:
    """Yield each value that is *stored* and not *shown*, as a text."""
    if isinstance(stored, (dict, list)):
        members = stored.items() if isinstance(stored, dict) else enumerate(stored)
        for place, member in members:
            inside = type(shown) is type(stored)
            yield from _hidden(member, cast("Any", shown)[place] if inside else shown)
    elif stored != shown:
        yield str(stored)


class Wanted(NamedTuple):
    """What a search asks for.

    :ivar field: the field of a payload, ``label`` or ``key``; None: it may stand anywhere.
    :ivar value: what to look for there.
    """

    field: str | None
    value: str


class Hit(NamedTuple):
    """Where a run shows what is searched.

    :ivar exact: whether a whole value is it.
    :ivar around: what is shown of the payload or the key around it; None: it stands in the name or
        the label.
    """

    exact: bool
    around: str | None = None


class Found(NamedTuple):
    """Runs that were found.

    :ivar rows: their ids and times, each with the fields of a `Cursor`.
    :ivar floor: the last row at which a search looked that was cut short.
    :ivar hits: where the rows show what is searched, by their ids.
    """

    rows: Sequence[Any]
    floor: Any = None
    hits: Mapping[int, Hit] = {}


@lru_cache
def wanted(search: str) -> Wanted:
    """Return what *search* asks for: ``FIELD:VALUE``, ``label:TEXT``, ``key:TEXT``, or any text."""
    found = _OF_FIELD.fullmatch(search)
    return Wanted(found[1], found[2]) if found else Wanted(None, search)


def named(reader: Reader, search: str) -> list[int]:
    """Return the runs whose id, or a key of which, is *search*, the one with the id first.

    A concurrency key finds those that wait or run, up to `_MOST_OF_KEY`; see `showing` for others.
    """
    c, number = RUNS.c, search.strip().removeprefix("#")
    is_id = number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID
    own = c.concurrency_key >= search, c.concurrency_key <= search
    conditions: list[tuple[Any, ...]] = [(c.idempotency_key == search,)]
    for live in (KEYED, ORDERED, "concurrency_share IS NOT NULL"):
        conditions.append((text(live), *own))
    found = [select(c.id).where(*each).limit(_MOST_OF_KEY).subquery() for each in conditions]
    ids = {row.id for row in reader.rows(union_all(*(select(each) for each in found)))}
    keys = keys_of(reader, ids)
    by_key = sorted((each for each in keys if search in keys[each]), reverse=True)
    by_id: Sequence[Row[Any]] = []
    if is_id:
        by_id = reader.rows(select(c.id).where(c.id == int(number)))
    return list(dict.fromkeys([*(row.id for row in by_id), *by_key]))


def scope(search: str, show_payload: bool) -> str:
    """Return where *search* looks, as a part of a sentence, beside ids and keys."""
    field = wanted(search).field
    if field in _OWN:
        return f"{field}s"
    return f"names of tasks, labels, keys{' and payloads' if show_payload else ''}"


def showing(
    reader: Reader, search: str, rows: Sequence[Row[Any]], most: int, seconds: float
) -> Found:
    """Return the first *most* of *rows* that show *search*.

    No condition of the database looks for it: who measures how long a search takes would learn
    what the pages hide. All keys and payloads are read, and *search* is looked for in what is shown
    of them.

    :param seconds: how long it may take, in CPU time.
    """
    until = time.thread_time() + seconds
    found, hits = list[Row[Any]](), dict[int, Hit]()
    start, size = 0, _READ_AT_FIRST
    while start < len(rows):
        some, began = rows[start : start + size], time.thread_time()
        stored = _stored(reader, [row.id for row in some])
        for number, row in enumerate(some, start):
            if len(found) >= most or (number and time.thread_time() >= until):
                return Found(found, rows[number - 1] if number else None, hits)
            hit = _hit(reader, stored[row.id], search) if row.id in stored else None
            if hit is not None:
                found.append(row)
                hits[row.id] = hit
        start += size
        if time.thread_time() - began < _QUICK:
            size *= 2
    return Found(found, hits=hits)


def _stored(reader: Reader, ids: Sequence[int]) -> dict[int, Row[Any]]:
    c = RUNS.c
    needed: Any = c.payload
    if not reader.state.settings.show_payload:  # Then it is needed for keys alone.
        has_key = or_(c.idempotency_key.is_not(None), c.concurrency_key.is_not(None))
        needed = case((has_key, c.payload)).label("payload")
    rows = select(c.id, *KEYS, c.label, readable(reader, needed))
    return {row.id: row for row in reader.rows(rows.where(is_one_of(reader, c.id, ids)))}


def _hit(reader: Reader, row: Row[Any], search: str) -> Hit | None:
    settings, asked, found = reader.state.settings, wanted(search), None
    payload: JSON = None
    if settings.show_payload and asked.field not in _OWN:
        payload = redacted(row.payload, settings.redact)
    keys = shown_keys(reader.state, row)
    shown = "" if payload is None else _AS_JSON(payload)
    whole = "\n".join(filter(None, (row.job_type, row.label, *keys, shown))).lower()
    if not any(part in whole for part in _written(asked.value)):
        return None  # As in most rows.
    for field, value, part in _places(row, keys, payload, search):
        if part.lower() not in value.lower():
            continue
        if value.lower() == part.lower():
            return Hit(True, field and f"{field}: {value}")
        found = found or Hit(False, field and _around(f"{field}: {value}", part))
    for part in _written(search):
        if found is None and part in shown.lower():
            return Hit(False, _around(shown, part))
    return found


@lru_cache
def _written(part: str) -> tuple[str, str]:
    """Return *part* as a text has it, and as JSON has that, in lower case."""
    return part.lower(), _AS_JSON(part)[1:-1].lower()


def _places(
    row: Row[Any], keys: Keys, payload: JSON, search: str
) -> Iterator[tuple[str | None, str, str]]:
    """Yield where to look: a field, its value, and what to look for; None: what lists show."""
    asked = wanted(search)
    part = asked.value if asked.field in _OWN else search  # A key may be FIELD:VALUE, too.
    own = (
        (None, "name", row.job_type),
        (None, "label", row.label),
        *(("key", "key", k) for k in keys),
    )
    for field, kind, value in own:
        if value and (asked.field == kind or asked.field not in _OWN):
            yield field, value, part
    for field, value in _values(payload) if payload is not None else ():
        if asked.field in (None, field):
            yield field, value, asked.value


def _around(shown: str, part: str) -> str:
    """Return *shown* where *part* is in it."""
    at = max(0, shown.lower().find(part.lower()) - _BEFORE)
    text = one_line(shown[at : at + _BEFORE + _FROM])
    return f"{'…' if at else ''}{text}{'…' if len(shown) > at + _BEFORE + _FROM else ''}"


def _values(value: JSON, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield each plain value in a payload, as a text, with the field that has it."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _values(member, key)
    elif isinstance(value, list):
        for member in value:
            yield from _values(member, field)
    else:
        yield field, value if isinstance(value, str) else json.dumps(value)
