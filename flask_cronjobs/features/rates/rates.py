"""Rate limits: which runs may be claimed now, and the starts that their attempts take.

The gate of a run that waits for its rate is ``rate``, which keeps it out of the indexes that claims
read. Three steps let it begin:

1. `open_starts` opens the gate of the first due runs of each key, as many as there are free starts.
2. Any worker claims them like other runs. If their concurrency key is full, it parks them, and they
   wait at the gate of that key; see `core.gate`.
3. `spend` takes a start for the time of each claim, if the key's row has not changed since it was
   read. Only this step decides: a worker that gets no start releases the run, which waits for its
   rate again.

So whichever process dies in between, no attempt begins without a start. At worst, a start is lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Row, TextClause, text

from ...core.claim import Answer, ClaimRequest, record_and_claim
from ...core.claim_statement import CLAIMABLE, claimable, free_share, of_queues, unpaused
from ...core.gate import comes_first
from ...core.tasks.rate import UNLIMITED, Rate
from ...db.connection import Bookkeeping, together
from ...db.dialect import Dialect
from ...models.conditions import RATE_READY, RATE_WAITS
from ...types import Claim, Outcome, stored_time, time_or_none

#: The maximum number of groups that one statement reads. A group is the runs of a key with the same
#: task, queue and priority.
GROUPS_READ = 500
#: The maximum number of such statements that one check sends.
_READS_PER_CHECK = 20
#: The maximum number of runs of each group whose gates one check opens, and how many more it reads,
#: since some wait for their concurrency keys.
_READY = 400
_BEYOND = 20
_GROUP = ("rate_key", "job_type", "queue", "priority")
#: A group, as the values of its columns.
Group: TypeAlias = Mapping[str, Any]
BEFORE_ALL: Group = {"rate_key": "", "job_type": "", "queue": "", "priority": -(2**31)}


class Opened(NamedTuple):
    """The result of `open_starts`.

    :ivar opened: the number of waiting runs that may be claimed now.
    :ivar wait: seconds until the next start for which a due run waits; None if none waits.
    :ivar after: the place where the next check continues.
    """

    opened: int = 0
    wait: float | None = None
    after: Group = BEFORE_ALL


def open_starts(
    books: Bookkeeping,
    rates: Mapping[str, Rate | None],
    request: ClaimRequest,
    after: Group = BEFORE_ALL,
    most: Mapping[str, int] = MappingProxyType({}),
) -> Opened:
    """Open the gates of due runs: of each key, as many as it has free starts.

    It steps from group to group, however many runs wait. Checking does not need SQLite's write
    lock.

    :param rates: the rate of each task to check; None if a task no longer has a rate.
    :param request: the tasks and queues of the claim that follows.
    :param after: the place where the last check ended. A check reads at most ten thousand groups.
    :param most: for some keys, the most gates to open.
    """
    d, opened, waits = books.dialect, 0, list[float]()
    rated = d.many(task for task in rates if rates[task])
    parameters = {**request.parameters(d), "rated": rated}
    for _ in range(_READS_PER_CHECK):
        groups, free = books.rows(_groups(d), {**parameters, **after}), list[dict[str, Any]]()
        for row in groups:
            after = {name: getattr(row, name) for name in _GROUP}
            if not row.open or row.job_type not in rates or row.job_type not in request.tasks:
                continue
            rate, now = rates[row.job_type], stored_time(row.now)
            tat = rate and _tat_at(rate, row)
            number = min(rate.free(tat, now), _READY) if rate else _READY
            if number:
                number = min(number, most.get(row.rate_key, number))
                free.append({**after, "free": number})
            elif rate and tat:
                waits.append((rate.opens(tat) - now).total_seconds())
        number, is_all = _open(books, parameters, free)
        opened += number
        if not is_all:
            waits.append(0.0)
        if len(groups) < GROUPS_READ:
            return Opened(opened, min(waits, default=None))
    return Opened(opened, 0.0, after)


def _open(
    books: Bookkeeping, parameters: Mapping[str, object], free: list[dict[str, Any]]
) -> tuple[int, bool]:
    """Open the gates of the first runs of the groups *free*.

    Runs that their concurrency keys hold back do not use up a start. So if more runs of a key were
    opened than it has starts, the search continues after them.

    :returns: the number of runs, and whether the search has come to its end.
    """
    opened, free = 0, [group for group in free if group["free"]]
    for _ in range(_READS_PER_CHECK):
        if not free:
            return opened, True
        most = max(group["free"] for group in free) + _BEYOND
        values = {**parameters, "groups": json.dumps(free), "most": most}
        rows = books.rows(_open_gate(books.dialect), values)
        opened += len(rows)
        opened_by_key = Counter(row.key for row in rows)
        free = [group for group in free if opened_by_key[group["rate_key"]] > group["free"]]
    return opened, not free


@lru_cache(maxsize=2)
def _groups(d: Dialect) -> TextClause:
    """Return the query that steps from one group of waiting runs to the next."""
    columns = ", ".join(_GROUP)
    # SQLite searches an index by the first column only if both sides are plain columns.
    at = "hop.rate_key || '', hop.job_type || '', hop.queue || '', hop.priority"
    first = _first_after(f":rate_key, :job_type, :queue, {d.typed(':priority', 'integer')}")
    further = f"hop.number < {GROUPS_READ} AND {d.any_of('id', _first_after(at))}"
    is_next = f"FROM job_runs WHERE {further} LIMIT 1"
    is_open = f"run_at <= {d.now} AND {unpaused('job_type', 'task')} AND {of_queues(d)}"
    return text(f"""
    WITH RECURSIVE hop({columns}, run_at, number) AS (
        SELECT {columns}, run_at, 1 FROM job_runs WHERE {d.any_of("id", first)}
        UNION ALL
        SELECT {", ".join(f"r.{name}" for name in _GROUP)}, r.run_at, hop.number + 1
        FROM hop {d.join_each(f"{columns}, run_at", is_next)}
    )
    SELECT {columns}, CASE WHEN {is_open} THEN 1 ELSE 0 END AS open,
        {_OF_KEY.format("hop")}, {d.now} AS now
    FROM hop
    """)


def _first_after(group: str) -> str:
    """Return the SELECT of the first run of the next group after *group*, which is SQL."""
    # With ">", SQLite would read the whole previous group.
    is_after = f"({', '.join(_GROUP)}) >= ({group} + 1)"
    return f"SELECT id FROM job_runs WHERE {RATE_WAITS} AND {is_after} ORDER BY {_ORDER} LIMIT 1"


_ORDER = f"{', '.join(_GROUP)}, run_at, id"
#: The columns of a key's row, as subqueries, since PostgreSQL does not always plan a join well.
_OF_KEY = ", ".join(
    f"(SELECT {name} FROM job_rates WHERE key = {{0}}.rate_key) AS {name}"
    for name in ("tat", "period", "last_at")
)


@lru_cache(maxsize=2)
def _open_gate(d: Dialect) -> TextClause:
    """Return the UPDATE that opens the gate of the first due runs of some groups.

    1. ``ready`` counts the runs of each key that may be claimed already, among its first ones.
    2. ``due`` locks the first runs of each group, and skips those that others have locked.
    3. ``chosen`` takes as many of them as the key has starts left. A run that its concurrency key
       holds back is taken, too, but not counted: a claim will park it.
    """
    columns = dict.fromkeys(_GROUP[:3], "text")
    same = " AND ".join(f"{name} = given.{name}" for name in _GROUP)
    first = f"""
        FROM job_runs WHERE {RATE_WAITS} AND {same} AND run_at <= {d.now}
            AND attempts < max_attempts
        ORDER BY {_ORDER} LIMIT :most {d.skip_locked}
    """
    due = d.join_each("priority, run_at, concurrency_key, concurrency_limit, strict", first)
    key = "SELECT rate_key FROM due WHERE due.id = job_runs.id"
    return text(f"""
    WITH given AS MATERIALIZED {d.table("groups", **columns, priority="integer", free="integer")},
    ready AS MATERIALIZED (
        SELECT rate_key, ({_number_ready(d)}) AS number
        FROM (SELECT DISTINCT rate_key FROM given) AS keys
    ),
    due AS MATERIALIZED (
        SELECT r.id, given.rate_key, given.free, CASE WHEN {_MAY_BEGIN} THEN 1 END AS counts,
            r.priority, r.run_at
        FROM given {due}
    ),
    placed AS MATERIALIZED (
        SELECT id, counts, free, rate_key, count(counts) OVER (
            PARTITION BY rate_key ORDER BY priority DESC, run_at, id
        ) AS place FROM due
    ),
    chosen AS MATERIALIZED (
        SELECT id FROM placed JOIN ready ON ready.rate_key = placed.rate_key
        WHERE place < free - number OR (place = free - number AND counts = 1)
    )
    UPDATE job_runs SET gate = NULL,
        rate_key = CASE WHEN {d.one_of("job_type", "rated")} THEN rate_key END
    WHERE {d.any_of("id", "SELECT id FROM chosen")} RETURNING id, ({key}) AS key
    """)


def _number_ready(d: Dialect) -> str:
    """Return SQL for the number of runs of ``keys.rate_key`` that may be claimed already.

    The order keeps PostgreSQL from reading the index of all ready runs.
    """
    return f"""
        SELECT count(*) FROM (
            SELECT {CLAIMABLE}, concurrency_key, concurrency_limit, strict
            FROM job_runs WHERE {RATE_READY} AND rate_key = keys.rate_key
            ORDER BY gate, {_ORDER} LIMIT {_READY}
        ) AS r WHERE {claimable(d)} AND {_MAY_BEGIN}
    """


#: SQL for: the concurrency key of the run ``r``, if it has one, has a free share, and no other run
#: comes before it in strict order.
_MAY_BEGIN = f"""
    ((r.concurrency_key IS NULL OR {free_share("r.concurrency_key")} <= r.concurrency_limit)
        AND {comes_first("r")})
