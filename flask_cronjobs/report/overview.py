"""The overview, read over one connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text, union_all

from ..models.conditions import DEAD, FREE, KEYED
from .activity import Bucket, activity
from .counts import Count
from .definition_list import DefinitionList, find_definitions
from .effects import doubts
from .health import Figures, Verdict, verdict_and_figures
from .reader import RUNS, Source, reading
from .run_list import ERROR_SHOWN, first_line

#: How many dead runs, newest first, `dead_groups` reads.
DEAD_LOOKED_AT = 10_000
#: How many waiting runs `orphans` reads.
WAITING_LOOKED_AT = 100_000
#: How many definitions the first page shows.
DEFINITIONS_SHOWN = 25
_GROUPS = 50
_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead runs of one task that ended with one type of error.

    :ivar count: capped, since only the newest dead runs are read.
    :ivar newest: when the latest of them ended.
    :ivar sample_id: the id of the latest.
    :ivar message: the first line of its error.
    """

    task: str
    error_type: str | None
    count: Count
    newest: datetime
    sample_id: int
    message: str | None


@dataclass(frozen=True, slots=True)
class Orphan:
    """A task of waiting runs that this app's code does not declare."""

    task: str
    count: Count
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Overview:
    """What the first page shows."""

    verdict: Verdict
    figures: Figures
    definitions: DefinitionList
    dead: tuple[DeadGroup, ...]
    orphans: tuple[Orphan, ...]
    activity: tuple[Bucket, ...]
    doubts: Count


def overview(source: Source) -> Overview:
    """Return what the first page shows, of the definitions those first that need a person."""
    with reading(source) as reader:
        verdict, figures = verdict_and_figures(reader)
        return Overview(
            verdict=verdict,
            figures=figures,
            definitions=find_definitions(reader, figures.missed, limit=DEFINITIONS_SHOWN),
            dead=dead_groups(reader),
            orphans=orphans(reader),
            activity=activity(reader),
            doubts=doubts(reader),
        )


def dead_groups(source: Source) -> tuple[DeadGroup, ...]:
    """Return dead runs by task and type of error, newest group first; at most 50 groups."""
    with reading(source) as reader:
        newest = (
            select(RUNS.c.id, RUNS.c.job_type, RUNS.c.error_type, RUNS.c.finished_at)
            .where(text(DEAD))
            .order_by(RUNS.c.finished_at.desc())
            .limit(DEAD_LOOKED_AT)
            .subquery()
        )
        groups = (
            select(
                newest.c.job_type,
                newest.c.error_type,
                func.count().label("number"),
                func.max(newest.c.finished_at).label("newest"),
                func.max(newest.c.id).label("sample"),
            )
            .group_by(newest.c.job_type, newest.c.error_type)
            .order_by(func.max(newest.c.finished_at).desc())
            .limit(_GROUPS)
            .subquery()
        )
        message = func.substr(RUNS.c.last_error, 1, ERROR_SHOWN).label("message")
        sampled = select(groups, message).join(RUNS, RUNS.c.id == groups.c.sample)
        rows = reader.rows(sampled.order_by(groups.c.newest.desc()))
    full = sum(row.number for row in rows) >= DEAD_LOOKED_AT
    return tuple(
        DeadGroup(
            row.job_type,
            row.error_type,
            Count(row.number, full),
            row.newest,
            row.sample,
            first_line(row.message),
        )
        for row in rows
    )


def orphans(source: Source) -> tuple[Orphan, ...]:
    """Return the tasks of waiting runs that this app's code does not declare; at most 50."""
    arms = [
        select(RUNS.c.job_type, RUNS.c.run_at).where(text(part)).limit(WAITING_LOOKED_AT)
        for part in (FREE, KEYED)
    ]
    either = union_all(*(select(arm.subquery()) for arm in arms)).subquery()
    number = func.count().label("number")
    statement = (
        select(either.c.job_type, number, func.min(either.c.run_at).label("oldest"))
        .group_by(either.c.job_type)
        .order_by(number.desc(), either.c.job_type)
        .limit(_NAMES)
    )
    with reading(source) as reader:
        # Filtered here, not in SQL: a long NOT IN would be compared with each row.
        known = reader.state.registry.tasks
        rows = [row for row in reader.rows(statement) if row.job_type not in known]
    return tuple(
        Orphan(row.job_type, Count(row.number, row.number >= WAITING_LOOKED_AT), row.oldest)
        for row in rows[:_GROUPS]
    )
