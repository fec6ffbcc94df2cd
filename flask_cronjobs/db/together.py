"""Bookkeeping within one transaction, for functions that take a bookkeeping connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable

from .connection import Bookkeeping, Rows

T = TypeVar("T")


def together(books: Bookkeeping, work: Callable[[Bookkeeping], T]) -> T:
    """Call *work*, and commit all that it writes in one transaction.

    :param work: it may be called again from the start, and must do nothing but database work.
    """
    return books.transaction(lambda connection: work(_Together(books, connection)))


class _Together(Bookkeeping):
    """Bookkeeping whose statements and transactions belong to a transaction that is open."""

    def __init__(self, books: Bookkeeping, connection: Connection) -> None:
        super().__init__(books.engine)
        self._open = connection

    def rows(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | None = None,
        repeat: bool = True,
    ) -> Rows:
        """Run one statement, and return its rows."""
        result = self._open.execute(statement, parameters or {})
        return result.all() if result.returns_rows else ()

    def call(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Call *work* with the connection."""
        return work(self._open)

    def transaction(self, work: Callable[[Connection], T], repeat: bool = True) -> T:
        """Call *work* with the connection."""
        return work(self._open)
