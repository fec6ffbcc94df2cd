"""What the rows say that an exchange returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any

from ..types import JSON, Claim
from .connection import Rows
from .dialect import Dialect, json_value
from .rows import Exchange
from .sql.candidates import LOST

_UNKNOWN = datetime.min.replace(tzinfo=timezone.utc)


def received(dialect: Dialect, rows: Rows, token: str) -> Exchange:
    """Return the claims and the recorded outcomes in *rows*.

    :param token: the token of the claims.
    """
    claimed = [row for row in rows if row.job_type is not None]
    claimed.sort(key=attrgetter("rank", "run_at", "id"))
    others = [row for row in rows if row.job_type is None]
    found = _recorded_at_once(others) if dialect.one_statement else recorded(others)
    return replace(found, claims=tuple([_claim(dialect, row, token) for row in claimed]))


def recorded(rows: Rows) -> Exchange:
    """Return the recorded outcomes in *rows*, one for each run."""
    return Exchange(
        recorded=frozenset([row.id for row in rows]),
        cancelled=frozenset([row.id for row in rows if row.stored == "cancelled"]),
    )


def _recorded_at_once(rows: Rows) -> Exchange:
    ids = {row.stored: frozenset(map(int, row.ids.split(","))) for row in rows}
    return Exchange(
        recorded=frozenset[int]().union(*ids.values()),
        cancelled=ids.get("cancelled", frozenset()),
    )


def _claim(dialect: Dialect, row: Sequence[Any], token: str) -> Claim:
    # A thousand rows come at once, so the way is short for what most of them have.
    id_, job_type, payload_text, attempts, most, slot, key, definition_id, group, *more = row
    payload: dict[str, JSON] = {}
    scheduled_for, broken = _UNKNOWN, None
    try:
        if payload_text != "{}":
            payload = json_value(payload_text)
        scheduled_for = dialect.moment(slot)
        if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("its payload is not a JSON object")
    except (AttributeError, TypeError, ValueError) as error:  # SQLite accepts any text.
        broken = f"the run's row cannot be read: {error!r}. Correct it in job_runs."
    most = most_attempts(most, attempts)
    return Claim(
        id=id_,
        token=token,
        job_type=job_type,
        payload=payload,
        attempt=attempts,
        max_attempts=most,
        scheduled_for=scheduled_for,
        idempotency_key=key,
        definition_id=definition_id,
        concurrency_key=group,
        broken=broken,
        alone=is_alone(attempts, most, more[0]),
    )


def is_alone(attempts: int, most: int, error_type: str | None) -> bool:
    """Return whether this attempt must have its process to itself; see `Claim`."""
    return attempts >= most or error_type == LOST


def most_attempts(most: object, attempts: object) -> int:
    """Return ``max_attempts``; if it is no number, which SQLite accepts, the attempts so far."""
    return most if isinstance(most, int) else int(str(attempts))
