"""Read what the first page shows over one connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from .health import Verdict, read_verdict
from .reader import RUNS, Count, Reader, Source, reading, record
from .run_rows import ERROR_SHOWN, first_line
from .schedule_needs import DEAD_ROWS_READ, latest_dead
from .schedule_views import DefinitionList, Sort, list_definitions
from .tick_views import Bucket, read_activity

#: The maximum number of definitions that the first page shows.
DEFINITIONS_SHOWN = 12
_GROUPS = 50
#: The maximum number of labels of a group that are shown.
LABELS = 5
_GROUPED = ("job_type", "error_type", "fingerprint")


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead runs of one task whose errors belong to one group.

    :ivar fingerprint: the fingerprint of the error; None if an older version recorded it.
    :ivar count: the number of runs, capped, since only the newest dead runs are read.
    :ivar oldest: the time at which the first run died.
    :ivar newest: the time at which the latest run died.
    :ivar sample_id: the id of the latest run.
    :ivar message: the first line of the latest run's error.
    :ivar labels: the labels of the latest runs.
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
    """The contents of the first page.

    :ivar dead_groups: the number of groups of dead runs; *dead* has at most 50 of them.
    """

    verdict: Verdict
    definitions: DefinitionList
    dead: tuple[DeadGroup, ...]
    dead_groups: Count
    activity: tuple[Bucket, ...]


def read_overview(
    source: Source, sort: Sort = "need", page: int = 1, limit: int = DEFINITIONS_SHOWN
) -> Overview:
    """Return the contents of the first page.

    :param sort: the order of the definitions.
    :param page: the page of the definitions, from 1.
    :param limit: the maximum number of definitions to return.
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
    """Return dead runs by task and error group, newest group first, and the number of groups.

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
    full = sum(row.number for row in rows) >= DEAD_ROWS_READ
    views = tuple(
        record(
            DeadGroup,
            row,
            count=Count(row.number, full),
            message=first_line(row.message),
            labels=tuple(labels.get((row.task, row.error_type, row.fingerprint), ())),
        )
        for row in rows
    )
    return views, Count(rows[0].groups if rows else 0, full)


def _labels(reader: Reader) -> dict[tuple[Any, ...], list[str]]:
    """Return the distinct labels of the latest dead runs of each group, latest first."""
    dead = latest_dead()
    group_columns = [dead.c[name] for name in _GROUPED]
    latest = func.max(dead.c.finished_at)
    at = func.row_number().over(partition_by=group_columns, order_by=latest.desc()).label("at")
    group_labels = (
        select(*group_columns, dead.c.label, at)
        .where(dead.c.label.is_not(None))
        .group_by(*group_columns, dead.c.label)
    ).subquery()
    labels_by_group: dict[tuple[Any, ...], list[str]] = {}
    for row in reader.rows(
        select(group_labels).where(group_labels.c.at <= LABELS).order_by(group_labels.c.at)
    ):
        group = tuple(getattr(row, name) for name in _GROUPED)
        labels_by_group.setdefault(group, []).append(row.label)
    return labels_by_group
