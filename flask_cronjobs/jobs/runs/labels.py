"""What lists say that a run is for: its label, or the head of its payload."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row, Text, and_, case, cast, func

from ...text import one_line, redacted, shortened
from ..reader import RUNS, Reader, readable

#: How many letters of a payload stand for a label, and of how long a payload at most.
HEAD, LONGEST = 80, 4_000


def payload_columns(reader: Reader) -> tuple[Any, ...]:
    """Return the columns that `label_of` needs beside the label; none where payloads are hidden."""
    if not reader.state.settings.show_payload:
        return ()
    is_needed = and_(RUNS.c.label.is_(None), func.length(cast(RUNS.c.payload, Text)) <= LONGEST)
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
