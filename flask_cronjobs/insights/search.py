"""What people are shown of a run: what it is for, and its keys; and the search for those.

Neither shows nor finds what the pages hide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, Row, Text, and_, case, func, or_, select
from sqlalchemy import cast as as_type

from ..core.app_state import State
from ..text import one_line, shortened
from ..text.redaction import HIDDEN, redacted, strip_credentials
from ..types import JSON, MAX_ID
from .reader import RUNS, Reader

#: How many letters of a payload stand for a label, and of how long a payload at most.
HEAD, LONGEST = 80, 4_000


def payload_columns(reader: Reader) -> tuple[Any, ...]:
    """Return the columns that `label_of` needs beside the label; none where payloads are hidden."""
    if not reader.state.settings.show_payload:
        return ()
    is_needed = and_(RUNS.c.label.is_(None), func.length(as_type(RUNS.c.payload, Text)) <= LONGEST)
    return (case((is_needed, RUNS.c.payload)).label("payload"),)


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


def shown_key(state: State, task: str, payload: object, option: str, key: str | None) -> str | None:
    """Return *key* of a run without the values that are hidden in its payload.

    If the task's template has made it, it is made again of what is shown. Another one, by hand or
    of another payload, is hidden if a value is: the key may have all of it, or a part.

    :param payload: as it is stored.
    :param option: the option of the task that makes such keys.
    """
    if key is None:
        return None
    handler = state.registry.tasks.get(task)
    whole = cast("JSON", payload)
    if handler is not None and isinstance(payload, Mapping):
        whole = cast("JSON", {**handler.arguments.defaults, **payload})
    names = state.settings.redact
    shown = redacted(whole, names)
    template = None if handler is None else getattr(handler.options, option)
    if template is not None and _filled(template, whole) == key:
        return _filled(template, shown) or HIDDEN
    if option == "concurrency_key" and (key == task or key.startswith("definition:")):
        return key
    return HIDDEN if shown != whole or _names_hidden(template, names) else key


def _filled(template: str, payload: JSON) -> str | None:
    try:
        return template.format_map(cast("Any", payload))
    except (LookupError, AttributeError, TypeError, ValueError):
        return None


def searched(search: str) -> ColumnElement[bool]:
    """Return the condition that a run's label or the name of its task begins with *search*."""
    columns = RUNS.c.label, RUNS.c.job_type
    return or_(*(column.istartswith(search, autoescape=True) for column in columns))


def named(reader: Reader, search: str) -> list[int]:
    """Return the runs whose id or idempotency key is *search*, the one with the id first.

    A key that has a hidden value in it is not found: finding it would confirm a guess.
    """
    c, number = RUNS.c, search.strip().removeprefix("#")
    is_id = number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID
    by_id = reader.rows(select(c.id).where(c.id == int(number))) if is_id else ()
    found = [row.id for row in by_id]
    if strip_credentials(search) == search:
        found += _by_key(reader, search)
    return list(dict.fromkeys(found))


def _by_key(reader: Reader, key: str) -> list[int]:
    """Return the runs whose idempotency key is *key*, the latest first, if they are shown with it.

    The time of a guess must not tell whether it is a hidden key. Most of those are not looked up;
    and for each guess one payload is read: of the latest run with that key, or of the latest run.
    """
    c, closed = RUNS.c, closed_tasks(reader.state)
    # In a range, so that PostgreSQL takes the index of keys.
    is_key = and_(c.idempotency_key >= key, c.idempotency_key <= key, c.job_type.not_in(closed))
    latest = select(c.id).where(is_key).order_by(c.idempotency_key, c.id.desc()).limit(1)
    either = func.coalesce(latest.scalar_subquery(), select(func.max(c.id)).scalar_subquery())
    some = select(c.id, *KEYS, c.payload).order_by(c.id.desc())

    def shown(condition: ColumnElement[bool]) -> list[int]:
        rows = reader.rows(some.where(condition))
        return [row.id for row in rows if shown_keys(reader.state, row).idempotency == key]

    return shown(is_key) if shown(c.id == either) else []


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
