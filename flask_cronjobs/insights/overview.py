"""The first page, read over one connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from .health import Verdict, read_verdict
from .reader import RUNS, Count, Reader, Source, reading, record
from .run_rows import ERROR_SHOWN, first_line
from .schedule_needs import DEAD_LOOKED_AT, latest_dead
from .schedule_views import DefinitionList, Sort, list_definitions
from .tick_views import Bucket, read_activity

#: How many definitions the first page shows.
DEFINITIONS_SHOWN = 12
_GROUPS = 50
#: How many labels of a group are shown.
LABELS = 5
_GROUPED = ("job_type", "error_type", "fingerprint")


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead runs that ended with errors of one group: of one task and type.

    :ivar fingerprint: of the error; None if an older version recorded it.
    :ivar count: capped, since only the newest dead runs are read.
    :ivar oldest: when the first of them ended.
    :ivar newest: when the latest of them ended.
    :ivar sample_id: the id of the latest.
    :ivar message: the first line of its error.
    :ivar labels: for whom the latest of them were.
    """

    task: str
    error_type: str | None
    fingerprint: str | None
    count: Count
    oldest: datetime
    newest: datetime
    sample_id: int
    message: str | None
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """What the first page shows.

    :ivar dead_groups: how many groups there are, of which *dead* are 50 at most.
    """

    verdict: Verdict
    definitions: DefinitionList
    dead: tuple[DeadGroup, ...]
    dead_groups: Count
    activity: tuple[Bucket, ...]


def read_overview(
    source: Source, sort: Sort = "need", page: int = 1, limit: int = DEFINITIONS_SHOWN
) -> Overview:
    """Return what the first page shows.

    :param sort: in which order definitions are.
    :param page: which page of the definitions, from 1.
    :param limit: how many of them at most.
    """
    with reading(source) as reader:
        dead, groups = dead_groups(reader)
        return Overview(
            verdict=read_verdict(reader),
            definitions=list_definitions(reader, sort, page, limit),
            dead=dead,
            dead_groups=groups,
            activity=read_activity(reader),
        )


def dead_groups(source: Source) -> tuple[tuple[DeadGroup, ...], Count]:
    """Return dead runs by task and group of errors, newest group first; how many groups there are.

    At most 50 groups are returned.
    """
    with reading(source) as reader:
        newest = latest_dead()
        groups = (
            select(
                newest.c.job_type.label("task"),
                newest.c.error_type,
                newest.c.fingerprint,
                func.count().label("number"),
                func.count().over().label("groups"),
                func.min(newest.c.finished_at).label("oldest"),
                func.max(newest.c.finished_at).label("newest"),
                func.max(newest.c.id).label("sample_id"),
            )
            .group_by(*(newest.c[name] for name in _GROUPED))
            .order_by(func.max(newest.c.finished_at).desc())
            .limit(_GROUPS)
            .subquery()
        )
        message = func.substr(RUNS.c.last_error, 1, ERROR_SHOWN).label("message")
        sampled = select(groups, message).join(RUNS, RUNS.c.id == groups.c.sample_id)
        rows = reader.rows(sampled.order_by(groups.c.newest.desc()))
        labels = _labels(reader)
    full = sum(row.number for row in rows) >= DEAD_LOOKED_AT
    shown = tuple(
        record(
            DeadGroup,
            row,
            count=Count(row.number, full),
            message=first_line(row.message),
            labels=tuple(labels.get((row.task, row.error_type, row.fingerprint), ())),
        )
        for row in rows
    )
    return shown, Count(rows[0].groups if rows else 0, full)


def _labels(reader: Reader) -> dict[tuple[Any, ...], list[str]]:
    """Return the labels of the latest dead runs of each group, each once, the latest first."""
    dead = latest_dead()
    of = [dead.c[name] for name in _GROUPED]
    latest = func.max(dead.c.finished_at)
    at = func.row_number().over(partition_by=of, order_by=latest.desc()).label("at")
    each = (
        select(*of, dead.c.label, at).where(dead.c.label.is_not(None)).group_by(*of, dead.c.label)
    ).subquery()
    found: dict[tuple[Any, ...], list[str]] = {}
    for row in reader.rows(select(each).where(each.c.at <= LABELS).order_by(each.c.at)):
        group = tuple(getattr(row, name) for name in _GROUPED)
        found.setdefault(group, []).append(row.label)
    return found
