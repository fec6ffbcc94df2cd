"""Batches: runs that belong together, and a task to run when the last of them has ended."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from sqlalchemy.orm import Session, SessionTransaction

from .db.dialect import dialect_of
from .errors import BatchClosed, NotFound, TaskError
from .jobs.batches.ending import close_in
from .jobs.batches.rows import THEN_COLUMNS, OpenBatch, hold_open, open_batch
from .jobs.runs.enqueue import batch_of, explaining_missing_tables, joined, wake
from .jobs.runs.insert import writing_connection
from .jobs.runs.uncommitted import note_enqueued
from .jobs.state import State
from .registry.handler import run_columns
from .registry.options import check_key
from .types import BatchOnDead

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .task import Task


class Batch:
    """A batch that can be filled: a context manager, made by `CronJobs.batch`.

    Each run that is enqueued inside its ``with`` block, of whatever task, joins it. All is done in
    ``db.session``: your commit makes the batch exist, with its runs.

    :ivar key: its key.
    :ivar is_new: whether entering the block has made it; None before.
    """

    def __init__(self, state: State, new: OpenBatch, close: bool) -> None:
        self.key: str = new.key
        self.is_new: bool | None = None
        self._state = state
        self._new = new
        self._close = close
        self._id: int | None = None
        self._transaction: SessionTransaction | None = None
        self._outer: list[Token[Any]] = []

    def __enter__(self) -> Batch:
        """Open the batch, or go on to fill it.

        :raises BatchClosed: it is closed.
        :raises TablesMissing: the job tables do not exist.
        """
        session = self._state.db.session()
        with explaining_missing_tables(self._state):
            self._open(session, parent=batch_of(self._state, session))
        self._outer.append(joined.set(self._member))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the batch, unless an error ends the block or it was made with ``close=False``."""
        joined.reset(self._outer.pop())
        if error is None and self._close:
            self.close()

    def close(self) -> None:
        """Close the batch, in ``db.session``: no run can join it after your commit.

        If all of its members have ended, or it has none, ``then`` is enqueued at once.

        :raises NotFound: there is no batch with its key; it was rolled back, perhaps.
        """
        session = self._state.db.session()
        connection = writing_connection(session)
        dialect = dialect_of(connection.engine)
        with explaining_missing_tables(self._state):
            found, ended = close_in(connection, dialect, self.key)
            if not found:
                raise NotFound(
                    f"There is no batch {self.key!r}. If its transaction was rolled back, fill it "
                    "again from the start."
                )
            if ended is not None and ended.then_run_id is not None:
                wake(self._state, session)
        if ended is not None and ended.then_run_id is not None:
            note_enqueued(session, f"{ended.then_task} (run {ended.then_run_id})")

    def _member(self, state: State, session: Session) -> int | None:
        """Return its id for a new run; None if the run is of another app."""
        if state is not self._state:
            return None
        if self._transaction not in _transactions(session):
            # It has ended, or its savepoint, and with it what kept the batch open.
            self._hold(session, writing_connection(session))
        return self._id

    def __repr__(self) -> str:
        return f"<Batch {self.key!r}>"

    def _open(self, session: Session, parent: int | None) -> None:
        connection = writing_connection(session)
        new = self._new._replace(parent_id=parent)
        self._id = open_batch(connection, dialect_of(connection.engine), new)
        self.is_new = self._id is not None
        if self.is_new:
            self._transaction = _transactions(session)[0]
            note_enqueued(session, f"the batch {self.key}")
        else:
            self._hold(session, connection)

    def _hold(self, session: Session, connection: Connection) -> None:
        found = hold_open(connection, dialect_of(connection.engine), self.key, self._close)
        if found is None:
            raise BatchClosed(
                f"The batch {self.key!r} is gone: the transaction that opened it was rolled back, "
                "or it was pruned. Fill it again from the start, in a new `with` block."
            )
        self._id, is_open = found
        if not is_open:
            raise BatchClosed(
                f"The batch {self.key!r} is closed, so no run can join it. Each batch needs a key "
                "of its own; if an earlier attempt has filled this one, there is nothing to do."
            )
        self._transaction = _transactions(session)[0]


def _transactions(session: Session) -> list[SessionTransaction]:
    """Return *session*'s savepoints that are open, the innermost first, and its transaction."""
    found: list[SessionTransaction] = []
    each = session.get_nested_transaction() or session.get_transaction()
    while each is not None:
        found.append(each)
        each = each.parent
    return found


def new_batch(
    state: State,
    key: str,
    then: Task[..., Any] | None,
    then_payload: Mapping[str, object] | None,
    on_dead: BatchOnDead,
    close: bool,
) -> Batch:
    """Return a batch that nobody has entered yet; see `CronJobs.batch`."""
    check_key("The batch's key", key, 500)
    if on_dead not in get_args(BatchOnDead):
        raise TaskError(f"on_dead is {on_dead!r}. Give 'continue' or 'stop'.")
    new = OpenBatch(key, on_dead)
    if then is not None:
        new = _followed_by(then, then_payload or {}, state, new)
    elif then_payload is not None:
        raise TaskError("then_payload was given without then. Give the task to run.")
    return Batch(state, new, close)


def _followed_by(
    then: Task[..., Any], payload: Mapping[str, object], state: State, new: OpenBatch
) -> OpenBatch:
    options = then.enqueue_options
    for name in ("run_at", "delay", "idempotency_key", "unique_while", "replace", "commit"):
        if getattr(options, name):
            raise TaskError(
                f"then={then.name}.using({name}=…): the run is enqueued once, when the batch has "
                "ended. Only queue, priority and max_attempts can be given."
            )
    try:
        arguments = then.payload_from(payload)
    except TypeError as error:
        raise TypeError(f"{error}. Give its arguments as then_payload={{…}}.") from None
    columns = run_columns(then, state.settings, arguments, options)
    own = {name: columns[name] for name in THEN_COLUMNS}
    return new._replace(then_task=then.name, then_payload=columns["payload"], then_columns=own)
