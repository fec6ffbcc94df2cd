"""What the rows say that an exchange returned."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from ..types import Claim
from .connection import Rows
from .dialect import Dialect
from .rows import Exchange
from .sql.exchange import CLAIMED

# Where the values are in a row, see `sql.exchange`: to look for their names takes too long.
_OF_CLAIM = CLAIMED.index("rank")
_TASK = itemgetter(CLAIMED.index("job_type"))
_PLACE = itemgetter(*(CLAIMED.index(name) for name in ("rank", "run_at", "id")))


def received(dialect: Dialect, rows: Rows, token: str) -> Exchange:
    """Return the claims and the recorded outcomes in *rows*.

    :param token: the token of the claims.
    """
    claimed = [row for row in rows if _TASK(row) is not None]
    claimed.sort(key=_PLACE)
    others = [row for row in rows if _TASK(row) is None]
    found = _recorded_at_once(others) if dialect.one_statement else recorded(others)
    return found._replace(claims=tuple([_claim(row, token) for row in claimed]))


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


def _claim(row: Sequence[Any], token: str) -> Claim:
    claim = Claim._make((row[0], token, *row[1:_OF_CLAIM]))
    if type(claim.max_attempts) is int:
        return claim
    return claim._replace(max_attempts=most_attempts(claim.max_attempts, claim.attempt))


def most_attempts(most: object, attempts: object) -> int:
    """Return ``max_attempts``; if it is no number, which SQLite accepts, the attempts so far."""
    return most if isinstance(most, int) else int(str(attempts))