"""


def spend(books: Bookkeeping, rates: Mapping[str, Rate], claims: Sequence[Claim]) -> dict[int, str]:
    """Take starts for *claims*, which have the same token, at the times of the claims.

    A start that was taken is never given back. A key gives no start if another worker changes its
    row at the same time, or has locked it.

    :returns: the runs that may not begin, each with its rate key.
    :raises DatabaseTrouble: it is unknown which starts are taken.
    """
    work = partial(_spend, d=books.dialect, rates=rates, claims=claims)
    return books.transaction(work, repeat=False)


class _Move(NamedTuple):
    """The change of a key's ``tat`` (see `Rate`) by attempts, the last of which began *at*."""

    before: datetime | None
    after: datetime
    at: datetime
    rate: Rate


def _spend(
    connection: Connection, d: Dialect, rates: Mapping[str, Rate], claims: Sequence[Claim]
) -> dict[int, str]:
    query = f"""
        SELECT id, rate_key, started_at, {_OF_KEY.format("job_runs")}
        FROM job_runs WHERE {d.among("id")} AND locked_by = :token AND rate_key IS NOT NULL
    """
    parameters = {"ids": d.many([claim.id for claim in claims]), "token": claims[0].token}
    rows = {row.id: row for row in connection.execute(text(query), parameters)}
    refused_keys, moves = {row.id: row.rate_key for row in rows.values()}, dict[str, _Move]()
    for claim in (claim for claim in claims if claim.id in rows):
        row, rate = rows[claim.id], rates[claim.job_type]
        before, at = time_or_none(row.tat), stored_time(row.started_at)
        previous = moves.get(row.rate_key)
        after = rate.start(previous.after if previous else _tat_at(rate, row), at)
        if after is not None:
            del refused_keys[claim.id]
            last = max(filter(None, (at, previous and previous.at, time_or_none(row.last_at))))
            moves[row.rate_key] = _Move(before, after, last, rate)
    # Tests move the clock, so starts taken in them are not recorded.
    recorded_moves = {key: move for key, move in moves.items() if move.rate != UNLIMITED}
    unmoved = recorded_moves.keys() - _move(connection, d, recorded_moves)
    lost_keys = {row.id: row.rate_key for row in rows.values() if row.rate_key in unmoved}
    return refused_keys | lost_keys


