"""Labels and keys of runs as people may see them, and the search for them.

Values that the pages hide are neither shown nor found.
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

#: A run without a label shows up to `HEAD` characters of its payload, unless the payload has more
#: than `LONGEST`.
HEAD, LONGEST = 80, 4_000


def payload_columns(reader: Reader) -> tuple[Any, ...]:
    """Return the columns that `label_of` needs besides the label; none if payloads are hidden."""
    if not reader.state.settings.show_payload:
        return ()
    is_needed = and_(RUNS.c.label.is_(None), func.length(as_type(RUNS.c.payload, Text)) <= LONGEST)
    return (case((is_needed, RUNS.c.payload)).label("payload"),)


def label_of(reader: Reader, row: Row[Any]) -> str | None:
    """Return the label of *row*, or the beginning of its redacted payload."""
    payload = getattr(row, "payload", None)
    if row.label is not None or not payload:
        return None if row.label is None else one_line(str(row.label))
    visible = redacted(payload, reader.state.settings.redact)
    if not isinstance(visible, dict):
        return None
    pairs = (f"{key}: {_plain(value)}" for key, value in visible.items())
    return shortened(one_line(", ".join(pairs)), HEAD)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Keys(NamedTuple):
    """The keys of a run as people may see them."""

    idempotency: str | None
    concurrency: str | None


#: The columns of a run that `shown_keys` needs besides the payload.
KEYS = RUNS.c.job_type, RUNS.c.idempotency_key, RUNS.c.concurrency_key


def shown_keys(state: State, row: Any) -> Keys:
    """Return the visible keys of *row*, which has `KEYS` and the payload."""
    return Keys(
        shown_key(state, row.job_type, row.payload, "unique", row.idempotency_key),
        shown_key(state, row.job_type, row.payload, "concurrency_key", row.concurrency_key),
    )


def shown_key(state: State, task: str, payload: object, option: str, key: str | None) -> str | None:
    """Return the *key* of a run without the values that are hidden in its payload.

    If the task's template has made the key, it is made again from the redacted payload. Any other
    key is hidden if a value is hidden, since it may contain that value.

    :param payload: the payload as it is stored.
    :param option: the name of the task's option that makes such keys.
    """
    if key is None:
        return None
    declared_task = state.registry.tasks.get(task)
    whole = cast("JSON", payload)
    if declared_task is not None and isinstance(payload, Mapping):
        whole = cast("JSON", {**declared_task.arguments.defaults, **payload})
    names = state.settings.redact
    visible = redacted(whole, names)
    template = None if declared_task is None else getattr(declared_task.options, option)
    if template is not None and _filled(template, whole) == key:
        return _filled(template, visible) or HIDDEN
    if option == "concurrency_key" and (key == task or key.startswith("definition:")):
        return key
    return HIDDEN if visible != whole or _names_hidden(template, names) else key


def _filled(template: str, payload: JSON) -> str | None:
    try:
        return template.format_map(cast("Any", payload))
    except (LookupError, AttributeError, TypeError, ValueError):
        return None


def searched(search: str) -> ColumnElement[bool]:
    """Return the condition that a run's label or its task's name begins with *search*."""
    columns = RUNS.c.label, RUNS.c.job_type
    return or_(*(column.istartswith(search, autoescape=True) for column in columns))


def named(reader: Reader, search: str) -> list[int]:
    """Return the runs whose id or idempotency key is *search*, the run with the id first.

    A key with a hidden value is not found, since finding it would confirm a guess.
    """
    c, number = RUNS.c, search.strip().removeprefix("#")
    is_id = number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= MAX_ID
    by_id = reader.rows(select(c.id).where(c.id == int(number))) if is_id else ()
    ids = [row.id for row in by_id]
    if strip_credentials(search) == search:
        ids += _by_key(reader, search)
    return list(dict.fromkeys(ids))


def _by_key(reader: Reader, key: str) -> list[int]:
    """Return the runs that are shown with the idempotency key *key*, latest first.

    The time that a guess takes must not reveal whether it is a hidden key. Most hidden keys are not
    looked up, and each guess reads one payload: that of the latest run with the key or, if there
    is none, that of the latest run of all.
    """
    c, closed = RUNS.c, closed_tasks(reader.state)
    # A range makes PostgreSQL use the index of keys.
    is_key = and_(c.idempotency_key >= key, c.idempotency_key <= key, c.job_type.not_in(closed))
    latest = select(c.id).where(is_key).order_by(c.idempotency_key, c.id.desc()).limit(1)
    either = func.coalesce(latest.scalar_subquery(), select(func.max(c.id)).scalar_subquery())
    statement = select(c.id, *KEYS, c.payload).order_by(c.id.desc())

    def shown(condition: ColumnElement[bool]) -> list[int]:
        rows = reader.rows(statement.where(condition))
        return [row.id for row in rows if shown_keys(reader.state, row).idempotency == key]

    return shown(is_key) if shown(c.id == either) else []


def closed_tasks(state: State) -> list[str]:
    """Return the tasks whose idempotency keys are not looked up, since they may hide a value.

    Either their template names a hidden value, or callers give the keys and an argument is hidden.
    """
    hides = state.settings.redact
    return [
        name
        for name, task in state.registry.tasks.items()
        if _names_hidden(task.options.unique, hides)
        or (task.options.unique is None and any(_hides(argument, hides) for argument in task.named))
    ]


def open_tasks(state: State) -> list[str]:
    """Return the tasks whose concurrency keys can be looked up, since they hide no value."""
    hides = state.settings.redact
    return [
        name
        for name, task in state.registry.tasks.items()
        if not _names_hidden(task.options.concurrency_key, hides)
    ]


def _names_hidden(template: str | None, hides: Sequence[str]) -> bool:
    fields = (field for _, field, _, _ in Formatter().parse(template or "") if field)
    parts = {part for field in fields for part in re.split(r"[.\[\]]", field) if part}
    return any(_hides(part, hides) for part in parts)


def _hides(name: str, hides: Sequence[str]) -> bool:
    return redacted({name: "x"}, hides) != {name: "x"}
