"""End batches whose last member has ended, and stop those in which a member died.

Every tick looks at all batches that have not ended, so none is forgotten, whatever was killed. A
worker looks at those of its runs, so that their ``then`` is soon enqueued; see `Keeper`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from ...db import failpoints
from ...db.connection import Bookkeeping, Rows
from ...db.dialect import Dialect
from ...db.errors import is_about_the_rows
from ...db.notify import wake_all
from ...errors import CronJobsError
from ...log import logger
from ...models.conditions import HANDED, OPEN_BATCH, RUNNABLE
from ...signals import announce
from ...text import one_line
from ...types import TERMINAL, BatchCounts, Outcome
from ..runs.columns import assigned, ended, insert_into_runs, parameter
from ..state import State
from .rows import (
    HAS_DEAD,
    LIVE,
    ROWS_AT_ONCE,
    THEN_COLUMNS,
    members_of,
    numbers_of,
    object_of,
    pruned_of,
    set_numbers,
)

#: Why a run was cancelled that waited in a batch.
REASON = "its batch was stopped: a member died"
#: The ``error_type`` of a run that waited in a batch that was stopped.
STOPPED = "Stopped"
#: The conditions of the runs that wait, in the words of an index each.
WAITING = (
    "status = 'queued' AND status <> 'running'",
    "status = 'failed' AND status <> 'running'",
)
#: How long to wait for somebody else who is about to end the same batch, in seconds, how often.
MOMENTS = (0.01, 0.04)


class Ended(NamedTuple):
    """A batch that was ended.

    :ivar then_run_id: the run that was enqueued for it; None if none was.
    """

    counts: BatchCounts
    parent_id: int | None
    then_task: str | None
    then_run_id: int | None


class EndedBatches(NamedTuple):
    """What `end_batches` did.

    :ivar enqueued: how many runs of ``then`` were enqueued.
    :ivar left: the batches in which runs still wait that are to be cancelled.
    """

    enqueued: int
    left: frozenset[int] = frozenset()


def end_batches(
    books: Bookkeeping,
    tell: Callable[[Outcome], object],
    ids: Iterable[int] | None = None,
    seconds: float = float("inf"),
) -> EndedBatches:
    """End those batches that can be ended, and stop those that are to be stopped.

    One whose row is corrupt is logged, and stops no other.

    :param tell: called for each run that is cancelled.
    :param ids: look at these, and then at those around them; None for all.
    :param seconds: after which no more runs are cancelled in a batch.
    """
    wanted = None if ids is None else set(ids)
    enqueued, left = 0, set[int]()
    while wanted is None or wanted:
        touched: set[int] = set()
        for each in unended(books, wanted):
            with _logging_broken(each.key):
                if each.stopped and each.id not in left:
                    cancelled_in, is_done = _stop(books, each.id, tell, seconds)
                    touched |= cancelled_in
                    left |= set() if is_done else {each.id}
                if each.ready and (end := _end(books, each.id)):
                    failpoints.reach("after-batch")
                    enqueued += end.then_run_id is not None
                    touched |= set() if end.parent_id is None else {end.parent_id}
                    _log_end(end)
        wanted = touched
    if enqueued:
        wake_all(books)
    return EndedBatches(enqueued, frozenset(left))


def telling(state: State) -> Callable[[Outcome], None]:
    """Return what logs a run that is cancelled, and sends its signal, in the caller's thread."""
    return lambda outcome: announce(state.app, outcome, recorded=True)


