"""Which things that need a person began and ended, and which of that a webhook was told.

All ticks of all hosts look at the same rows: who sets ``told_at`` tells it, and nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import text

from ..db.connection import Bookkeeping, Rows
from ..db.dialect import Dialect
from .checks import Finding
from .humanize import capitalized

#: How long something must not have been seen until it has ended, in seconds: what comes and goes
#: is told once.
ENDED_AFTER = 300.0


def take(books: Bookkeeping, findings: Iterable[Finding]) -> Rows:
    """Note what needs a person now; return what began or ended, for the caller to tell.

    What has ended has an ``ended_at``. If it cannot be told, call `give_back`; if it was told,
    `forget`.
    """
    d = books.dialect
    seen = {_name(each): {"what": capitalized(each.what), "todo": each.todo} for each in findings}
    if seen:
        rows = [{"name": name, **words} for name, words in seen.items()]
        books.rows(text(_see(d)), {"seen": json.dumps(rows)})
    gone = {"before": -ENDED_AFTER}
    for statement in (_FORGET_UNTOLD, _END):
        books.rows(text(statement.format(before=d.later(":before"), now=d.now)), gone)
    return sorted(books.rows(text(_TAKE.format(now=d.now))), key=lambda row: row.id)


def give_back(books: Bookkeeping, changes: Rows) -> None:
    """Let the next tick tell *changes*."""
    _of_ids(books, "UPDATE job_alerts SET told_at = NULL WHERE", changes)


def forget(books: Bookkeeping, changes: Rows) -> None:
    """Forget those of *changes* that have ended."""
    _of_ids(books, "DELETE FROM job_alerts WHERE ended_at IS NOT NULL AND", changes)


def _of_ids(books: Bookkeeping, statement: str, changes: Rows) -> None:
    for change in changes:
        books.rows(text(f"{statement} id = :id"), {"id": change.id})


def _name(finding: Finding) -> str:
    """Return what tells *finding* from others, though its words change: its check and its page."""
    values: dict[str, Any] = dict(finding.link[1]) if finding.link else {}
    return " ".join([finding.id, *(f"{name}={value}" for name, value in values.items())])


def _see(d: Dialect) -> str:
    seen = d.table("seen", name="text", what="text", todo="text")
    return f"""
    INSERT INTO job_alerts (name, what, todo, begun_at, seen_at)
    SELECT name, what, todo, {d.now}, {d.now} FROM {seen} AS s WHERE true
    ON CONFLICT (name) WHERE ended_at IS NULL
    DO UPDATE SET seen_at = excluded.seen_at, what = excluded.what
    """


_FORGET_UNTOLD = """
    DELETE FROM job_alerts WHERE ended_at IS NULL AND told_at IS NULL AND seen_at < {before}
"""
_END = """
    UPDATE job_alerts SET ended_at = {now}, told_at = NULL
    WHERE ended_at IS NULL AND told_at IS NOT NULL AND seen_at < {before}
"""
_TAKE = """
    UPDATE job_alerts SET told_at = {now} WHERE told_at IS NULL
    RETURNING id, name, what, todo, ended_at
"""
