"""Batches, and how far they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Row, select, text

from ...models.conditions import IN_BATCH, OPEN_BATCH
from ...types import TERMINAL, BatchCounts
from ..humanize import Fact, Link, duration, known, plural, seconds_since
from ..reader import BATCHES, Page, Query, Reader, Source, page_of, readable, reading, record
from ..runs.rows import rows_of
from ..runs.wait_reasons import FOR_OTHERS, TIMED, waits_of
from .rows import Inside, all_members, counts_of, inside_of

BatchState: TypeAlias = Literal["open", "running", "stopped", "finished"]
#: How many batches inside in which a member died are named.
_DEAD_NAMED = 3


class Held(NamedTuple):
    """A member for which a batch waits.

    :ivar what: for what it waits, as the end of "It waits".
    :ivar until: until when; None if nobody knows.
    """

    run_id: int
    what: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch.

    :ivar parent: the key of the batch around it.
    :ivar counts: its members by how they ended, counted from their rows.
    :ivar waiting: the runs that wait, also for a retry.
    :ivar inside: the batches inside it that have not ended.
    :ivar dead_inside: the keys of batches inside it in which a member died, three at most.
    :ivar dead_runs: how many of its dead members are runs.
    :ivar whole: its members and those of the batches inside it, at any depth, by status; a batch
        that has not ended is ``open``.
    :ivar held: of its runs that are due first and last, those that do not wait for other runs.
    """

    id: int
    key: str
    parent: str | None
    on_dead: str
    then_task: str | None
    then_run_id: int | None
    opened_at: datetime
    closed_at: datetime | None
    finished_at: datetime | None
    counts: BatchCounts
    waiting: int
    running: int
    inside: int
    dead_runs: int
    dead_inside: tuple[str, ...]
    whole: Counter[str] = field(default_factory=Counter[str])
    held: Sequence[Held] = ()

    @property
    def state(self) -> BatchState:
        """``open``: it can be filled. ``stopped``: it is not, a member died, and what waits is
        cancelled. ``running``: members are live. ``finished``: all have ended."""
        if self.finished_at is not None:
            return "finished"
        if self.on_dead == "stop" and self.counts.dead:
            return "stopped"
        return "open" if self.closed_at is None else "running"

    @property
    def fraction(self) -> float:
        """Which part has ended of its members, and of those of batches inside, from 0 to 1."""
        total = self.whole.total()
        return self.ended / total if total else float(self.counts.finished)

    @property
    def ended(self) -> int:
        """How many members have ended, with those of batches inside."""
        return sum(self.whole[name] for name in TERMINAL)

    @property
    def segments(self) -> list[tuple[str, float, float]]:
        """The parts of its bar: what each is of, where it begins, and its width, from 0 to 1."""
        total, begins, found = self.whole.total(), 0.0, list[tuple[str, float, float]]()
        for name in (*TERMINAL, "running"):
            if width := self.whole[name] / (total or 1):
                found.append((name, begins, width))
                begins += width
        return found

    @property
    def progress(self) -> str:
        """How many members have ended, with those of batches inside: ``15 of 18``."""
        return f"{self.ended:,} of {self.whole.total():,}"

    def left(self, now: datetime) -> str | None:
        """Return how long it takes at the pace so far, if it is closed and that may be true."""
        if self.state != "running" or not self.ended or self.waits_for(now) is not None:
            return None
        return f"about {duration(self._left(now))}"

    def waits_for(self, now: datetime) -> Held | None:
        """Return a member that keeps it for longer than it takes at the pace so far."""
        if self.state != "running":
            return None
        pace = now + timedelta(seconds=self._left(now))
        longer = (each for each in self.held if each.until is None or each.until > pace)
        return next(longer, None)

    def _left(self, now: datetime) -> float:
        since = max(0.0, seconds_since(self.opened_at, now))
        return since * (1 - self.fraction) / self.fraction if self.ended else 0.0

    @property
    def stop(self) -> str | None:
        """What a death did to it, if that stops it."""
        if self.on_dead != "stop" or not self.counts.dead:
            return None
        if self.finished_at is None:
            return "A member died, so what waits is cancelled."
        cancelled = self.counts.cancelled
        what = f": {plural(cancelled, 'other')} ended cancelled" if cancelled else ""
        return f"A member died, so it was stopped{what}."


def batch_facts(batch: BatchView, now: datetime) -> list[Fact]:
    """Return what the page of *batch* and the command ``batches KEY`` say of it, in this order."""
    then = f"{batch.then_task}, run {batch.then_run_id}" if batch.then_run_id else batch.then_task
    run = ("run", {"run_id": batch.then_run_id}) if batch.then_run_id else None
    left, own, held = batch.left(now), batch.counts, batch.waits_for(now)
    holder: Link | None = ("run", {"run_id": held.run_id}) if held else None
    has_inside = batch.whole.total() > own.total
    others = {"continue": "the others go on", "stop": "what waits is cancelled"}
    return known(
        Fact("own runs ended", f"{own.ended:,} of {own.total:,}" if has_inside else None),
        *_members_of(batch),
        Fact("batches inside", batch.inside or None),
        Fact("left", left and f"{left}, at the pace so far"),
        Fact("waits for", held and f"run {held.run_id}, which waits {held.what}", link=holder),
        Fact("inside of", batch.parent, link=("batch", {"key": batch.parent})),
        Fact("then", then, link=run),
        Fact("when one dies", others.get(batch.on_dead, batch.on_dead)),
        Fact("opened", batch.opened_at, batch.opened_at),
        Fact("closed", batch.closed_at, batch.closed_at),
        Fact("finished", batch.finished_at, batch.finished_at),
    )


