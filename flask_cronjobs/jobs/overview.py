"""The first page, read over one connection; the page of what a text names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, func, select

from .backlog import count_waiting, waiting_groups
from .definitions.needs import DEAD_LOOKED_AT, latest_dead
from .definitions.views import DefinitionList, list_definitions
from .health import Figures, Finding, Verdict, findings_of, read_verdict_and_figures
from .humanize import Link
from .reader import BATCHES, DEFINITIONS, RUNS, Count, Reader, Source, reading, record
from .runs.rows import ERROR_SHOWN, first_line
from .runs.search import named
from .ticks import Bucket, read_activity

#: How many definitions the first page shows.
DEFINITIONS_SHOWN = 12
_GROUPS = 50
_A_DAY = timedelta(days=1)
_GROUPED = ("job_type", "error_type", "fingerprint")


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead runs that ended with errors of one group: of one task and type.

    :ivar fingerprint: of the group, as on the page of errors; None if an older version recorded it.

    :ivar count: capped, since only the newest dead runs are read.
    :ivar today: how many of them died within 24 hours.
    :ivar newest: when the latest of them ended.
    :ivar sample_id: the id of the latest.
    :ivar message: the first line of its error.
    """

    task: str
    error_type: str | None
    fingerprint: str | None
    count: Count
    today: int
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
    """What the first page shows.

    :ivar dead_groups: how many groups there are, of which *dead* are 50 at most.
    :ivar orphan_tasks: likewise, how many tasks.
    :ivar findings: what needs a person, the most urgent first.
    """

    verdict: Verdict
    figures: Figures
    definitions: DefinitionList
    dead: tuple[DeadGroup, ...]
    dead_groups: Count
    orphans: tuple[Orphan, ...]
    orphan_tasks: Count
    activity: tuple[Bucket, ...]
    doubts: Count
    findings: tuple[Finding, ...]


def read_overview(source: Source) -> Overview:
    """Return what the first page shows, of the definitions those first that need a person."""
    with reading(source) as reader:
        verdict, figures = read_verdict_and_figures(reader)
        dead, groups = dead_groups(reader)
        orphans, tasks = list_orphans(reader)
        return Overview(
            verdict=verdict,
            figures=figures,
            definitions=list_definitions(reader, limit=DEFINITIONS_SHOWN),
            dead=dead,
            dead_groups=groups,
            orphans=orphans,
            orphan_tasks=tasks,
            activity=read_activity(reader),
            doubts=figures.doubts,
            findings=tuple(findings_of(verdict, figures)),
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
                func.count(case((newest.c.finished_at >= reader.now - _A_DAY, 1))).label("today"),
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
    full = sum(row.number for row in rows) >= DEAD_LOOKED_AT
    shown = tuple(
        record(DeadGroup, row, count=Count(row.number, full), message=first_line(row.message))
        for row in rows
    )
    return shown, Count(rows[0].groups if rows else 0, full)


def list_orphans(source: Source) -> tuple[tuple[Orphan, ...], Count]:
    """Return the tasks of waiting runs that this app's code does not declare; how many there are.

    Of more than 50, those whose runs have waited longest are returned.
    """
    with reading(source) as reader:
        groups, declared = waiting_groups(reader), reader.state.registry.tasks
        oldest: dict[str, datetime] = {}
        for group in groups:
            if group.task not in declared:
                oldest[group.task] = min(group.oldest, oldest.get(group.task, group.oldest))
        tasks = sorted(oldest, key=lambda task: (oldest[task], task))[:_GROUPS]
        numbers = count_waiting(reader, [each for each in groups if each.task in tasks], "task")
    shown = tuple(Orphan(task, numbers[task][0], oldest[task]) for task in tasks)
    return shown, Count(len(oldest))


def find_place(source: Source, name: str) -> Link:
    """Return the page of what *name* names; else that of the runs in which it is found.

    In this order: the id or a key of a run, the key of a batch, the name of a definition, of a task
    that the code declares, of a queue.
    """
    name = name.strip()
    with reading(source) as reader:
        runs = named(reader, name)
        if runs and (len(runs) == 1 or str(runs[0]) == name.removeprefix("#")):
            return "run", {"run_id": runs[0]}
        if _has(reader, BATCHES.c.key, name):
            return "batch", {"key": name}
        if _has(reader, DEFINITIONS.c.name, name):
            return "definition", {"name": name}
        if name in reader.state.registry.tasks:
            return "task", {"name": name}
        if name in reader.state.queues:
            return "runs", {"queue": name}
    return "runs", {"q": name}


def _has(reader: Reader, column: Any, name: str) -> bool:
    return bool(reader.rows(select(column).where(column == name).limit(1)))
