"""Rate limits: which runs may be claimed now, and the slots that their attempts take.

A run with a rate is marked when it waits, so that it stands in no index of the claims. Three steps
let it begin:

1. `open_slots` takes the mark from the first due runs of each key, as many as it has free slots.
2. Any worker claims them, as it claims others.
3. `spend` takes the slots, by the times of the claims, under the lock of the key's row. It alone
   decides: whoever gets none gives the run back, and it waits with its mark again.

So whatever dies in between, no attempt begins without a slot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, TextClause, text

from ..db.connection import Bookkeeping
from ..db.dialect import Dialect
from ..models.conditions import RATE_READY, RATE_WAITS
from ..registry.rate import Rate
from ..types import Claim, stored_time
from .runs.candidates import claimable, of_queues, unpaused
from .runs.claim import ClaimRequest

#: How many groups one look reads: the runs of a key that have one task, queue and priority.
CHUNK = 500
#: How often one call looks at most.
_MOST = 20
#: How many runs one call makes ready of each group, and how many it reads beyond them: some wait
#: for their concurrency keys.
_READY = 400
_BEYOND = 20
_GROUP = ("rate_key", "job_type", "queue", "priority")
_ORDER = f"{', '.join(_GROUP)}, run_at, id"
_Place: TypeAlias = tuple[str, str, str, int]
_BEFORE_ALL: _Place = ("", "", "", -(2**31))


class Slots(NamedTuple):
    """What `open_slots` found.

    :ivar opened: how many runs may be claimed now that waited before.
    :ivar wait: after how many seconds the next slot comes for which a due run waits; None: none.
    """

    opened: int = 0
    wait: float | None = None


class Slot(NamedTuple):
    """A slot that an attempt has taken, by the ``tat`` of its key before and after."""

    key: str
    before: datetime
    after: datetime


def open_slots(books: Bookkeeping, rates: Mapping[str, Rate], request: ClaimRequest) -> Slots:
    """Let due runs be claimed, as many of each key as it has free slots.

    It goes from group to group at one step each, however many runs wait. To look does not need
    SQLite's write lock.

    :param rates: the tasks that have one.
    :param request: the tasks and queues of this worker.
    """
    after, opened, waits = _BEFORE_ALL, 0, list[float]()
    for _ in range(_MOST):
        groups = _look(books, request, after)
        due = [each for each in groups if each.open and each.job_type in rates]
        free = {each: rates[each.job_type].free(each.tat, each.now) for each in due}
        opened += _open(books, request, {each: number for each, number in free.items() if number})
        waits += [
            (rates[each.job_type].opens(each.tat) - each.now).total_seconds()
            for each, number in free.items()
            if not number and each.tat is not None
        ]
        if len(groups) < CHUNK:
            break
        after = groups[-1].place
    return Slots(opened, min(waits, default=None))


class _Group(NamedTuple):
    """The waiting runs of a rate key that have one task, queue and priority.

    :ivar open: whether the first is due, of this worker and not paused.
    """

    rate_key: str
    job_type: str
    queue: str
    priority: int
    open: bool
    tat: datetime | None
    now: datetime

    @property
    def place(self) -> _Place:
        """Return its place in the order of the groups."""
        return self.rate_key, self.job_type, self.queue, self.priority


def _look(books: Bookkeeping, request: ClaimRequest, after: _Place) -> list[_Group]:
    place = dict(zip(("key", "task", "queue", "priority"), after, strict=True))
    parameters = {**request.parameters(books.dialect), **place}
    return [
        _Group(
            *(row.rate_key, row.job_type, row.queue, row.priority, bool(row.open)),
            tat=None if row.tat is None else stored_time(row.tat),
            now=stored_time(row.now),
        )
        for row in books.rows(_groups(books.dialect), parameters)
    ]


@lru_cache(maxsize=2)
def _groups(d: Dialect) -> TextClause:
    """Return the query for the groups of waiting runs, from one to the next."""
    columns = ", ".join(_GROUP)
    given = (":key", ":task", ":queue", d.typed(":priority", "integer"))
    following = _first_after([f"hop.{name}" for name in _GROUP])
    is_next = f"FROM job_runs WHERE hop.number < {CHUNK} AND {d.any_of('id', following)} LIMIT 1"
    is_open = f"run_at <= {d.now} AND {unpaused('job_type', 'task')} AND {of_queues(d)}"
    return text(f"""
    WITH RECURSIVE hop({columns}, run_at, number) AS (
        SELECT {columns}, run_at, 1 FROM job_runs WHERE {d.any_of("id", _first_after(given))}
        UNION ALL
        SELECT {", ".join(f"r.{name}" for name in _GROUP)}, r.run_at, hop.number + 1
        FROM hop {d.join_each("r", f"{columns}, run_at", is_next)}
    )
    SELECT {columns}, CASE WHEN {is_open} THEN 1 ELSE 0 END AS open,
        (SELECT tat FROM job_rates WHERE key = hop.rate_key) AS tat, {d.now} AS now
    FROM hop
    """)


def _first_after(group: Sequence[str]) -> str:
    """Return the SELECT of the first run of the group that follows *group* (SQL), at one step.

    That has the same key, task and queue, and the next priority; or else the next queue, and so on.
    To compare all at once, SQLite would read the whole group.
    """
    steps: list[str] = []
    for number in reversed(range(len(_GROUP))):
        same = [f"{name} = {value} AND " for name, value in zip(_GROUP, group, strict=True)]
        further = f"{''.join(same[:number])}{_GROUP[number]} > {group[number]}"
        first = (
            f"SELECT id FROM job_runs WHERE {RATE_WAITS} AND {further} ORDER BY {_ORDER} LIMIT 1"
        )
        steps.append(f"({first})")
    return f"SELECT COALESCE({', '.join(steps)})"


def _open(books: Bookkeeping, request: ClaimRequest, free: Mapping[_Group, int]) -> int:
    if not free:
        return 0
    parameters = {
        **request.parameters(books.dialect),
        "groups": _json(free.items()),
        "most": min(max(free.values()), _READY) + _BEYOND,
    }
    return len(books.rows(_take_marks(books.dialect), parameters))


def _json(groups: Iterable[tuple[_Group, int]]) -> str:
    return json.dumps(
        [{**dict(zip(_GROUP, each, strict=False)), "free": number} for each, number in groups]
    )


@lru_cache(maxsize=2)
def _take_marks(d: Dialect) -> TextClause:
    """Return the UPDATE that takes the marks of the first due runs of some groups.

    1. ``ready`` is how many runs of each key may be claimed already.
    2. ``due`` are the first of each group. One whose concurrency key has no free share does not
       count: it may be claimed when there is one, and the others do not wait for that.
    """
    ready = f"""
        SELECT id FROM job_runs WHERE {RATE_READY} AND rate_key = keys.rate_key
            AND ({claimable(d)}) IS TRUE AND {_has_share("job_runs")} LIMIT :most
    """
    return text(f"""
    WITH given AS MATERIALIZED {_given(d)},
    ready AS MATERIALIZED (
        SELECT rate_key, (SELECT count(*) FROM ({ready}) AS counted) AS number
        FROM (SELECT DISTINCT rate_key FROM given) AS keys
    ),
    due AS MATERIALIZED (
        SELECT r.id, given.rate_key, given.free, CASE WHEN {_has_share("r")} THEN 1 END AS counts,
            r.priority, r.run_at
        FROM given {_of_group(d, "r", f"AND run_at <= {d.now} AND attempts < max_attempts")}
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
    UPDATE job_runs SET rate_mark = NULL WHERE {d.any_of("id", _free_of(d, "chosen"))}
    RETURNING id
    """)


def _given(d: Dialect) -> str:
    columns = dict.fromkeys(_GROUP[:3], "text")
    return d.table("groups", **columns, priority="integer", free="integer")


def _of_group(d: Dialect, alias: str, more: str) -> str:
    """Return SQL that joins the first waiting runs of each group in ``given``."""
    same = " AND ".join(f"{name} = given.{name}" for name in _GROUP)
    first = f"FROM job_runs WHERE {RATE_WAITS} AND {same} {more} ORDER BY {_ORDER} LIMIT :most"
    return d.join_each(alias, "priority, run_at, concurrency_key, concurrency_limit", first)


def _free_of(d: Dialect, chosen: str) -> str:
    """Return the SELECT of those runs in *chosen* that wait still, and that nobody has locked."""
    waits = f"({RATE_WAITS}) IS TRUE"
    found = d.any_of("id", f"SELECT id FROM {chosen}")
    return f"SELECT id FROM job_runs WHERE {found} AND {waits} {d.skip_locked}"


def _has_share(run: str) -> str:
    """Return SQL for: the concurrency key of *run*, if it has one, has a free share."""
    taken = f"""
        SELECT count(*) FROM job_runs AS holder
        WHERE holder.concurrency_key = {run}.concurrency_key
            AND holder.concurrency_share IS NOT NULL
    """
    return f"({run}.concurrency_key IS NULL OR ({taken}) < {run}.concurrency_limit)"


def spend(
    books: Bookkeeping, rates: Mapping[str, Rate], claims: Sequence[Claim]
) -> dict[int, Slot | None]:
    """Take slots for *claims*, which have one token, by the times when they were claimed.

    A key whose row another transaction has locked has none.

    :returns: the runs that have a rate, each with its slot, or None if it may not begin.
    :raises DatabaseTrouble: it is not known which slots are taken.
    """
    tasks = {claim.id: claim.job_type for claim in claims}
    work = partial(_spend, d=books.dialect, rates=rates, tasks=tasks, token=claims[0].token)
    return books.transaction(work, repeat=False)


def _spend(
    connection: Connection,
    d: Dialect,
    rates: Mapping[str, Rate],
    tasks: Mapping[int, str],
    token: str,
) -> dict[int, Slot | None]:
    found = f"""
        SELECT id, rate_key, started_at FROM job_runs
        WHERE {d.among("id")} AND locked_by = :token AND rate_key IS NOT NULL
    """
    given = {"ids": d.many(tasks), "token": token}
    rows = {row.id: row for row in connection.execute(text(found), given)}
    keys = {row.rate_key for row in rows.values()}
    known = _locked(connection, d, keys)
    slots: dict[int, Slot | None] = {}
    times = dict(known)
    last: dict[str, Rate] = {}
    for run_id in (each for each in tasks if each in rows):
        key, rate = rows[run_id].rate_key, rates[tasks[run_id]]
        after = rate.slot(times.get(key), stored_time(rows[run_id].started_at))
        slots[run_id] = None if after is None else Slot(key, after - rate.period, after)
        if after is not None:
            times[key], last[key] = after, rate
    written = _write(connection, d, known, {key: (times[key], last[key]) for key in last})
    return {
        run_id: slot if slot is not None and slot.key in written else None
        for run_id, slot in slots.items()
    }


def _locked(connection: Connection, d: Dialect, keys: Collection[str]) -> dict[str, datetime]:
    """Lock the rows of *keys* that there are and nobody else has locked; return their times."""
    statement = f"SELECT key, tat FROM job_rates WHERE {d.one_of('key', 'keys')} {d.skip_locked}"
    rows = connection.execute(text(statement), {"keys": d.array(tuple(keys))})
    return {row.key: stored_time(row.tat) for row in rows}


def _write(
    connection: Connection,
    d: Dialect,
    known: Collection[str],
    times: Mapping[str, tuple[datetime, Rate]],
) -> set[str]:
    """Write *times* to the rows of keys; return those that were written.

    :param known: the keys whose rows are locked. Of the others, those with a row are somebody's.
    """
    columns = {"tat": "timestamptz", "period": "double precision", "burst": "integer"}
    rows = [
        {
            "key": key,
            "tat": d.instant(tat),
            "period": rate.period.total_seconds(),
            "burst": rate.burst,
        }
        for key, (tat, rate) in times.items()
    ]
    given = f"WITH given AS MATERIALIZED {d.table('rows', key='text', **columns)}"
    update = f"""
        {given} UPDATE job_rates SET {", ".join(f"{name} = given.{name}" for name in columns)}
        FROM given WHERE {d.any_of("job_rates.key", "SELECT key FROM given")}
            AND job_rates.key = given.key
        RETURNING job_rates.key AS key
    """
    insert = f"""
        {given} INSERT INTO job_rates (key, {", ".join(columns)})
        SELECT key, {", ".join(columns)} FROM given WHERE true
        ON CONFLICT (key) DO NOTHING RETURNING key
    """
    written: set[str] = set()
    for statement, some in (
        (update, [row for row in rows if row["key"] in known]),
        (insert, [row for row in rows if row["key"] not in known]),
    ):
        if some:
            found = connection.execute(text(statement), {"rows": json.dumps(some)})
            written |= {row.key for row in found}
    return written


def give_back(books: Bookkeeping, slots: Iterable[Slot]) -> None:
    """Give *slots* back whose attempts have not begun, as far as nobody has taken a later one."""
    d = books.dialect
    is_last = f"(tat = {_time(d, 'after')}) IS TRUE"
    last = f"SELECT id FROM job_rates WHERE key = :key AND {is_last} {d.skip_locked}"
    statement = text(
        f"UPDATE job_rates SET tat = {_time(d, 'before')} WHERE {d.any_of('id', last)} RETURNING id"
    )
    for slot in sorted(slots, key=lambda slot: slot.after, reverse=True):
        times = {"before": d.instant(slot.before), "after": d.instant(slot.after)}
        books.rows(statement, {"key": slot.key, **times})


def _time(d: Dialect, name: str) -> str:
    return d.typed(f":{name}", "timestamptz")


def hold_back(books: Bookkeeping, run_id: int, rate: Rate, seconds: float) -> None:
    """Let nothing of the rate key of a run begin for so many *seconds*."""
    d = books.dialect
    statement = f"SELECT rate_key, {d.now} AS now FROM job_runs WHERE id = :id AND rate_key <> ''"
    for row in books.rows(text(statement), {"id": run_id}):
        tat = rate.held_until(stored_time(row.now) + timedelta(seconds=seconds))
        given = {
            "key": row.rate_key,
            "tat": d.instant(tat),
            "period": rate.period.total_seconds(),
            "burst": rate.burst,
        }
        books.rows(_hold(d), given)


@lru_cache(maxsize=2)
def _hold(d: Dialect) -> TextClause:
    return text(f"""
    INSERT INTO job_rates (key, tat, period, burst)
    VALUES (:key, {_time(d, "tat")}, :period, :burst)
    ON CONFLICT (key) DO UPDATE SET tat = {d.latest("job_rates.tat", "excluded.tat")},
        period = excluded.period, burst = excluded.burst
    RETURNING id
    """)


#: For how long a key that nothing uses keeps its row, in seconds.
KEPT = 86_400


def mend(books: Bookkeeping, tasks: Collection[str], rates: Collection[str]) -> None:
    """Let runs begin whose task has no rate any more, and forget keys that nothing uses.

    :param tasks: the tasks that the code has; and those with a rate.
    """
    d = books.dialect
    groups = _look(books, ClaimRequest(1, "", tuple(tasks)), _BEFORE_ALL)
    without = [
        (each, 0) for each in groups if each.job_type in tasks and each.job_type not in rates
    ]
    if without:
        books.rows(_forget_rates(d), {"groups": _json(without), "most": _READY})
    # Locked, so that nobody takes a slot of it at the same time.
    old = f"SELECT id FROM job_rates WHERE tat < {d.later(str(-KEPT))} ORDER BY tat LIMIT {CHUNK}"
    unused = d.any_of("id", f"{old} {d.skip_locked.replace('NO KEY ', '')}")
    books.rows(text(f"DELETE FROM job_rates WHERE {unused} RETURNING id"))


@lru_cache(maxsize=2)
def _forget_rates(d: Dialect) -> TextClause:
    return text(f"""
    WITH given AS MATERIALIZED {_given(d)},
    chosen AS MATERIALIZED (SELECT r.id FROM given {_of_group(d, "r", "")})
    UPDATE job_runs SET rate_key = NULL, rate_mark = NULL
    WHERE {d.any_of("id", _free_of(d, "chosen"))} RETURNING id
    """)
