"""Batches: runs that belong together, and a task to run when the last of them has ended."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, SessionTransaction

from ...core.app_state import State
from ...core.current import warn
from ...core.enqueue import batch_of, explaining_missing_tables, joined, wake
from ...core.insert import writing_connection
from ...core.new_run import new_run
from ...core.tasks.options import check_key
from ...core.uncommitted import note_enqueued, warn_at_end
from ...db.dialect import dialect_of
from ...db.transactions import commits_by_itself
from ...errors import BatchClosed, CronJobsError, TaskError
from .batch_rows import NewBatch, close, hold_open, is_open, open_batch
from .ending import end_batch, end_batches

if TYPE_CHECKING:
    from ...task import Task


class Batch:
    """A batch to fill; `CronJobs.batch` makes this context manager.

    Each run that is enqueued inside its ``with`` block joins it, whatever its task. All of it
    happens in ``db.session``: your commit makes the batch and its runs exist.

    :ivar key: the batch's key.
    """

    def __init__(self, state: State, new: NewBatch) -> None:
        self.key: str = new.key
        self._state = state
        self._new = new
        self._id = 0
        self._transaction: SessionTransaction | None = None
        self._outer: Token[Any] | None = None
        self._is_entered = False

    def __del__(self) -> None:
        """Warn about a batch that was never entered."""
        if getattr(self, "_is_entered", True):
            return
        warn(
            f"The batch {self.key!r} was made and never entered, so it does not exist, and its "
            "`then` will not run. Enqueue its runs in a block: with jobs.batch(…): …"
        )

    def __enter__(self) -> Batch:
        """Open the batch, or continue to fill it after an attempt that failed halfway.

        :raises BatchClosed: the batch is closed.
        :raises TaskError: this is inside the block of another batch.
        :raises TablesMissing: the job tables do not exist.
        """
        self._is_entered = True
        session = self._state.db.session()
        if batch_of(self._state, session) is not None:
            raise TaskError(
                f"The batch {self.key!r} was opened inside the block of another one. Batches "
                "cannot be nested. Let the `then` of one fill the next."
            )
        connection = writing_connection(session)
        with explaining_missing_tables(self._state):
            self._id, can_fill = open_batch(connection, dialect_of(connection.engine), self._new)
        if not can_fill:
            raise BatchClosed(
                f"The batch {self.key!r} is closed, so no run can join it. Each batch needs a key "
                "of its own; if an earlier attempt has filled this one, there is nothing to do."
            )
        self._transaction = _transactions(session)[0]
        note_enqueued(session, f"the batch {self.key}")
        self._outer = joined.set(self._member)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the batch, unless an error ends the block. An empty batch ends at once.

        After an error, the batch stays open if it was committed, so that a later attempt can fill
        it. If the error is swallowed, there may be no later attempt. So a warning is logged if the
        batch is still open when the app context ends.
        """
        if self._outer is not None:
            joined.reset(self._outer)
        if error is None:
            self._close()
        else:
            warn_at_end(self._warn_if_open)

    def _warn_if_open(self) -> None:
        """Warn if runs of the block are committed, since the batch's ``then`` will not run."""
        with suppress(CronJobsError), self._state.bookkeeping() as books:
            if is_open(books, self._id):
                warn(
                    f"An error has ended the block of the batch {self.key!r}, and the runs that it "
                    "enqueued are committed. So the batch stays open, and its `then` does not run. "
                    "Enqueue the rest in another block with its key, or close it: flask jobs admin "
                    "batches KEY --close"
                )

    def _close(self) -> None:
        session = self._state.db.session()
        connection = writing_connection(session)
        d = dialect_of(connection.engine)
        if not close(connection, d, self._id):
            raise self._gone()
        if commits_by_itself(connection):  # Workers see the closed batch now, and may end it, too.
            with self._state.bookkeeping() as books:
                end_batches(books, [self._id])
            return
        ended = end_batch(connection, d, self._id)
        if ended is not None and ended.then_run_id is not None:
            wake(self._state, session)
            note_enqueued(session, f"{ended.then_task} (run {ended.then_run_id})")

    def _member(self, state: State, session: Session) -> int | None:
        """Return the batch's id for a new run; None if the run belongs to another app."""
        if state is not self._state:
            return None
        if self._transaction not in _transactions(session):
            # The transaction or savepoint that kept the batch open has ended.
            if not hold_open(writing_connection(session), self._id):
                raise self._gone()
            self._transaction = _transactions(session)[0]
        return self._id

    def _gone(self) -> BatchClosed:
        return BatchClosed(
            f"The batch {self.key!r} takes no more runs: the transaction that opened it was rolled "
            "back, or an operator closed it after a commit inside its block. If "
            "jobs.batch_counts(key) is None, fill it again from the start, in a new `with` block."
        )

    def __repr__(self) -> str:
        return f"<Batch {self.key!r}>"


def _transactions(session: Session) -> list[SessionTransaction]:
    """Return *session*'s open savepoints, innermost first, followed by its transaction."""
    transactions: list[SessionTransaction] = []
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        transactions.append(transaction)
        transaction = transaction.parent
    return transactions


def new_batch(
    state: State,
    key: str,
    then: Task[..., Any] | None,
    then_payload: Mapping[str, object] | None,
) -> Batch:
    """Return a batch to enter; see `CronJobs.batch`."""
    check_key("The batch's key", key, 500)
    new = NewBatch(key)
    if then is not None:
        new = _followed_by(then, then_payload or {}, state, new)
    elif then_payload is not None:
        raise TaskError("then_payload was given without then. Give the task to run.")
    return Batch(state, new)


def _followed_by(
    then: Task[..., Any], payload: Mapping[str, object], state: State, new: NewBatch
) -> NewBatch:
    options = then.enqueue_options
    for name in ("run_at", "delay", "idempotency_key", "unique_while", "replace", "commit"):
        if getattr(options, name):
            raise TaskError(
                f"then={then.name}.using({name}=…) has no effect: the run is enqueued once, when "
                "the batch has ended. Give only queue, priority and max_attempts."
            )
    try:
        arguments = then.payload_from(payload)
    except TypeError as error:
        raise TypeError(f"{error}. Give its arguments as then_payload={{…}}.") from None
    run = new_run(then, arguments, options, state.settings, unique=False)
    return new._replace(then_task=then.name, then_payload=run.payload, then_columns=run.policy)
