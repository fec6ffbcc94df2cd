"""Strict orders: one run of a concurrency key at a time, by the ids.

A run is born ready, and pays nothing while it comes first. A claim parks those that it meets behind
the first: no claim reads them again. They are opened, one of a key, by whoever ends the first, and
by the claim that parked them, each in a statement of its own **after its commit**. Both write,
commit, then look: whoever commits last sees what the other has written. In one statement this could
not be right: a claim that still sees the first at work would park a run that nobody opens.

If a process dies in between, `mend` opens them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from sqlalchemy import TextClause, text

from ..db import failpoints
from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import ORDERED, PARKED, RUNNING

#: How many keys one statement of `mend` looks at.
KEYS_READ = 500


def first_of(key: str) -> str:
    """Return SQL for the first run in the strict order of *key* that has not ended.

    The range stands for equality: see `claim_statement`.
    """
    return f"""
    (SELECT first.id FROM job_runs AS first WHERE {ORDERED}
        AND first.concurrency_key >= {key} AND first.concurrency_key <= {key}
     ORDER BY first.concurrency_key, first.id LIMIT 1)
    """


def comes_first(run: str) -> str:
    """Return the condition that the row *run* has no order, or comes first in its key's."""
    first = first_of(f"{run}.concurrency_key")
    # CASE, since SQLite would look for the first of each row.
    return f"(CASE WHEN {run}.strict THEN {run}.id = {first} ELSE 1 = 1 END)"


#: The query for the runs under ``token`` that come first.
HELD_FIRST = text(f"""
    SELECT id FROM job_runs
    WHERE {RUNNING} AND locked_by = :token AND {comes_first("job_runs")}
""")


def held_first(books: Bookkeeping, token: str) -> set[int]:
    """Return which runs claimed under *token* may begin: no earlier one must end before.

    An operator may have retried one since the claim, or its transaction have committed.
    """
    return {row.id for row in books.rows(HELD_FIRST, {"token": token})}


def open_behind(books: Bookkeeping, ids: Collection[int]) -> int:
    """Open the first of each strict order that a run of *ids* belongs to; return how many.

    To be called after the commit of what ended or parked these runs.
    """
    if not ids:
        return 0
    failpoints.reach("before-open")
    d = books.dialect
    return len(books.rows(_open_behind(d), {"ids": d.many(ids)}))


@lru_cache(maxsize=2)
def _open_behind(d: Dialect) -> TextClause:
    of_runs = f"SELECT DISTINCT concurrency_key AS key FROM job_runs WHERE {d.among('id')}"
    return _open(d, f"{of_runs} AND strict")


def mend_all(books: Bookkeeping) -> int:
    """Open what nobody has opened; return how many runs.

    Somebody died before that, or has deleted or changed rows by hand.
    """
    opened, after = mend(books)
    while after:
        more, after = mend(books, after)
        opened += more
    return opened


def mend(books: Bookkeeping, after: str = "") -> tuple[int, str]:
    """Open as `mend_all` does what is parked in the next keys after that one.

    :returns: how many runs it has opened, and the key after which to go on; if any.
    """
    d = books.dialect
    keys = [row.key for row in books.rows(_parked_keys(d), {"after": after})]
    if not keys:
        return 0, ""
    opened = len(books.rows(_open_keys(d), {"keys": d.array(tuple(keys))}))
    return opened, keys[-1] if len(keys) == KEYS_READ else ""


@lru_cache(maxsize=2)
def _parked_keys(d: Dialect) -> TextClause:
    """Return the query for the keys of parked runs after ``after``, at one step each."""
    later = f"SELECT concurrency_key FROM job_runs WHERE {PARKED} AND concurrency_key > {{}}"
    step = f"({later} ORDER BY concurrency_key LIMIT 1)"
    return text(f"""
    WITH RECURSIVE hop(key, number) AS (
        SELECT {step.format(d.typed(":after", "text"))}, 1
        UNION ALL SELECT {step.format("hop.key")}, number + 1 FROM hop
        WHERE key IS NOT NULL AND number < {KEYS_READ}
    )
    SELECT key FROM hop WHERE key IS NOT NULL
    """)


@lru_cache(maxsize=2)
def _open_keys(d: Dialect) -> TextClause:
    return _open(d, f"SELECT key FROM {d.each('keys', 'key')}")


def _open(d: Dialect, keys: str) -> TextClause:
    """Return the UPDATE that opens the first run of each of *keys*, a SELECT, if it is parked.

    One that is locked is left: whoever ends it opens what comes after it.
    """
    any_parked = f"""
        SELECT id FROM job_runs
        WHERE {PARKED} AND concurrency_key >= keys.key AND concurrency_key <= keys.key
        ORDER BY concurrency_key LIMIT 1
    """
    first = f"""
        SELECT {first_of("keys.key")} FROM ({keys}) AS keys WHERE ({any_parked}) IS NOT NULL
    """
    parked = f"""
        SELECT id FROM job_runs
        WHERE {d.any_of("id", first)} AND ({PARKED}) IS TRUE {d.skip_locked}
    """
    return text(f"UPDATE job_runs SET gate = NULL WHERE {d.any_of('id', parked)} RETURNING id")