def _members_of(batch: BatchView) -> Iterator[Fact]:
    """Yield how many members there are of each kind."""
    live = {"waiting": batch.waiting, "running": batch.running}
    for name, number in ({name: getattr(batch.counts, name) for name in TERMINAL} | live).items():
        status = "queued" if name == "waiting" else name
        is_empty = name == "dead" and not batch.dead_runs
        if number or name in ("succeeded", "dead"):
            link: Link = ("runs", {"batch": batch.key, "status": status})
            yield Fact(name, number, link=None if is_empty else link)
    for key in batch.dead_inside:
        yield Fact("a member died in", key, link=("batch", {"key": key}))


def list_batches(
    source: Source, *, unfinished: bool = False, before: int | None = None, limit: int = 25
) -> Page[BatchView]:
    """Return batches, newest first.

    :param unfinished: leave out those that have finished.
    :param before: only smaller ids, for paging.
    """
    conditions: list[ColumnElement[bool]] = [] if not unfinished else [text(OPEN_BATCH)]  # type: ignore[list-item]
    if before is not None:
        conditions.append(BATCHES.c.id < before)
    with reading(source) as reader:
        return page_of(reader, _rows(reader, *conditions), limit, partial(_views, reader))


def find_batch(source: Source, which: int | str) -> BatchView | None:
    """Return one batch by its id or its key; None if there is none."""
    column = BATCHES.c.id if isinstance(which, int) else BATCHES.c.key
    with reading(source) as reader:
        return next(iter(_views(reader, reader.rows(_rows(reader, column == which)))), None)


def find_counts(source: Source, key: str) -> BatchCounts | None:
    """Return how far a batch is, for code that asks often; None if there is none."""
    with reading(source) as reader:
        rows = reader.rows(_rows(reader, BATCHES.c.key == key))
        members = all_members(reader.connection.execute, reader.dialect, rows)
        return next((counts_of(row, members[row.id]) for row in rows), None)


def _rows(reader: Reader, *conditions: ColumnElement[bool]) -> Query:
    outer = BATCHES.alias("outer_batch")
    parent = select(outer.c.key).where(outer.c.id == BATCHES.c.parent_id).scalar_subquery()
    columns = (readable(reader, column) for column in BATCHES.c)
    rows = select(*columns, parent.label("parent")).where(*conditions)
    return rows.order_by(BATCHES.c.id.desc())


def _views(reader: Reader, rows: Sequence[Row[Any]]) -> list[BatchView]:
    execute, d = reader.connection.execute, reader.dialect
    members = all_members(execute, d, rows)
    inside = inside_of(execute, d, [row.id for row in rows])
    held = _held_in(reader, [row.id for row in rows if row.closed_at and not row.finished_at])
    return [_view(row, members[row.id], inside[row.id], held.get(row.id, ())) for row in rows]


def _held_in(reader: Reader, ids: Sequence[int]) -> Mapping[int, Sequence[Held]]:
    """Return the `BatchView.held` of the batches *ids*."""
    ends = (
        f"(SELECT id FROM job_runs WHERE batch_id = b.id AND status = '{status}' AND {IN_BATCH}"
        f" ORDER BY run_at {way}, id {way} LIMIT 1)"
        for status in ("queued", "failed")
        for way in ("ASC", "DESC")
    )
    d, which = reader.dialect, f"FROM job_batches b WHERE {reader.dialect.among('b.id')}"
    statement = text(f"SELECT b.id, {', '.join(ends)} {which}")
    found: Sequence[Any] = reader.connection.execute(statement, {"ids": d.many(ids)}).all()
    runs = rows_of(reader, [run for row in found for run in row[1:] if run is not None])
    waits, due = waits_of(reader, runs), {run.id: run.run_at for run in runs}
    return {
        row[0]: [
            Held(run, wait.what, due[run] if wait.kind in TIMED else None)
            for run in row[1:]
            for wait in waits.get(run, ())
            if wait.kind not in FOR_OTHERS
        ]
        for row in found
    }


def _view(row: Row[Any], members: Counter[str], inside: Inside, held: Sequence[Held]) -> BatchView:
    return record(
        BatchView,
        row,
        counts=counts_of(row, members),
        whole=members + inside.members,
        dead_runs=max(0, members["dead"] - len(inside.dead)),
        dead_inside=tuple(inside.dead[:_DEAD_NAMED]),
        waiting=members["queued"] + members["failed"],
        running=members["running"],
        inside=members["open"],
        held=held,
    )
