"""Read and check the parameters of URLs and forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar, cast

from werkzeug.exceptions import BadRequest

from ..core.tasks.options import is_moment
from ..insights.run_filters import FILTERS, RunFilter
from ..insights.run_list import Cursor
from ..insights.wait_reasons import WAITS
from ..text.humanize import parse_age, parse_time, print_age
from ..types import MAX_ID, STATUSES

MAX_TEXT = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The end of the year 9999, in microseconds since the epoch.
_LAST_MOMENT = 253_402_300_799_999_999
MAX_PAGE = 200
Choice = TypeVar("Choice", bound=str)


class BadQuery(BadRequest):
    """A parameter is invalid: a 400 with its name and the expected value."""


def run_filter(args: Mapping[str, str]) -> RunFilter:
    """Return the filter that the parameters describe; absent or empty ones match all runs.

    :raises BadQuery: a value is wrong.
    """
    return RunFilter(
        **{filter_.field: _READ.get(filter_.kind, text)(args, filter_.name) for filter_ in FILTERS}
    )


def filter_args(which: RunFilter) -> dict[str, str]:
    """Return the parameters from which `run_filter` makes *which*."""
    return {filter_.name: _printed(value) for filter_, value in which.items()}


def _printed(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return print_age(value) if isinstance(value, float) else "1" if value is True else str(value)


def typed_args(args: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a filter as they were typed, without empty ones.

    An empty error type or group is kept, since it finds runs without one.
    """
    values_by_filter = {filter_: args[filter_.name] for filter_ in FILTERS if filter_.name in args}
    return {
        filter_.name: value
        for filter_, value in values_by_filter.items()
        if value or filter_.kind == "type"
    }


def cursor(args: Mapping[str, str]) -> Cursor | None:
    """Return the cursor in ``before``, as `cursor_text` writes it, or None if it is absent.

    :raises BadQuery: it is not a cursor.
    """
    number, _, moment = args.get("before", "").strip().partition("_")
    if not number:
        return None
    run_id = id_of(number, "before")
    if not moment:
        return Cursor(run_id)
    if not re.fullmatch("[0-9]{1,18}", moment) or int(moment) > _LAST_MOMENT:
        raise BadQuery(
            "The parameter before must be the value in the link to the next page of runs."
        )
    return Cursor(run_id, _EPOCH + timedelta(microseconds=int(moment)))


def cursor_text(cursor: Cursor) -> str:
    """Return *cursor* as a text for URLs."""
    if cursor.moment is None:
        return str(cursor.id)
    return f"{cursor.id}_{(cursor.moment - _EPOCH) // timedelta(microseconds=1)}"


def row_id(args: Mapping[str, str], name: str) -> int | None:
    """Return the id in *name*, or None if it is absent.

    :raises BadQuery: it is not an id.
    """
    value = args.get(name, "").strip()
    return id_of(value, name) if value else None


def id_of(value: str, name: str) -> int:
    """Return the id in *value*, the text of the parameter *name*.

    :raises BadQuery: it is not an id.
    """
    value = value.strip()
    if not re.fullmatch("[0-9]{1,19}", value) or not 0 < int(value) <= MAX_ID:
        raise BadQuery(f"{name} must be a whole number, at least 1.")
    return int(value)


def clamped(args: Mapping[str, str], name: str, default: int, most: int = MAX_PAGE) -> int:
    """Return the number in *name*, or *default*; at most *most*.

    :raises BadQuery: it is not a number.
    """
    return min(row_id(args, name) or default, most)


def text(args: Mapping[str, str], name: str, empty: str | None = None) -> str | None:
    """Return the text in *name*, None if it is absent, or *empty* if it is empty.

    :raises BadQuery: it is too long, or has characters that no database stores.
    """
    value = args.get(name)
    if value is None:
        return None
    if not value.strip():
        return empty
    if len(value) > MAX_TEXT or "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise BadQuery(f"{name} must be valid text of at most {MAX_TEXT} characters.")
    return value


def needed(args: Mapping[str, str], name: str) -> str:
    """Return the text in *name*.

    :raises BadQuery: it is absent or empty, or `text` refuses it.
    """
    value = text(args, name)
    if value is None:
        raise BadQuery(f"{name} is missing.")
    return value


def choice(args: Mapping[str, str], name: str, choices: Sequence[Choice]) -> Choice | None:
    """Return the choice in *name*, or None if it is absent.

    :raises BadQuery: it is not one of *choices*.
    """
    value = text(args, name)
    if value is not None and value not in choices:
        raise BadQuery(f"{name} must be one of {', '.join(choices)}.")
    return cast("Choice | None", value)


def _age(args: Mapping[str, str], name: str) -> float | None:
    value = text(args, name)
    age = None if value is None else parse_age(value)
    if value is not None and age is None:
        raise BadQuery(f"{name} must be an age such as 30m, 2h or 7d.")
    return age


def _time(args: Mapping[str, str], name: str) -> datetime | None:
    value = text(args, name)
    moment = None if value is None else parse_time(value)
    if value is not None and not is_moment(moment):
        raise BadQuery(f"{name} must be a time with a time zone, such as 2026-11-20T06:00Z.")
    return moment


def flag(args: Mapping[str, str], name: str) -> bool:
    """Return whether *name* is 1.

    :raises BadQuery: it is neither 1 nor 0.
    """
    value = args.get(name, "")
    if value not in ("", "0", "1"):
        raise BadQuery(f"{name} must be 1 or 0.")
    return value == "1"


_READ: dict[str, Callable[[Mapping[str, str], str], Any]] = {
    "type": lambda args, name: text(args, name, empty=""),
    "status": lambda args, name: choice(args, name, STATUSES),
    "age": _age,
    "time": _time,
    "wait": lambda args, name: choice(args, name, tuple(WAITS)),
    "flag": flag,
    "id": row_id,
}


def is_short(value: str) -> bool:
    """Return whether *value*, which has not been checked, is short enough to repeat."""
    return len(value) <= MAX_TEXT