def _tat_at(rate: Rate, row: Row[Any]) -> datetime | None:
    """Return the ``tat`` of a key at *rate*, from a *row* with the columns of `_OF_KEY`."""
    return rate.converted(time_or_none(row.tat), row.period, time_or_none(row.last_at))


def _move(connection: Connection, d: Dialect, moves: Mapping[str, _Move]) -> set[str]:
    """Change the ``tat`` of keys; return those whose row had the old one, and was not locked."""
    columns = {
        **dict.fromkeys(("tat", "last_at"), "timestamptz"),
        "period": "double precision",
        "burst": "integer",
    }
    names = ", ".join(("key", *columns))
    statement = f"""
        WITH given AS MATERIALIZED {d.table("moves", key="text", before="timestamptz", **columns)},
        free AS MATERIALIZED (
            SELECT key FROM job_rates AS r WHERE {d.any_of("key", "SELECT key FROM given")}
                AND tat = (SELECT before FROM given WHERE given.key = r.key) {d.skip_locked}
        )
        INSERT INTO job_rates ({names})
        SELECT {names} FROM given WHERE before IS NULL OR key IN (SELECT key FROM free)
        ORDER BY key
        ON CONFLICT (key) DO UPDATE
        SET {", ".join(f"{name} = excluded.{name}" for name in columns)}
        WHERE job_rates.key IN (SELECT key FROM free)
        RETURNING key
    """
    rows = [
        {
            "key": key,
            "before": move.before and d.instant(move.before),
            "tat": d.instant(move.after),
            "last_at": d.instant(move.at),
            "period": move.rate.period.total_seconds(),
            "burst": move.rate.burst,
        }
        for key, move in moves.items()
    ]
    moved_keys = connection.execute(text(statement), {"moves": json.dumps(rows)})
    return set(moved_keys.scalars())


