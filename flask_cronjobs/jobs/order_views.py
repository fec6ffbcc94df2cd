"""What pages and commands show of strict orders: each key, its first run, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, text

from ..models.conditions import ORDERED, STOPS
from .eligibility import PauseView, list_pauses, stopping
from .humanize import late, seconds_since, since
from .reader import CAP, RUNS, Count, Page, Reader, Source, count_of, cut_page, reading
from .runs.list import RunRow, rows_of


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """A concurrency key with a strict order.

    :ivar first: the run for which the others wait.
    :ivar waiting: how many those are.
    :ivar pauses: the pauses of the first one's task and queue.
    """

    key: str
    first: RunRow
    waiting: Count
    pauses: tuple[PauseView, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether the others wait until an operator retries or discards the first, a dead run."""
        return self.first.status == "dead"

    def why(self, now: datetime) -> str:
        """Return what the others wait for, in a few words."""
        first = self.first
        if self.stopped:
            return f"stopped by a dead run, {since(first.finished_at, now)}"
        if first.is_stale(now):
            return "the worker of the first was lost; the next tick takes the run back"
        if first.status == "running":
            return f"the first is running, begun {since(first.started_at, now)}"
        if self.pauses:
            return f"{self.pauses[0]}"
        due = late(seconds_since(first.run_at, now))
        if first.status == "failed":
            return f"the first has failed; its next attempt: {due}"
        return f"the first waits for a worker: {due}"


def list_key_orders(
    source: Source, *, stopped: bool = False, after: str = "", limit: int = 50
) -> Page[KeyOrder]:
    """Return the keys with a strict order whose runs have not all ended, by name.

    :param stopped: only those that a dead run stops.
    :param after: only keys after this one, for paging.
    """
    with reading(source) as reader:
        heads = reader.connection.execute(
            text(_heads(STOPS if stopped else ORDERED)), {"after": after, "limit": limit + 1}
        ).all()
        firsts = {row.id: row for row in rows_of(reader, [head.first for head in heads])}
        paused = list_pauses(reader)
        found = [
            KeyOrder(
                *(head.key, first, count_of(head.members - 1)),
                stopping(paused, first.task, first.queue),
            )
            for head in heads
            if (first := firsts.get(head.first)) is not None
        ]
        return cut_page(found, limit, reader.now, by="key")


def before_it(reader: Reader, run_id: int) -> Row[Any] | None:
    """Return the run of its key that must end before *run_id* may begin: its id and its status.

    A dead one that stops the key counts. None if there is none.
    """
    own = select(RUNS.c.concurrency_key).where(RUNS.c.id == run_id).scalar_subquery()
    # In ranges, so that PostgreSQL goes along the index of the key.
    key = RUNS.c.concurrency_key
    first = (
        select(RUNS.c.id, RUNS.c.status)
        .where(text(ORDERED), key >= own, key <= own, RUNS.c.id < run_id)
        .order_by(key, RUNS.c.id)
        .limit(1)
    )
    rows = reader.rows(first)
    return rows[0] if rows else None


def _heads(which: str) -> str:
    """Return the SELECT of keys, the first run of each, and how many runs it has, up to a cap.

    It goes from key to key, at one step each.

    :param which: the condition of an index: keys with such runs are meant.
    """
    later = f"SELECT concurrency_key FROM job_runs WHERE {which} AND concurrency_key > {{}}"
    step = f"({later} ORDER BY concurrency_key LIMIT 1)"
    this = "concurrency_key >= hop.key AND concurrency_key <= hop.key"
    of_key = f"FROM job_runs WHERE {ORDERED} AND {this} ORDER BY concurrency_key, id"
    return f"""
    WITH RECURSIVE hop(key, place) AS (
        SELECT {step.format("CAST(:after AS text)")}, 1
        UNION ALL
        SELECT {step.format("hop.key")}, hop.place + 1 FROM hop
        WHERE hop.key IS NOT NULL AND hop.place < :limit
    )
    SELECT hop.key, (SELECT id {of_key} LIMIT 1) AS first,
        (SELECT count(*) FROM (SELECT id {of_key} LIMIT {CAP + 2}) AS counted) AS members
    FROM hop WHERE hop.key IS NOT NULL ORDER BY hop.key
    """
