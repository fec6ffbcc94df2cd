"""Note what an operator does: a row in the transaction that does it, and a line of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, text

from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...db.together import together
from ...log import log_action
from ...text import clean, shortened

T = TypeVar("T")
#: For how many seconds operations are kept.
KEPT = 365 * 86400.0
#: How many characters of a target are kept.
_LONGEST = 500


class Act(NamedTuple):
    """What an operator does.

    :ivar what: the verb for the log: ``paused``.
    :ivar target: what it is done to.
    :ivar run_id: the run, if it is one.
    """

    what: str
    target: str
    actor: str
    run_id: int | None = None


def perform(
    books: Bookkeeping,
    act: Act,
    work: Callable[[Bookkeeping], T],
    changed: Callable[[T], bool] = bool,
) -> T:
    """Do *work*, and if it changed something, note *act* in the same transaction; then log it.

    :param work: gets a connection on which all that it writes is committed together.
    :param changed: whether what *work* has returned says that something was changed.
    """

    def both(inner: Bookkeeping) -> T:
        made = work(inner)
        if changed(made):
            inner.transaction(lambda connection: note(connection, inner.dialect, act))
        return made

    made = together(books, both)
    if changed(made):
        log_action(act.what, act.target, act.actor)
    return made


def note(
    connection: Connection,
    d: Dialect,
    act: Act,
    asked: int | None = None,
    done: int | None = None,
    ended: bool = True,
) -> int:
    """Insert the row of *act* in *connection*'s transaction; return its id.

    :param asked: how many runs are to be changed.
    :param done: how many of them are changed already.
    :param ended: whether that was all.
    """
    statement = f"""
        INSERT INTO job_operations
            (what, target, actor, run_id, asked, done, started_at, seen_at, finished_at)
        VALUES (:what, :target, :actor, :run_id, :asked, :done, {d.now}, {d.now},
            {d.now if ended else "NULL"})
        RETURNING id
    """
    values = {
        **act._asdict(),
        "target": shortened(clean(act.target) or "", _LONGEST),
        "actor": clean(act.actor),
        "asked": asked,
        "done": done,
    }
    return int(connection.execute(text(statement), values).scalar_one())


@dataclass
class Operation:
    """An operation on runs, whose row moves on with each transaction that changes some.

    :ivar id: of its row; None: it is about one run, and has a row once that is changed.
    """

    act: Act
    id: int | None = None

    @classmethod
    def begin(cls, books: Bookkeeping, act: Act, asked: int) -> Operation:
        """Insert the row of one that is to change *asked* runs, by several transactions."""
        begun = books.transaction(
            lambda connection: note(connection, books.dialect, act, asked, 0, ended=False)
        )
        return cls(act, begun)

    def changing(
        self, connection: Connection, d: Dialect, change: Callable[[int], Sequence[T]]
    ) -> Sequence[T]:
        """Call *change* with the id of the row, and count there what it returns.

        In *connection*'s transaction: so the row says how far it came, wherever it stops.
        """
        if self.id is not None:
            found = change(self.id)
            moved = f"""
                UPDATE job_operations SET done = done + :number, seen_at = {d.now} WHERE id = :id
            """
            connection.execute(text(moved), {"number": len(found), "id": self.id})
            return found
        noted = note(connection, d, self.act, asked=1, done=1)
        found = change(noted)
        if not found:
            connection.execute(text("DELETE FROM job_operations WHERE id = :id"), {"id": noted})
        return found

    def end(self, books: Bookkeeping) -> None:
        """Note that it has come to its end."""
        now = books.dialect.now
        ended = f"UPDATE job_operations SET finished_at = {now}, seen_at = {now} WHERE id = :id"
        books.rows(text(ended), {"id": self.id})
