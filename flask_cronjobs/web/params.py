"""Read and check the parameters of URLs and forms. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from werkzeug.exceptions import BadRequest

from ..report import RunFilter
from ..report.ages import parse_age, print_age
from ..types import STATUSES, Status

#: Ids are 64-bit; SQLite refuses what is larger.
MAX_ID = 2**63 - 1
MAX_TEXT = 500
MAX_PAGE = 200


class BadQuery(BadRequest):
    """A parameter is wrong: 400 with its name and what to write."""


def run_filter(args: Mapping[str, str]) -> RunFilter:
    """Return the filter that the parameters describe; absent or empty ones mean any.

    :raises BadQuery: a value is wrong.
    """
    return RunFilter(
        status=_status(args),
        task=text(args, "task"),
        queue=text(args, "queue"),
        error=text(args, "error"),
        # Empty means runs without a type.
        error_type=text(args, "error_type", empty=""),
        definition=text(args, "definition"),
        older_than=_age(args, "older"),
        newer_than=_age(args, "newer"),
        overdue=_flag(args, "overdue"),
        stale=_flag(args, "stale"),
    )


def filter_args(which: RunFilter) -> dict[str, str]:
    """Return the parameters that `run_filter` reads as *which*."""
    names = {"older_than": "older", "newer_than": "newer"}
    found: dict[str, str] = {}
    for field in fields(which):
        value: Any = getattr(which, field.name)
        if value is None or value is False:
            continue
        shown = print_age(value) if isinstance(value, float) else "1" if value is True else value
        found[names.get(field.name, field.name)] = str(shown)
    return found


def row_id(args: Mapping[str, str], name: str) -> int | None:
    """Return the id in *name*, or None if it is absent.

    :raises BadQuery: it is not an id.
    """
    value = args.get(name, "").strip()
    if not value:
        return None
    if not re.fullmatch("[0-9]{1,19}", value) or not 0 < int(value) <= MAX_ID:
        raise BadQuery(f"{name} must be a number from 1 up.")
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
        raise BadQuery(f"{name} must be a text of at most {MAX_TEXT} characters.")
    return value


def needed(args: Mapping[str, str], name: str) -> str:
    """Return the text in *name*.

    :raises BadQuery: it is absent or empty, or `text` refuses it.
    """
    value = text(args, name)
    if value is None:
        raise BadQuery(f"{name} is missing.")
    return value


def _status(args: Mapping[str, str]) -> Status | None:
    value = text(args, "status")
    if value is not None and value not in STATUSES:
        raise BadQuery(f"status must be one of {', '.join(STATUSES)}.")
    return value


def _age(args: Mapping[str, str], name: str) -> float | None:
    value = text(args, name)
    if value is None:
        return None
    age = parse_age(value)
    if age is None:
        raise BadQuery(f"{name} must be an age such as 30m, 2h or 7d.")
    return age


def _flag(args: Mapping[str, str], name: str) -> bool:
    value = args.get(name, "")
    if value not in ("", "0", "1"):
        raise BadQuery(f"{name} must be 1 or 0.")
    return value == "1"
