"""Delete rows that are past their retention, many at once, and find how late pruning is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, text

from ..config import Settings
from ..db.connection import Bookkeeping, Rows
from ..db.dialect import Dialect
from ..models.conditions import DEAD, DONE_ALONE
from . import features, ticks

#: Called with the number of deleted runs, in the transaction that deletes them.
Counted: TypeAlias = Callable[[Connection, Dialect, int], object]
#: Seconds for which operations are kept.
OPERATIONS_SECONDS = 365 * 86400.0


class Kind(NamedTuple):
    """Rows that are kept for some time.

    :ivar condition: the condition of the rows, which must be that of a partial index.
    :ivar ended: the column with the time from which the age of a row is counted.
    :ivar age: the name of the parameter with the seconds for which a row is kept.
    :ivar free: returns the SQL condition that the old row ``one`` may be deleted.
    :ivar runs_by: the column of ``job_runs`` that refers to the rows, if their runs are deleted
        with them.
    """

    table: str
    condition: str
    ended: str
    age: str
    free: Callable[[Dialect], str] = lambda d: "1 = 1"
    runs_by: str = ""


RUNS = Kind("job_runs", DONE_ALONE, "finished_at", "retention")
DEAD_RUNS = RUNS._replace(condition=f"{DEAD} AND batch_id IS NULL", age="retention_dead")


# Operations are kept longer than the runs that they changed, since audits come late.
OPERATIONS = Kind("job_operations", "1 = 1", "started_at", "operations")


@cache
def growing() -> tuple[Kind, ...]:
    """Return the kinds that grow with the work; the status page says how late their pruning is."""
    return (RUNS, DEAD_RUNS, *features.old_rows())


def past(d: Dialect, kind: Kind) -> str:
    """Return the condition that a row of *kind* is older than its retention."""
    return f"{kind.condition} AND {kind.ended} < {d.later(f'0 - :{kind.age}')}"


@lru_cache
def oldest(d: Dialect, kind: Kind) -> str:
    """Return the query for some old rows of *kind*, from the time ``place`` on."""
    place = d.typed(":place", "timestamptz")
    return f"""
        SELECT id, {kind.ended} AS ended, CAST({kind.ended} AS text) AS place,
            CASE WHEN {kind.free(d)} THEN 1 ELSE 0 END AS free
        FROM {kind.table} AS one WHERE {past(d, kind)} AND {kind.ended} >= {place}
        ORDER BY {kind.ended} LIMIT :chunk
    """


@lru_cache
def locked_runs(d: Dialect, kind: Kind) -> str:
    """Return the query of `oldest` for runs, which it also locks.

    Without the lock, a run that an operator retries at this moment could lose its failures.
    """
    return oldest(d, kind) + _lock(d)


@lru_cache
def locked_members(d: Dialect, kind: Kind) -> str:
    """Return the query that finds and locks some old runs that belong to rows ``ids`` of *kind*."""
    return f"""
        SELECT id FROM job_runs WHERE {d.among(kind.runs_by)} AND status <> 'running'
            AND finished_at < CASE WHEN {DEAD}
                THEN {d.later("0 - :retention_dead")} ELSE {d.later("0 - :retention")} END
        LIMIT :chunk {_lock(d)}
    """


def _lock(d: Dialect) -> str:
    return d.skip_locked.replace("NO KEY ", "")


@lru_cache
def behind(d: Dialect) -> str:
    """Return the query for the current time, and when the oldest row of each growing kind ended."""
    oldest_of = (
        f"(SELECT min(ended) FROM ({oldest(d, kind)}) AS o WHERE free = 1)" for kind in growing()
    )
    return f"SELECT {d.now}, {', '.join(oldest_of)}"


def delete(d: Dialect, table: str, column: str = "id") -> str:
    """Return the DELETE of the rows whose *column* is in ``ids``."""
    return f"DELETE FROM {table} WHERE {d.among(column)}"


def _delete_owners(d: Dialect, kind: Kind) -> str:
    """Return the DELETE of the rows ``ids`` of *kind* that no run refers to any more."""
    members = f"SELECT r.id FROM job_runs r WHERE r.{kind.runs_by} = {kind.table}.id AND r.status"
    return f"""
        {delete(d, kind.table)} AND ({members} <> 'running' LIMIT 1) IS NULL
            AND ({members} = 'running' LIMIT 1) IS NULL
    """


#: The most steps that one transaction deletes with their runs, unless a single run has more.
STEPS_AT_ONCE = 10_000
#: The longest rest after a transaction on SQLite, in seconds.
_REST_SECONDS = 0.1


def prune(books: Bookkeeping, settings: Settings, counted: Counted | None = None) -> Iterator[int]:
    """Delete rows past their retention; yield the number of deleted runs after each round.

    A round deletes up to `DELETED_AT_ONCE` rows of each kind, so that no kind waits for another.
    The caller may stop after any round.

    On SQLite, other writers must find a moment between two of our transactions. They try every few
    milliseconds, so we leave them as much time as we took, but at most `_REST_SECONDS`.

    :param settings: says how long rows are kept. Batches are kept like succeeded runs, and finished
        effects like dead runs, but at least as long as their run may be retried.
    :param counted: called with the number of runs in the transactions that delete them.
    """
    d = books.dialect
    prunings = [
        _prune_runs(books, kind, settings, counted)
        if kind.table == "job_runs"
        else _prune_rows(books, kind, settings, counted)
        for kind in (*growing(), OPERATIONS)
    ]
    while prunings:
        runs = 0
        for pruning in tuple(prunings):
            began = time.monotonic()
            deleted = next(pruning, None)
            if deleted is None:
                prunings.remove(pruning)
            runs += deleted or 0
            if d.one_writer:
                time.sleep(min(time.monotonic() - began, _REST_SECONDS))
        yield runs


def prunable(books: Bookkeeping, settings: Settings) -> int:
    """Return how many runs `prune` would delete now."""
    d, parameters = books.dialect, _parameters(books.dialect, settings)
    conditions = [past(d, RUNS), past(d, DEAD_RUNS)]
    for kind in growing():
        if kind.runs_by:
            old_ids = f"SELECT id FROM {kind.table} AS one WHERE {past(d, kind)} AND {kind.free(d)}"
            conditions.append(f"{d.any_of(kind.runs_by, old_ids)} AND status <> 'running'")
    counts = (f"SELECT count(*) FROM job_runs WHERE {condition}" for condition in conditions)
    return sum(books.rows(text(sql), parameters)[0][0] for sql in counts)


def _prune_runs(
    books: Bookkeeping, kind: Kind, settings: Settings, counted: Counted | None
) -> Iterator[int]:
    """Delete old runs with what belongs to them; yield how many, after each transaction."""
    d = books.dialect
    parameters, query = _parameters(d, settings), locked_runs(d, kind)
    while True:
        runs, are_all = books.transaction(
            partial(_delete_runs, d=d, query=query, parameters=parameters, counted=counted)
        )
        yield len(runs)
        if are_all:
            return
        # Continue from here: until a vacuum, PostgreSQL's index has entries for all deleted rows.
        parameters["place"] = runs[-1].place


def _prune_members(
    books: Bookkeeping, kind: Kind, ids: Sequence[int], settings: Settings, counted: Counted | None
) -> Iterator[int]:
    """Delete the old runs that refer to the rows *ids* of *kind*; yield as `_prune_runs` does."""
    d = books.dialect
    parameters = {**_parameters(d, settings), "ids": d.many(ids)}
    work = partial(
        _delete_runs, d=d, query=locked_members(d, kind), parameters=parameters, counted=counted
    )
    are_all = False
    while not are_all:
        runs, are_all = books.transaction(work)
        if runs:
            yield len(runs)


def _delete_runs(
    connection: Connection,
    d: Dialect,
    query: str,
    parameters: Mapping[str, Any],
    counted: Counted | None,
) -> tuple[Rows, bool]:
    """Delete some runs; return their rows, and whether no others are left.

    :param query: finds and locks a chunk of runs that may be deleted.
    """
    rows = connection.execute(text(query), parameters).all()
    chosen_rows = _with_few_steps(connection, d, rows)
    if ids := [row.id for row in chosen_rows]:
        parameters = {"ids": d.many(ids)}
        for table in ("job_failures", "job_outputs", "job_steps"):
            connection.execute(text(delete(d, table, "run_id")), parameters)
        connection.execute(text(delete(d, "job_runs")), parameters)
        if counted is not None:
            counted(connection, d, len(ids))
    return chosen_rows, len(rows) < ticks.DELETED_AT_ONCE and chosen_rows is rows


def _with_few_steps(connection: Connection, d: Dialect, rows: Rows) -> Rows:
    """Return *rows*, or only the first ones if they have more than `STEPS_AT_ONCE` steps in all."""
    some_steps = f"SELECT 1 FROM job_steps WHERE {d.among('run_id')} LIMIT :most"
    steps = text(f"SELECT count(*) FROM ({some_steps}) AS few")
    while len(rows) > 1:
        ids = d.many(row.id for row in rows)
        if connection.scalar(steps, {"ids": ids, "most": STEPS_AT_ONCE + 1}) <= STEPS_AT_ONCE:
            break
        rows = rows[: max(1, len(rows) // 8)]
    return rows


def _prune_rows(
    books: Bookkeeping, kind: Kind, settings: Settings, counted: Counted | None
) -> Iterator[int]:
    """Delete old rows of another table; yield the numbers of runs that were deleted with them.

    The rows are found by a separate query, so that only the DELETE needs SQLite's write lock. This
    is safe, since a row that may be deleted now may also be deleted later. Other rows are skipped.
    """
    d, parameters = books.dialect, _parameters(books.dialect, settings)
    statement = _delete_owners(d, kind) if kind.runs_by else delete(d, kind.table)
    while True:
        rows = books.rows(text(oldest(d, kind)), parameters)
        if ids := [row.id for row in rows if row.free]:
            if kind.runs_by:
                yield from _prune_members(books, kind, ids, settings, counted)
            books.rows(text(statement), {"ids": d.many(ids)})
        yield 0
        if len(rows) < ticks.DELETED_AT_ONCE or not (ids or rows[-1].place != parameters["place"]):
            return
        parameters["place"] = rows[-1].place


def _parameters(d: Dialect, settings: Settings) -> dict[str, Any]:
    """Return the parameters of the first query for rows of a kind."""
    return {
        "retention": settings.retention,
        "retention_dead": settings.retention_dead,
        "operations": OPERATIONS_SECONDS,
        "place": d.earliest,
        "chunk": ticks.DELETED_AT_ONCE,
    }
