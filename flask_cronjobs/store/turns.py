"""Decide which run of each strict order comes next.

The runs of a concurrency key are executed in the order of their ids. Only the first that has not
ended has the turn, and can be claimed: the column ``turn`` is null. The others wait outside of the
indexes that claims read, so that it costs no claim how many there are.

Whoever inserts, ends or retries such a run does not look for the next: it leaves a mark in the row,
``new`` or ``over``, in the transaction that commits it. Workers take up the marks (`Turns.give`).
So whatever is killed, a mark is left. No two runs of a key ever have the turn, by a unique index.
"""

from __future__ import annotations

from .connection import Bookkeeping
from .sql import turns as statements

#: How often one call goes on at most, so that a worker also does other work.
_MOST = 20


class Turns:
    """The turns of all strict orders.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    def give(self) -> bool:
        """Take up the marks of runs that came or ended; return whether anything was changed.

        1. Give the turn of each key to its first run. 2. If it is new and another has the turn, let
        that one wait, and begin again. A row that another transaction has locked keeps its mark.
        """
        changed, d = False, self._books.dialect
        for _ in range(_MOST):
            # To look does not need SQLite's write lock.
            if d.name == "sqlite" and not self._books.rows(statements.LOOK):
                break
            placed = self._books.rows(statements.place(d))
            passed_by = any(row.turn == "new" for row in placed)
            if passed_by and not self._books.rows(statements.make_way(d)):
                break
            changed = changed or bool(placed)
            if not passed_by and len(placed) < statements.CHUNK:
                break
        return changed

    def held_first(self, token: str) -> set[int]:
        """Return which runs claimed under *token* may begin: no earlier one must end before.

        An operator may have retried one since the claim, or its transaction have committed.
        """
        return {row.id for row in self._books.rows(statements.HELD_FIRST, {"token": token})}

    def mend(self) -> bool:
        """Mark runs that nobody would give the turn, since somebody has deleted rows by hand."""
        return bool(self._books.rows(statements.mend(self._books.dialect)))
