"""The effects of `once`, and those in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ScalarSelect, select, text

from ..models.conditions import OPEN_EFFECT
from ..store.operations import is_in_doubt
from ..types import without_secret
from .counts import capped
from .reader import EFFECTS, Source, reading


@dataclass(frozen=True, slots=True)
class EffectView:
    """One effect.

    :ivar state: ``begun``, ``done`` or ``in_doubt``. It is also in doubt if it was begun and
        its owner no longer holds it.
    """

    id: int
    key: str
    state: str
    run_id: int | None
    worker: str | None
    created_at: datetime
    done_at: datetime | None


def effects(
    source: Source, *, open_only: bool = False, before: int | None = None, limit: int = 50
) -> tuple[EffectView, ...]:
    """Return effects, newest first.

    :param open_only: leave out those that are done.
    :param before: only smaller ids, for paging.
    """
    with reading(source) as reader:
        statement = select(EFFECTS, is_in_doubt(reader.now).label("in_doubt"))
        if open_only:
            statement = statement.where(text(OPEN_EFFECT))
        if before is not None:
            statement = statement.where(EFFECTS.c.id < before)
        rows = reader.rows(statement.order_by(EFFECTS.c.id.desc()).limit(limit))
    return tuple(
        EffectView(
            id=row.id,
            key=row.key,
            state="in_doubt" if row.in_doubt else row.state,
            run_id=row.run_id,
            worker=without_secret(row.locked_by),
            created_at=row.created_at,
            done_at=row.done_at,
        )
        for row in rows
    )


def doubts(now: datetime) -> ScalarSelect[int]:
    """Return a subquery that counts the effects in doubt, up to `CAP` plus one."""
    return capped(select(EFFECTS.c.id).where(text(OPEN_EFFECT), is_in_doubt(now)))
