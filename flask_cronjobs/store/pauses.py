"""Which tasks and queues are paused: their runs wait, and nobody claims them."""

from __future__ import annotations

from sqlalchemy import text

from ..types import PauseKind
from .connection import Bookkeeping

_REMOVE = "DELETE FROM job_pauses WHERE kind = :kind AND name = :name RETURNING id"


class Pauses:
    """The pauses of tasks and queues.

    :param books: a bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    def add(self, kind: PauseKind, name: str, by: str) -> bool:
        """Pause a task or a queue; return False if it was paused before."""
        statement = f"""
            INSERT INTO job_pauses (kind, name, paused_at, paused_by)
            VALUES (:kind, :name, {self._books.dialect.now}, :by)
            ON CONFLICT (kind, name) DO NOTHING RETURNING id
        """
        return bool(self._books.rows(text(statement), {"kind": kind, "name": name, "by": by}))

    def remove(self, kind: PauseKind, name: str) -> bool:
        """End a pause; return False if there was none."""
        return bool(self._books.rows(text(_REMOVE), {"kind": kind, "name": name}))
