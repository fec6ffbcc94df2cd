"""What pages and commands show of effects."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import (
    ScalarSelect,
    case,
    literal,
    select,
    text,
)

from ..db.dialect import Dialect
from ..models.conditions import OPEN_EFFECT
from ..types import without_secret
from .effects import is_in_doubt
from .reader import EFFECTS, Page, Source, capped, cut_page, reading


class Effect(NamedTuple):
    """One effect.

    :ivar state: ``begun``, ``done`` or ``in_doubt``. It is also in doubt if it was begun and its
        owner no longer holds it.
    """

    id: int
    key: str
    state: str
    run_id: int | None
    worker: str | None
    created_at: datetime
    done_at: datetime | None


def list_effects(
    source: Source, *, open_only: bool = False, before: int | None = None, limit: int = 50
) -> Page[Effect]:
    """Return effects, newest first.

    :param open_only: leave out those that are done.
    :param before: only smaller ids, for paging.
    """
    with reading(source) as reader:
        c = EFFECTS.c
        state = case((text(is_in_doubt(reader.dialect)), literal("in_doubt")), else_=c.state)
        statement = select(
            *(c.id, c.key, state.label("state"), c.run_id, c.locked_by, c.created_at, c.done_at),
        )
        if open_only:
            statement = statement.where(text(OPEN_EFFECT))
        if before is not None:
            statement = statement.where(c.id < before)
        rows = reader.rows(statement.order_by(c.id.desc()).limit(limit + 1))
        found = [Effect(*tuple(row)) for row in rows]
        shown = [each._replace(worker=without_secret(each.worker)) for each in found]
        return cut_page(shown, limit, reader.now)


def doubts(d: Dialect) -> ScalarSelect[int]:
    """Return a subquery that counts the effects in doubt, up to `CAP` plus one."""
    return capped(select(EFFECTS.c.id).where(text(OPEN_EFFECT), text(is_in_doubt(d))))
