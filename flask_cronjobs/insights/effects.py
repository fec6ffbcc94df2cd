"""The effects of ``once`` for operators, and their decisions about effects in doubt."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import case, literal, select, text

from ..core.app_state import State
from ..db.connection import Rows
from ..db.dialect import Dialect
from ..errors import NotFound, StateConflict
from ..features.once.once_effects import is_in_doubt
from ..log import DEFAULT_ACTOR
from ..models.conditions import OPEN_EFFECT
from ..types import without_secret
from .operations import Operation, perform
from .reader import EFFECTS, Page, Query, Source, page_of, reading

_NOT_IN_DOUBT = {
    "begun": "It is being done right now. Wait until it ends.",
    "done": "It is done, and will not be done again. To do it again, give once() another key.",
}


def effect_done(state: State, key: str, actor: str = DEFAULT_ACTOR) -> None:
    """Mark an effect in doubt as done, so that it is not done again.

    :raises NotFound: there is no such effect.
    :raises StateConflict: it is not in doubt.
    """
    operation = Operation("marked as done", f"effect {key}", actor)
    _resolve(state, key, "UPDATE job_effects SET state = 'done', done_at = {now}", operation)


def effect_redo(state: State, key: str, actor: str = DEFAULT_ACTOR) -> None:
    """Mark an effect in doubt as not done, so that the next ``once`` with its key does it.

    :raises NotFound: there is no such effect.
    :raises StateConflict: it is not in doubt.
    """
    operation = Operation("marked to be done again", f"effect {key}", actor)
    _resolve(state, key, "DELETE FROM job_effects", operation)


def _resolve(state: State, key: str, change: str, operation: Operation) -> None:
    """Execute *change*, a statement up to its WHERE, for an effect in doubt."""
    with state.bookkeeping() as books:
        d, parameters = books.dialect, {"key": key}
        condition = f"WHERE key = :key AND {is_in_doubt(d)} RETURNING id"
        statement = text(f"{change.format(now=d.now)} {condition}")
        if perform(books, operation, lambda inner: inner.rows(statement, parameters)):
            return
        rows = books.rows(text("SELECT state FROM job_effects WHERE key = :key"), parameters)
    if not rows:
        raise NotFound(f"There is no effect {key!r}. To list them: flask jobs admin effects --all")
    advice = _NOT_IN_DOUBT.get(rows[0].state, "Its state has just changed. Try again.")
    raise StateConflict(f"The effect {key!r} is not in doubt. {advice}")


class Effect(NamedTuple):
    """An effect of ``once``.

    :ivar state: ``begun``, ``done`` or ``in_doubt``. A begun effect whose owner no longer holds it
        is also in doubt.
    """

    id: int
    key: str
    state: str
    run_id: int | None
    worker: str | None
    created_at: datetime
    done_at: datetime | None


def list_effects(
    source: Source,
    *,
    open_only: bool = False,
    doubts_only: bool = False,
    before: int | None = None,
    limit: int = 50,
) -> Page[Effect]:
    """Return effects, newest first.

    :param open_only: leave out effects that are done.
    :param doubts_only: leave out effects that are not in doubt.
    :param before: return only smaller ids, for paging.
    """
    with reading(source) as reader:
        c = EFFECTS.c
        doubted = text(is_in_doubt(reader.dialect))
        state = case((doubted, literal("in_doubt")), else_=c.state)
        statement = select(c.id, c.key, state, c.run_id, c.locked_by, c.created_at, c.done_at)
        if open_only or doubts_only:
            statement = statement.where(text(OPEN_EFFECT))
        if doubts_only:
            statement = statement.where(doubted)
        return page_of(reader, statement, limit, _shown, (c.id,), before)


def _shown(rows: Rows) -> list[Effect]:
    effects = (Effect(*tuple(row)) for row in rows)
    return [effect._replace(worker=without_secret(effect.worker)) for effect in effects]


def in_doubt(d: Dialect) -> Query:
    """Return a SELECT of the start times, as ``at``, of the effects in doubt."""
    begun = EFFECTS.c.created_at.label("at")
    return select(begun).where(text(OPEN_EFFECT), text(is_in_doubt(d)))