def record_and_hold(books: Bookkeeping, outcome: Outcome, rate: Rate) -> Answer:
    """Record *outcome*, and let no run of its rate key begin until its delay is over.

    Either both happen or neither: an outcome whose lease was lost holds no key back. If the key's
    row is locked, the outcome is not recorded, as if its own row were locked.

    :raises DatabaseTrouble: it is unknown whether it was recorded.
    """
    return together(books, partial(_record_and_hold, outcome=outcome, rate=rate), repeat=False)


def _record_and_hold(books: Bookkeeping, outcome: Outcome, rate: Rate) -> Answer:
    d = books.dialect
    of_run = "SELECT rate_key FROM job_runs WHERE id = :id"
    lock = f"SELECT key FROM job_rates WHERE {d.any_of('key', of_run)} {d.skip_locked}"
    read = f"SELECT key FROM job_rates WHERE {d.any_of('key', of_run)}"
    parameters = {"id": outcome.id}
    if len(books.rows(text(lock), parameters)) < len(books.rows(text(read), parameters)):
        return Answer(unrecorded=frozenset({outcome.id}))
    answer = record_and_claim(books, [outcome], None)
    if outcome.id in answer.recorded:
        ahead, period = rate.ahead.total_seconds(), rate.period.total_seconds()
        delays = {"seconds": outcome.delay, "ahead": outcome.delay + ahead}
        books.rows(text(_hold(d)), {**parameters, **delays, "period": period, "burst": rate.burst})
    return answer


def _hold(d: Dialect) -> str:
    """Return the statement that holds a run's key back, unless it is held back for longer."""
    columns = ("tat", "last_at", "period", "burst")
    return f"""
        INSERT INTO job_rates (key, {", ".join(columns)})
        SELECT rate_key, {d.clock_after(":ahead")}, {d.clock_after(":seconds")},
            {d.typed(":period", "double precision")}, {d.typed(":burst", "integer")}
        FROM job_runs WHERE id = :id AND rate_key IS NOT NULL
        ON CONFLICT (key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in columns)}
        WHERE job_rates.tat < excluded.tat RETURNING id
    """


#: The maximum number of checks of one `open_unrated`, enough to open the gates of 40,000 runs of a
#: group.
_UNRATED_CHECKS = 100


def open_unrated(books: Bookkeeping, tasks: Collection[str], rates: Collection[str]) -> None:
    """Open the gates of runs whose task no longer has a rate.

    :param tasks: the tasks that the code declares.
    :param rates: those of them that have a rate.
    """
    unrated = dict.fromkeys(task for task in tasks if task not in rates)
    request, starts = ClaimRequest(1, "", tuple(unrated)), Opened(opened=1)
    for _ in range(_UNRATED_CHECKS):
        if starts.opened or starts.after != BEFORE_ALL:
            starts = open_starts(books, unrated, request, starts.after)


#: Seconds for which an unused key keeps its row.
KEPT_SECONDS = 86_400


def delete_unused_keys(books: Bookkeeping) -> None:
    """Delete the rows of keys that have not been used for `KEPT_SECONDS`."""
    d = books.dialect
    # This locks the row, so that no worker takes a start from it at the same time.
    old = f"SELECT id FROM job_rates WHERE tat < {d.later(str(-KEPT_SECONDS))} ORDER BY tat"
    locked = d.skip_locked.replace("NO KEY ", "")
    unused = d.any_of("id", f"{old} LIMIT {GROUPS_READ} {locked}")
    books.rows(text(f"DELETE FROM job_rates WHERE {unused} RETURNING id"))
