"""What the reports hand out: frozen values, ready for a page, a terminal or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from ..types import Status
from .words import plural

#: ``ok``; ``never``: no tick has ever been seen; ``late``: the last one is too long ago;
#: ``overdue``: ticks come, but runnable work is older than it should be.
HealthWord: TypeAlias = Literal["ok", "never", "late", "overdue"]


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a cap.

    :ivar capped: there are more; as text it reads ``1,000+``.
    """

    value: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.value:,}{'+' if self.capped else ''}"

    def of(self, noun: str) -> str:
        """``1 run``, ``2 runs``, ``1,000+ runs``."""
        return f"{self} {noun}s" if self.capped else plural(self.value, noun)

    def __bool__(self) -> bool:
        return self.value > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all is well, in one word and one sentence.

    :ivar word: the health word.
    :ivar sentence: the same for people, such as "Last tick 12 s ago from web-1".
    :ivar last_tick_at: when a tick was last seen alive.
    :ivar age: seconds since then.
    :ivar oldest: seconds for which the oldest runnable run has been due.
    :ivar now: the database's now, when this was read.
    """

    word: HealthWord
    sentence: str
    now: datetime
    last_tick_at: datetime | None = None
    age: float | None = None
    host: str | None = None
    worker: str | None = None
    oldest: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the word is ``ok``."""
        return self.word == "ok"


@dataclass(frozen=True, slots=True)
class Figures:
    """The four figures of the overview.

    :ivar overdue: runnable runs that have been due for longer than ``CRONJOBS_HEALTH_OVERDUE``,
        without those that wait for a full concurrency key.
    :ivar oldest: seconds for which the oldest runnable run has been due; None if none is.
    :ivar stale: running runs whose lease ran out.
    :ivar dead: runs that ended dead in the last 24 hours.
    """

    overdue: Count
    oldest: float | None
    running: Count
    stale: Count
    dead: Count


@dataclass(frozen=True, slots=True)
class Cell:
    """One of the last outcomes of a definition.

    :ivar seconds: how long its last attempt took, where it ran and ended.
    """

    run_id: int
    status: Status
    scheduled_for: datetime
    seconds: float | None
    error_type: str | None


@dataclass(frozen=True, slots=True)
class DefinitionView:
    """A definition, and how its runs have been doing.

    :ivar origin: ``code`` or ``database``.
    :ivar cells: its last ten runs, oldest first.
    :ivar last_seconds: how long the newest of them that ran to an end took.
    :ivar next_slots: the next three slots, in the definition's zone; none while it is paused.
    :ivar broken: why its schedule cannot be read, if it cannot.
    :ivar orphaned: this app declares no task by its ``task`` name.
    :ivar undeclared: it came from code, and this app's code does not declare it any more.
    """

    id: int
    name: str
    task: str
    schedule: str
    timezone: str
    queue: str
    priority: int
    catchup: str
    overlap: str
    origin: str
    paused_at: datetime | None
    next_run_at: datetime | None
    cells: tuple[Cell, ...]
    last_seconds: float | None
    next_slots: tuple[datetime, ...]
    broken: str | None
    orphaned: bool
    undeclared: bool


@dataclass(frozen=True, slots=True)
class DefinitionPage:
    """Some definitions in the order of their names, and where to go on (``after``), if there."""

    rows: tuple[DefinitionView, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead runs of one task that ended with one type of error.

    :ivar count: capped, since no more than the newest dead runs are looked through.
    :ivar newest: when the latest of them ended.
    :ivar sample_id: the id of the latest.
    """

    task: str
    error_type: str | None
    count: Count
    newest: datetime
    sample_id: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """A task name in waiting runs that this app's code does not declare."""

    task: str
    count: Count
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Bucket:
    """What the ticks that started in one hour did.

    :ivar start: the hour's beginning, in UTC.
    """

    start: datetime
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class EffectView:
    """The mark of one effect.

    :ivar state: ``begun``, ``done`` or ``in_doubt``; the last also if it was begun and its owner is
        gone.
    """

    id: int
    key: str
    state: str
    run_id: int | None
    worker: str | None
    created_at: datetime
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class TickView:
    """One tick: who, when, what it did."""

    id: int
    worker: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    finished_at: datetime | None
    clock_offset: float | None
    recorded: int
    skipped: int
    reclaimed: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    released: int
    lost: int
    pruned: int


@dataclass(frozen=True, slots=True)
class Overview:
    """All that the first page says, read over one connection."""

    verdict: Verdict
    figures: Figures
    definitions: DefinitionPage
    dead: tuple[DeadGroup, ...]
    orphans: tuple[Orphan, ...]
    activity: tuple[Bucket, ...]
    doubts: Count
