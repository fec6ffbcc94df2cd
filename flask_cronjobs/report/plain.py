"""Turn reports into data for JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any, cast


def plain_data(value: Any) -> Any:
    """Return *value* for JSON: records as objects, times as ISO 8601 texts in UTC."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if (as_dict := getattr(value, "_asdict", None)) is not None:  # A named tuple, or a row.
        return plain_data(as_dict())
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, (list, tuple)):
        return [plain_data(member) for member in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: plain_data(member) for key, member in members.items()}
    return value