@contextmanager
def _logging_broken(key: str) -> Generator[None]:
    """Log an error that the row of the batch *key* is the cause of, and go on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CronJobsError) and not is_about_the_rows(error):
            raise
        logger.error(
            "The batch %s is broken, and waits: %s. Mend its row in job_batches.",
            one_line(str(key)),
            one_line(str(error)).rstrip("."),
        )


def _log_end(ended: Ended) -> None:
    """Log that a batch has ended, and how."""
    counts = ended.counts
    told = ", ".join(
        f"{number:,} {status}" for status in TERMINAL if (number := getattr(counts, status))
    )
    then = f"; then {ended.then_task}, run {ended.then_run_id}" if ended.then_run_id else ""
    logger.info("batch %s has ended: %s%s", one_line(str(counts.key)), told or "no members", then)


def _end(books: Bookkeeping, batch_id: int) -> Ended | None:
    """End a batch. If somebody else is at it, see that they do not miss our own last run."""
    for pause in (*MOMENTS, 0.0):
        found = books.transaction(lambda c: end_batch(c, books.dialect, batch_id))
        if found is not None or not any(each.ready for each in unended(books, [batch_id])):
            return found
        time.sleep(pause)
    return None


def _stop(
    books: Bookkeeping, batch_id: int, tell: Callable[[Outcome], object], seconds: float
) -> tuple[set[int], bool]:
    """Cancel what waits in a batch and in those inside it.

    :returns: these batches, if any run was cancelled; and whether that came to its end in time.
    """
    until = time.monotonic() + seconds
    inside = family(books, batch_id)
    number = 0
    for each in inside:
        for outcomes in _cancel_waiting(books, each, batch_id):
            for outcome in outcomes:
                tell(outcome)
            number += len(outcomes)
            if time.monotonic() > until:
                return set(), False
    if not number:
        return set(), True
    logger.warning("batch %d was stopped: a member died. Runs cancelled: %d", batch_id, number)
    return set(inside), True


def family(books: Bookkeeping, batch_id: int, dead: bool = False) -> dict[int, str]:
    """Return the ids and keys of a batch, and of those inside it that have not ended.

    :param dead: also of those that have ended, and in which a member died.
    """
    which = "c.finished_at IS NULL" + (" OR c.dead > 0" if dead else "")
    inside = f"""
        WITH RECURSIVE family(id, key) AS (
            SELECT id, key FROM job_batches WHERE id = :id
            UNION
            SELECT c.id, c.key FROM job_batches c JOIN family ON c.parent_id = family.id
            WHERE ({which}) IS TRUE
        )
        SELECT id, key FROM family
    """
    return {row.id: row.key for row in books.rows(text(inside), {"id": batch_id})}


def _cancel_waiting(books: Bookkeeping, batch_id: int, stopped_id: int) -> Iterator[list[Outcome]]:
    """Cancel the runs of a batch that wait, also in brokers; yield the outcomes by `ROWS_AT_ONCE`.

    :param stopped_id: the batch in which a member died: this one, or one around it. If an
        operator lets that go on, nothing more is cancelled.
    """
    d = books.dialect
    given = {"id": batch_id, "stopped_id": stopped_id, "chunk": ROWS_AT_ONCE}
    for waiting in WAITING:
        place: dict[str, object] = {"run_at": d.earliest, "run_id": 0}
        while found := books.rows(text(_waiting(d, waiting)), {**given, **place}):
            yield _cancel(books, found)
            moment = found[-1].run_at
            place["run_at"] = moment if isinstance(moment, str) else d.instant(moment)
            place["run_id"] = found[-1].id
    # Few. Those that others have locked are left.
    handed = f"{_waiting_in_batch(HANDED)} ORDER BY locked_until LIMIT :chunk"
    while outcomes := _cancel(books, books.rows(text(handed), given)):
        yield outcomes


def _waiting(d: Dialect, which: str) -> str:
    """Return the query for a step of the runs that wait in a stopped batch, by when they are due.

    It goes on behind ``run_at`` and ``run_id``.

    :param which: one of `WAITING`.
    """
    return f"""
        {_waiting_in_batch(which)}
            AND (run_at, id) > ({d.typed(":run_at", "timestamptz")}, :run_id)
        ORDER BY run_at, id LIMIT :chunk
    """


def _waiting_in_batch(which: str) -> str:
    return f"""
        SELECT id, run_at FROM job_runs WHERE batch_id = :id AND {which}
            AND EXISTS (SELECT 1 FROM job_batches WHERE id = :stopped_id AND on_dead = 'stop')
    """


def _cancel(books: Bookkeeping, runs: Rows) -> list[Outcome]:
    """Cancel those of *runs* that still wait, and that nobody has locked."""
    d = books.dialect
    free = f"""
        SELECT id FROM job_runs WHERE {d.among("id")} AND ({RUNNABLE} OR {HANDED}) {d.skip_locked}
    """
    cancel = f"""
        UPDATE job_runs SET {assigned(ended("'cancelled'", d.now, ":reason", f"'{STOPPED}'"))}
        WHERE {d.any_of("id", free)} RETURNING id, job_type, attempts, label
    """
    given = {"ids": d.many([row.id for row in runs]), "reason": REASON}
    rows = books.rows(text(cancel), given) if runs else ()
    return [
        Outcome(
            *(row.id, "", "cancelled", row.attempts, row.job_type, REASON, STOPPED),
            label=row.label,
        )
        for row in rows
    ]


def unended(books: Bookkeeping, ids: Iterable[int] | None = None) -> Iterator[Any]:
    """Yield the ids and keys of batches that have not ended, with what is to be done to them.

    A row is ``ready`` if the batch can be ended: it is closed, and all of its members have ended.
    It is ``stopped`` if what waits in it is to be cancelled, since a member died.

    :param ids: look at these; None for all.
    """
    d, after = books.dialect, 0
    which = "" if ids is None else f"AND {d.among('b.id')}"
    given = {} if ids is None else {"ids": d.many(ids)}
    statement = f"""
        SELECT * FROM (
            SELECT b.id, b.key,
                CASE WHEN b.closed_at IS NULL THEN 0 WHEN {LIVE} THEN 0 ELSE 1 END AS ready,
                CASE WHEN {HAS_DEAD} THEN 1 ELSE 0 END AS stopped
            FROM job_batches b WHERE {OPEN_BATCH} AND b.id > :after {which}
            ORDER BY b.id LIMIT :chunk
        ) AS looked_at
    """
    while True:
        rows = books.rows(text(statement), {"after": after, "chunk": ROWS_AT_ONCE, **given})
        yield from rows
        if len(rows) < ROWS_AT_ONCE:
            return
        after = rows[-1].id


def close_in(connection: Connection, d: Dialect, key: str) -> tuple[bool, Ended | None]:
    """Close a batch in *connection*'s transaction, and end it if all of its members have ended.

    A transaction with a snapshot does not see members that came after that. So it only closes the
    batch, and the next tick ends it.

    :returns: whether there is such a batch; and what became of it, if it ended.
    """
    statement = f"""
        UPDATE job_batches SET closed_at = COALESCE(closed_at, {d.now}) WHERE key = :key
        RETURNING id, {d.sees_latest} AS sees_all
    """
    row = connection.execute(text(statement), {"key": key}).first()
    if row is None:
        return False, None
    return True, end_batch(connection, d, row.id) if row.sees_all else None


def end_batch(connection: Connection, d: Dialect, batch_id: int) -> Ended | None:
    """End a batch in *connection*'s transaction.

    1. Lock its row, so that nobody else ends, fills or reopens it. 2. Look whether a member is
    live, by a statement of its own: it sees what was committed before the lock. 3. Count. 4.
    Enqueue ``then``, unless that was done before. 5. Write it down.

    :returns: None if a member is live, if it is not closed or has ended, or if somebody else holds
        its row.
    :raises ValueError: a column of it cannot be read.
    """
    own = {"id": batch_id}
    lock = f"""
        SELECT key, parent_id, pruned, then_task, then_columns, then_run_id FROM job_batches
        WHERE id = :id AND closed_at IS NOT NULL AND {OPEN_BATCH} {d.skip_locked}
    """
    batch = connection.execute(text(lock), own).first()
    live = f"SELECT 1 FROM job_batches b WHERE b.id = :id AND {LIVE}"
    if batch is None or connection.execute(text(live), own).first():
        return None
    pruned = pruned_of(d, batch)
    if pruned is None:
        raise ValueError(f"its pruned is {batch.pruned!r}, and not numbers by status")
    members = members_of(connection.execute, d, [batch_id])
    numbers = numbers_of(members[batch_id] + Counter(pruned))
    failpoints.reach("before-then")
    new_run_id = None
    if batch.then_task is not None and batch.then_run_id is None:
        new_run_id = _enqueue_then(connection, d, batch_id, batch.then_columns)
        failpoints.reach("after-then")
    end = f"""
        UPDATE job_batches SET finished_at = {d.now}, then_run_id = :then_run_id,
            {set_numbers()}
        WHERE id = :id
    """
    then_run_id = new_run_id or batch.then_run_id
    connection.execute(text(end), {**own, "then_run_id": then_run_id, **numbers})
    as_counts = BatchCounts(key=batch.key, finished=True, **numbers)
    return Ended(as_counts, batch.parent_id, batch.then_task, new_run_id)


def _enqueue_then(connection: Connection, d: Dialect, batch_id: int, then_columns: object) -> int:
    """Insert a batch's run of ``then``; return its id."""
    columns = object_of(d, then_columns, int | str | None)
    if columns is None:
        raise ValueError(f"its then_columns is {then_columns!r}, and not plain JSON")
    given = {name: parameter(d, name) for name in THEN_COLUMNS}
    own = {"job_type": "then_task", "payload": "then_payload", "batch_id": "parent_id"}
    source = "FROM job_batches WHERE id = :id RETURNING id"
    statement = insert_into_runs({**own, **given}, d.now, d.now, source)
    values = {name: columns.get(name) for name in THEN_COLUMNS}
    return int(connection.execute(text(statement), {"id": batch_id, **values}).scalar_one())
