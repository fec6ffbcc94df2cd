"""What operators do: a row in the transaction that does it, and a line of the log; lists of them.

What reads for people imports `reader` in its functions: that maps the tables, which most that
write here do not use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, TextClause, select, text

from ..db.connection import Bookkeeping, together
from ..db.dialect import Dialect
from ..log import log_action
from ..text import clean, shortened

if TYPE_CHECKING:
    from .reader import Page, Reader, Source

T = TypeVar("T")
#: How many characters of a target are kept.
_LONGEST = 500


class Operation(NamedTuple):
    """What an operator does.

    :ivar what: the verb for the log: ``paused``.
    :ivar target: what it is done to.
    :ivar run_id: the run, if it is one.
    :ivar id: of its row, once that is there.
    """

    what: str
    target: str
    actor: str
    run_id: int | None = None
    id: int | None = None


def perform(
    books: Bookkeeping,
    operation: Operation,
    work: Callable[[Bookkeeping], T],
    changed: Callable[[T], bool] = bool,
) -> T:
    """Do *work*, and if it changed something, note *operation* in the same transaction; log it.

    :param work: gets a connection on which all that it writes is committed together.
    :param changed: whether what *work* has returned says that something was changed.
    :raises DatabaseTrouble: it was not done, or perhaps it was: it is not done twice.
    """

    def both(inner: Bookkeeping) -> T:
        made = work(inner)
        if changed(made):
            inner.transaction(lambda connection: note(connection, inner.dialect, operation))
        return made

    made = together(books, both, repeat=False)
    if changed(made):
        log_action(operation.what, operation.target, operation.actor)
    return made


def note(
    connection: Connection,
    d: Dialect,
    operation: Operation,
    asked: int | None = None,
    done: int | None = None,
) -> None:
    """Insert the row of an operation that has ended, in *connection*'s transaction.

    :param asked: how many runs were to be changed; *done*: how many were.
    """
    connection.execute(*_insert(d, operation, asked, done, ended=True))


def begin(books: Bookkeeping, operation: Operation, asked: int) -> Operation:
    """Insert the row of one that is to change *asked* runs, by several transactions; return it."""
    (row,) = books.rows(*_insert(books.dialect, operation, asked, 0, ended=False), repeat=False)
    return operation._replace(id=row.id)


def _insert(
    d: Dialect, operation: Operation, asked: int | None, done: int | None, ended: bool
) -> tuple[TextClause, dict[str, Any]]:
    """Return the INSERT of a row, and its values."""
    statement = f"""
        INSERT INTO job_operations
            (what, target, actor, run_id, asked, done, started_at, seen_at, finished_at)
        VALUES (:what, :target, :actor, :run_id, :asked, :done, {d.now}, {d.now},
            {d.now if ended else "NULL"})
        RETURNING id
    """
    values = {
        **operation._asdict(),
        "target": shortened(clean(operation.target) or "", _LONGEST),
        "actor": clean(operation.actor),
        "asked": asked,
        "done": done,
    }
    return text(statement), values


def count(operation: Operation, connection: Connection, d: Dialect, number: int) -> None:
    """Count *number* runs more in its row, in the transaction of *connection* that changes them.

    So the row says how far it came, wherever it stops.
    """
    moved = f"UPDATE job_operations SET done = done + :number, seen_at = {d.now} WHERE id = :id"
    connection.execute(text(moved), {"number": number, "id": operation.id})


def end(books: Bookkeeping, operation: Operation) -> int:
    """Note that it has come to its end; return how many runs it has changed.

    That counts those of a transaction that was committed and whose answer was lost, too.
    """
    now = books.dialect.now
    ended = f"SET finished_at = {now}, seen_at = {now} WHERE id = :id RETURNING done"
    return int(books.rows(text(f"UPDATE job_operations {ended}"), {"id": operation.id})[0].done)


#: An operation that has not ended is taken to be stopped after so many seconds without a change.
STOPPED_AFTER = 60.0
#: How many operations on one run are shown.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class OperationView:
    """One operation.

    :ivar what: the verb, as in the log.
    :ivar target: what it was done to: ``34 runs of send, older than 6 h``.
    :ivar run_id: the run, if it was one.
    :ivar asked: how many runs it was to change; None if it was not about runs.
    :ivar done: how many of them it has changed.
    :ivar stopped: it did not come to its end.
    """

    id: int
    what: str
    target: str
    actor: str
    run_id: int | None
    asked: int | None
    done: int | None
    started_at: datetime
    finished_at: datetime | None
    stopped: bool = False

    @property
    def progress(self) -> str:
        """Say how far it came, if it has not ended: ``500 of 34,000, stopped``."""
        if self.finished_at is not None or self.asked is None:
            return ""
        return f"{self.done or 0:,} of {self.asked:,}, {'stopped' if self.stopped else 'at work'}"


def list_operations(
    source: Source, before: int | None = None, limit: int = 50
) -> Page[OperationView]:
    """Return operations, newest first.

    :param before: only smaller ids, for paging.
    :param limit: at most 100.
    """
    from .reader import OPERATIONS, page_of, reading

    limit = max(1, min(limit, 100))
    with reading(source) as reader:
        views, newest = partial(_views, reader), (OPERATIONS.c.id,)
        return page_of(reader, select(OPERATIONS), limit, views, newest, before)


def operations_on(source: Source, run_id: int) -> tuple[OperationView, ...]:
    """Return who touched a run: the latest ten operations on it alone, newest first."""
    from .reader import OPERATIONS, reading

    c = OPERATIONS.c
    with reading(source) as reader:
        on_it = select(OPERATIONS).where(c.run_id == run_id).order_by(c.started_at.desc())
        return tuple(_views(reader, reader.rows(on_it.limit(_SHOWN))))


def _views(reader: Reader, rows: Sequence[Row[Any]]) -> list[OperationView]:
    from .reader import record

    silent_since = reader.now - timedelta(seconds=STOPPED_AFTER)
    return [
        record(
            OperationView,
            row,
            stopped=row.finished_at is None and row.seen_at < silent_since,
        )
        for row in rows
    ]
