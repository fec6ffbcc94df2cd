"""Record what operators do, in a row and in the log, and list these operations.

Only the functions that list operations import `reader`, since it maps the tables, and most callers
that record an operation do not need them.
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
#: The maximum number of characters of a target that are kept.
_LONGEST = 500


class Operation(NamedTuple):
    """An operator's action.

    :ivar what: the verb for the log, such as ``paused``.
    :ivar target: the object of the verb.
    :ivar run_id: the run's id, if the target is a run.
    :ivar id: the id of the operation's row, once it is inserted.
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
    """Do *work*; if it changes something, record *operation* in the same transaction and log it.

    :param work: called with a `Bookkeeping` whose writes are committed together.
    :param changed: returns whether the result of *work* means that something was changed.
    :raises DatabaseTrouble: the work failed, or its result is unknown. It is not tried again.
    """

    def both(inner: Bookkeeping) -> T:
        result = work(inner)
        if changed(result):
            inner.transaction(lambda connection: note(connection, inner.dialect, operation))
        return result

    result = together(books, both, repeat=False)
    if changed(result):
        log_action(operation.what, operation.target, operation.actor)
    return result


def note(
    connection: Connection,
    d: Dialect,
    operation: Operation,
    asked: int | None = None,
    done: int | None = None,
) -> None:
    """Insert the row of an operation that has ended, in *connection*'s transaction.

    :param asked: the number of runs to change.
    :param done: the number of runs changed.
    """
    connection.execute(*_insert(d, operation, asked, done, ended=True))


def begin(books: Bookkeeping, operation: Operation, asked: int) -> Operation:
    """Insert the row of an operation that changes *asked* runs in several transactions."""
    (row,) = books.rows(*_insert(books.dialect, operation, asked, 0, ended=False), repeat=False)
    return operation._replace(id=row.id)


def _insert(
    d: Dialect, operation: Operation, asked: int | None, done: int | None, ended: bool
) -> tuple[TextClause, dict[str, Any]]:
    """Return the INSERT of a row, and its parameters."""
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
    """Add *number* runs to the operation's row, in the transaction that changes them.

    Wherever the operation stops, its row says how many runs it has changed.
    """
    changes = f"done = done + :number, seen_at = {d.now}"
    statement = f"UPDATE job_operations SET {changes} WHERE id = :id"
    connection.execute(text(statement), {"number": number, "id": operation.id})


def end(books: Bookkeeping, operation: Operation) -> int:
    """Record the end of an operation; return the number of runs that it has changed.

    The number includes runs of a transaction that was committed, but whose answer was lost.
    """
    now = books.dialect.now
    ended = f"SET finished_at = {now}, seen_at = {now} WHERE id = :id RETURNING done"
    return int(books.rows(text(f"UPDATE job_operations {ended}"), {"id": operation.id})[0].done)


#: Seconds without a change after which an unfinished operation counts as stopped.
STOPPED_AFTER_SECONDS = 60.0
#: The maximum number of operations on one run that are shown.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class OperationView:
    """A recorded operation.

    :ivar what: the verb, as in the log.
    :ivar target: the object of the verb, such as ``34 runs of send, older than 6 h``.
    :ivar run_id: the run's id, if the target is one run.
    :ivar asked: the number of runs to change; None if the target is not runs.
    :ivar done: the number of runs changed.
    :ivar stopped: whether the operation stopped before its end.
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
        """Return the progress of an unfinished operation, such as ``500 of 34,000, stopped``."""
        if self.finished_at is not None or self.asked is None:
            return ""
        return f"{self.done or 0:,} of {self.asked:,}, {'stopped' if self.stopped else 'running'}"


def list_operations(
    source: Source, before: int | None = None, limit: int = 50
) -> Page[OperationView]:
    """Return operations, newest first.

    :param before: return only smaller ids, for paging.
    """
    from .reader import OPERATIONS, page_of, reading

    with reading(source) as reader:
        views, newest = partial(_views, reader), (OPERATIONS.c.id,)
        return page_of(reader, select(OPERATIONS), limit, views, newest, before)


def operations_on(source: Source, run_id: int) -> tuple[OperationView, ...]:
    """Return the latest ten operations on one run alone, newest first."""
    from .reader import OPERATIONS, reading

    c = OPERATIONS.c
    with reading(source) as reader:
        on_it = select(OPERATIONS).where(c.run_id == run_id).order_by(c.started_at.desc())
        return tuple(_views(reader, reader.rows(on_it.limit(_SHOWN))))


def _views(reader: Reader, rows: Sequence[Row[Any]]) -> list[OperationView]:
    from .reader import record

    silent_since = reader.now - timedelta(seconds=STOPPED_AFTER_SECONDS)
    return [
        record(
            OperationView,
            row,
            stopped=row.finished_at is None and row.seen_at < silent_since,
        )
        for row in rows
    ]
