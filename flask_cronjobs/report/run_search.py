"""Search runs by id, key, task or payload. What the pages hide is not found, either."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import ColumnElement, String, cast, or_, select, union

from ..types import JSON
from .reader import RUNS, Query, Reader, is_one_of, readable
from .redact import redacted

MAX_ID = 2**63 - 1
#: How many payloads are looked at together.
_CHUNK = 1_000


def named(search: str) -> Query:
    """Return a SELECT of the ids of the runs whose id or idempotency key is *search*."""
    by_key = select(RUNS.c.id).where(RUNS.c.idempotency_key == search)
    number = search.strip().removeprefix("#")
    if number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID:
        return union(select(RUNS.c.id).where(RUNS.c.id == int(number)), by_key)
    return by_key


def mentions(reader: Reader, search: str) -> ColumnElement[bool]:
    """Return the condition that a task's name or a payload may have *search* in it."""
    of_task = RUNS.c.job_type.icontains(search, autoescape=True)
    if not reads_payloads(reader):
        return of_task
    payload = cast(RUNS.c.payload, String)
    # As it is stored: with escapes, on SQLite also those of letters beyond ASCII.
    stored = json.dumps(search, ensure_ascii=reader.sqlite)[1:-1]
    texts = {search, stored}
    return or_(of_task, *(payload.icontains(each, autoescape=True) for each in sorted(texts)))


def reads_payloads(reader: Reader) -> bool:
    """Return whether a search looks into payloads, where it may find what the pages hide."""
    return reader.state.settings.show_payload


def confirmed(reader: Reader, search: str, ids: Sequence[int], most: int) -> list[int]:
    """Return the first *most* of *ids* that have *search* also in what the pages show."""
    if not reads_payloads(reader):
        return list(ids[:most])
    found: list[int] = []
    start, size = 0, min(most, _CHUNK)
    while start < len(ids) and len(found) < most:
        some = ids[start : start + size]
        real = _confirmed(reader, search, some)
        found += [run_id for run_id in some if run_id in real]
        start, size = start + size, _CHUNK
    return found[:most]


def _confirmed(reader: Reader, search: str, ids: Sequence[int]) -> set[int]:
    of_task = RUNS.c.job_type.icontains(search, autoescape=True)
    by_task = select(RUNS.c.id).where(is_one_of(reader, RUNS.c.id, ids), of_task)
    found = {row.id for row in reader.rows(by_task)}
    # Only of the others are payloads read, which may be large.
    left = [run_id for run_id in ids if run_id not in found]
    payloads = select(RUNS.c.id, readable(reader, RUNS.c.payload))
    rows = reader.rows(payloads.where(is_one_of(reader, RUNS.c.id, left))) if left else ()
    return found | {row.id for row in rows if _shows(reader, row.payload, search.lower())}


def _shows(reader: Reader, payload: JSON, search: str) -> bool:
    """Return whether *search* is in what the pages show of *payload*.

    Credentials in texts are looked for last, which takes long: most hidden matches have a name.
    """
    names = reader.state.settings.redact
    named = redacted(payload, names, of_text=str)
    return _has(named, search) and _has(redacted(payload, names), search)


def _has(payload: JSON, search: str) -> bool:
    shown = json.dumps(payload, ensure_ascii=False).lower()
    return search in shown or json.dumps(search, ensure_ascii=False)[1:-1] in shown
