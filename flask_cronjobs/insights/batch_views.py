"""Batches and their progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Row, select, text

from ..features.batches.batch_rows import members_of, numbers_of
from ..models.conditions import OPEN_BATCH
from ..text.humanize import Fact, Link, known
from ..types import TERMINAL, BatchCounts
from .reader import BATCHES, Page, Query, Reader, Source, page_of, reading, record

BatchState: TypeAlias = Literal["open", "running", "finished"]
#: Columns that lists do not read, since values edited by hand may be unreadable.
_UNREAD = ("then_payload", "then_columns")


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch with its counts.

    :ivar counts: the numbers of its runs by outcome. They are counted from the runs' rows until the
        batch has ended, and stay fixed afterwards.
    :ivar waiting: the number of runs that wait, including those that wait for a retry.
    """

    id: int
    key: str
    then_task: str | None
    then_run_id: int | None
    opened_at: datetime
    closed_at: datetime | None
    finished_at: datetime | None
    counts: BatchCounts
    waiting: int
    running: int

    @property
    def state(self) -> BatchState:
        """``open`` while it can be filled, ``running`` while runs are live, then ``finished``."""
        if self.finished_at is not None:
            return "finished"
        return "open" if self.closed_at is None else "running"

    @property
    def progress(self) -> str:
        """The number of runs that have ended, such as ``15 of 18``."""
        return f"{self.counts.ended:,} of {self.counts.total:,}"


def batch_facts(batch: BatchView) -> list[Fact]:
    """Return the facts about *batch* on its page and in ``batches KEY``, in this order."""
    then = f"{batch.then_task}, run {batch.then_run_id}" if batch.then_run_id else batch.then_task
    run = ("run", {"run_id": batch.then_run_id}) if batch.then_run_id else None
    return known(
        *_members_of(batch),
        Fact("then", then, link=run),
        Fact("opened", batch.opened_at, batch.opened_at),
        Fact("closed", batch.closed_at, batch.closed_at),
        Fact("finished", batch.finished_at, batch.finished_at),
    )


def _members_of(batch: BatchView) -> Iterator[Fact]:
    """Yield the number of runs of each kind."""
    live = {"waiting": batch.waiting, "running": batch.running}
    for name, number in ({name: getattr(batch.counts, name) for name in TERMINAL} | live).items():
        status = "queued" if name == "waiting" else name
        if number or name in ("succeeded", "dead"):
            link: Link = ("runs", {"batch": batch.key, "status": status})
            yield Fact(name, number, link=link)


def list_batches(
    source: Source, *, unfinished: bool = False, before: int | None = None, limit: int = 25
) -> Page[BatchView]:
    """Return batches, newest first.

    :param unfinished: leave out batches that have finished.
    :param before: return only smaller ids, for paging.
    """
    conditions: list[ColumnElement[bool]] = [] if not unfinished else [text(OPEN_BATCH)]  # type: ignore[list-item]
    if before is not None:
        conditions.append(BATCHES.c.id < before)
    with reading(source) as reader:
        return page_of(reader, _rows(*conditions), limit, partial(_views, reader))


def find_batch(source: Source, id_or_key: int | str) -> BatchView | None:
    """Return the batch with an id or a key; None if there is none."""
    column = BATCHES.c.id if isinstance(id_or_key, int) else BATCHES.c.key
    with reading(source) as reader:
        return next(iter(_views(reader, reader.rows(_rows(column == id_or_key)))), None)


def _rows(*conditions: ColumnElement[bool]) -> Query:
    columns = (column for column in BATCHES.c if column.name not in _UNREAD)
    return select(*columns).where(*conditions).order_by(BATCHES.c.id.desc())


def _views(reader: Reader, rows: Sequence[Row[Any]]) -> list[BatchView]:
    unended = [row.id for row in rows if row.finished_at is None]
    live = members_of(reader.connection.execute, reader.dialect, unended)
    return [_view(row, live.get(row.id)) for row in rows]


def _view(row: Row[Any], live: Counter[str] | None) -> BatchView:
    """Return the batch of a row.

    :param live: the numbers of its runs by status; None if the batch has ended.
    """
    members = live if live is not None else Counter[str]()
    numbers = numbers_of(members) if live is not None else _stored(row)
    return record(
        BatchView,
        row,
        counts=BatchCounts(key=row.key, finished=live is None, **numbers),
        waiting=members["queued"] + members["failed"],
        running=members["running"],
    )


def _stored(row: Row[Any]) -> dict[str, int]:
    """Return the counts that are stored in the row of an ended batch."""
    return {name: getattr(row, name) or 0 for name in ("total", *TERMINAL)}
