"""Search runs by id, key, name, label and payload. It does not find what the pages hide."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, select, union

from ...text import one_line, redacted
from ...types import JSON
from ..reader import RUNS, Query, Reader, is_one_of, readable

MAX_ID = 2**63 - 1
#: How long a page's search of payloads may take, and one for an action on all, in seconds.
SEARCH_FOR, SEARCH_ALL_FOR = 1.0, 10.0
#: How many payloads are read together at first, and twice as many where that took less seconds.
_CHUNK, _QUICK = 50, 0.05
#: How many letters before a hit in a payload are shown, and how many from there on.
_BEFORE, _FROM = 20, 60

_OF_FIELD = re.compile(r"\s*([^\W\d][\w-]*):\s*(\S.*?)\s*", re.DOTALL)


class Wanted(NamedTuple):
    """What a search asks for.

    :ivar field: the field of a payload, or ``label``; None: it may stand anywhere.
    :ivar value: what to look for there.
    """

    field: str | None
    value: str


class Hit(NamedTuple):
    """Where a run shows what is searched.

    :ivar exact: whether a whole value is it.
    :ivar around: what is shown of the payload around it; None: it stands in the name or the label.
    """

    exact: bool
    around: str | None = None


class Showing(NamedTuple):
    """The rows that show what is searched.

    :ivar looked: at how many rows the search looked.
    :ivar hits: where each shows it, by its id.
    """

    rows: list[Row[Any]]
    looked: int
    hits: dict[int, Hit]


def wanted(search: str) -> Wanted:
    """Return what *search* asks for: ``FIELD:VALUE``, ``label:TEXT``, or any text."""
    found = _OF_FIELD.fullmatch(search)
    return Wanted(found[1], found[2]) if found else Wanted(None, search)


def named(search: str) -> Query:
    """Return a SELECT of the ids of the runs whose id or idempotency key is *search*."""
    by_key = select(RUNS.c.id).where(RUNS.c.idempotency_key == search)
    number = search.strip().removeprefix("#")
    if number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID:
        return union(select(RUNS.c.id).where(RUNS.c.id == int(number)), by_key)
    return by_key


def searches_payloads(reader: Reader, search: str) -> bool:
    """Return whether *search* looks into payloads."""
    return reader.state.settings.show_payload and wanted(search).field != "label"


def scope(search: str, show_payload: bool) -> str:
    """Return where *search* looks, as a part of a sentence, beside ids and keys."""
    if wanted(search).field == "label":
        return "labels"
    return "names of tasks, labels and payloads" if show_payload else "names of tasks and labels"


def showing(
    reader: Reader, search: str, rows: Sequence[Row[Any]], most: int, seconds: float
) -> Showing:
    """Return the first *most* of *rows* that show *search*.

    No condition of the database looks for it: who measures how long a search takes would learn
    what the pages hide. All payloads are read, and *search* is looked for in what is shown of them.

    :param seconds: how long it may take.
    """
    until = time.monotonic() + seconds
    found, hits = list[Row[Any]](), dict[int, Hit]()
    start, size = 0, _CHUNK
    while start < len(rows):
        some, began = rows[start : start + size], time.monotonic()
        stored = _stored(reader, [row.id for row in some])
        for number, row in enumerate(some, start):
            if len(found) >= most or (number and time.monotonic() >= until):
                return Showing(found, number, hits)
            hit = _hit(reader, stored[row.id], search) if row.id in stored else None
            if hit is not None:
                found.append(row)
                hits[row.id] = hit
        start += size
        if time.monotonic() - began < _QUICK:
            size *= 2
    return Showing(found, len(rows), hits)


def is_exact(row: Any, search: str | None, hits: Mapping[int, Hit]) -> bool:
    """Return whether a whole value, the name or the label of *row* is what *search* asks for."""
    value = wanted(search or "").value.lower()
    in_payload = row.id in hits and hits[row.id].exact
    return in_payload or value in (row.task.lower(), (row.label or "").lower())


def _stored(reader: Reader, ids: Sequence[int]) -> dict[int, Row[Any]]:
    columns = RUNS.c.id, RUNS.c.job_type, RUNS.c.label, readable(reader, RUNS.c.payload)
    wanted_rows = select(*columns).where(is_one_of(reader, RUNS.c.id, ids))
    return {row.id: row for row in reader.rows(wanted_rows)}


def _hit(reader: Reader, row: Row[Any], search: str) -> Hit | None:
    payload = redacted(row.payload, reader.state.settings.redact)
    asked, found = wanted(search), None
    for field, value in _values(payload):
        if asked.field is not None and asked.field != field:
            continue
        if value.lower() == asked.value.lower():
            return Hit(True, f"{field}: {value}")
        if asked.field is not None and asked.value.lower() in value.lower():
            found = found or Hit(False, _around(f"{field}: {value}", asked.value))
    if any(search.lower() in text.lower() for text in (row.job_type, row.label or "")):
        return found or Hit(False)
    return found or _hit_in_text(json.dumps(payload, ensure_ascii=False), search)


def _hit_in_text(shown: str, search: str) -> Hit | None:
    for part in (search, json.dumps(search, ensure_ascii=False)[1:-1]):
        if part.lower() in shown.lower():
            return Hit(False, _around(shown, part))
    return None


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
