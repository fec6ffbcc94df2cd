"""What people are shown of a run: what it is for, and its keys; and the search for those.

Neither shows nor finds what the pages hide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, Row, Text, and_, case, func, or_, select
from sqlalchemy import cast as as_type

from ...text import one_line, shortened
from ...text.redaction import HIDDEN, redacted, strip_credentials
from ...types import JSON, MAX_ID
from ..reader import RUNS, Reader, is_one_of, readable
from ..state import State

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


def searched(search: str) -> ColumnElement[bool]:
    """Return the condition that a run's label or the name of its task begins with *search*."""
    columns = RUNS.c.label, RUNS.c.job_type
    return or_(*(column.istartswith(search, autoescape=True) for column in columns))


def named(reader: Reader, search: str) -> list[int]:
    """Return the runs whose id or idempotency key is *search*, the one with the id first.

    A key that has a hidden value in it is not found: finding it would confirm a guess. Most of
    those are not even looked up, so that the time tells nothing either.
    """
    c, number = RUNS.c, search.strip().removeprefix("#")
    is_id = number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID
    by_id = reader.rows(select(c.id).where(c.id == int(number))) if is_id else ()
    found = [row.id for row in by_id]
    if strip_credentials(search) == search:
        found += sorted(_by_key(reader, search), reverse=True)
    return list(dict.fromkeys(found))


def _by_key(reader: Reader, key: str) -> Iterator[int]:
    """Yield the runs whose idempotency key is *key*, if they are shown with it.

    One statement, whether there is such a run or not.
    """
    c, closed = RUNS.c, closed_tasks(reader.state)
    some = select(c.id, *KEYS, readable(reader, c.payload)).where(c.idempotency_key == key)
    for row in reader.rows(some.where(c.job_type.not_in(closed)) if closed else some):
        if shown_keys(reader.state, row).idempotency == key:
            yield row.id


def closed_tasks(state: State) -> list[str]:
    """Return the tasks whose idempotency keys are not looked up, since they may hide a value.

    Their templates name one; or keys are given by hand, and an argument is one.
    """
    hides = state.settings.redact
    return [
        name
        for name, handler in state.registry.tasks.items()
        if _names_hidden(handler.options.unique, hides)
        or (handler.options.unique is None and any(_hides(each, hides) for each in handler.named))
    ]


def open_tasks(state: State) -> list[str]:
    """Return the tasks whose concurrency keys can be looked up: their templates hide nothing."""
    hides = state.settings.redact
    return [
        name
        for name, handler in state.registry.tasks.items()
        if not _names_hidden(handler.options.concurrency_key, hides)
    ]


def _names_hidden(template: str | None, hides: Sequence[str]) -> bool:
    fields = (field for _, field, _, _ in Formatter().parse(template or "") if field)
    parts = {part for field in fields for part in re.split(r"[.\[\]]", field) if part}
    return any(_hides(part, hides) for part in parts)


def _hides(name: str, hides: Sequence[str]) -> bool:
    return redacted({name: "x"}, hides) != {name: "x"}
