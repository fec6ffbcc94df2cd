"""Queues with their waiting runs and the hosts that serve them, and the hosts that tick."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Row, String, cast, func, select

from ..text.humanize import since
from .backlog import Backlog, count_waiting, unpaused_groups, waiting_groups
from .pauses import PauseView, is_declared, list_pauses
from .reader import TICKS, Count, Page, Reader, Source, read_once, reading

#: The maximum number of hosts that `QueueView.service` names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with its backlog.

    :ivar waiting: the number of waiting runs.
    :ivar due: the number of due runs, capped if more wait than are counted.
    :ivar oldest: the due time of the first due run; None if none is due.
    :ivar hosts: the hosts that serve the queue.
    :ivar executor: the executor that serves it instead.
    :ivar pause: the queue's pause, if it is paused.
    """

    name: str
    waiting: Count
    due: Count
    oldest: datetime | None
    hosts: tuple[str, ...]
    executor: str | None
    pause: PauseView | None

    def service(self, now: datetime) -> str:
        """Return the hosts that serve it, such as ``web-1, web-2``, or why none does."""
        if self.pause is not None:
            by = f" by {self.pause.paused_by}" if self.pause.paused_by else ""
            return f"paused{by} {since(self.pause.paused_at, now)}"
        more = len(self.hosts) - _NAMED
        hosts = ", ".join(self.hosts[:_NAMED])
        return self.executor or (f"{hosts} and {more} more" if more > 0 else hosts) or "no host"


def list_queues(source: Source, limit: int | None = 100) -> Page[QueueView]:
    """Return the queues of this app's tasks, of waiting runs and of pauses, ordered by name.

    :param limit: the maximum number of queues to return; None for all. If there are more, paused
        queues are kept first, then those whose oldest run has been due longest.
    """
    with reading(source) as reader:
        groups = waiting_groups(reader)
        pauses = {pause.name: pause for pause in list_pauses(reader) if pause.kind == "queue"}
        oldest: dict[str, datetime] = {}
        for group in groups:
            oldest[group.queue] = min(group.oldest, oldest.get(group.queue, group.oldest))
        backlogs = count_waiting(reader)
        # The groups have no runs that wait behind others of their key.
        for name, backlog in backlogs.items():
            if backlog.oldest is not None:
                oldest[name] = min(backlog.oldest, oldest.get(name, backlog.oldest))
        names = {*reader.state.queues, *oldest, *backlogs, *pauses}

        def urgency(name: str) -> Any:
            return name not in pauses, min(oldest.get(name, reader.now), reader.now), name

        shown_names = sorted(names, key=urgency)[:limit]
        rows = [
            _view(reader, name, oldest.get(name), backlogs[name], pauses.get(name))
            for name in sorted(shown_names)
        ]
        return Page(rows, None, reader.now, Count(len(names)))


def _view(
    reader: Reader,
    name: str,
    oldest: datetime | None,
    backlog: Backlog,
    pause: PauseView | None,
) -> QueueView:
    executor = reader.state.settings.executors.get(name)
    return QueueView(
        name=name,
        waiting=backlog.waiting,
        due=backlog.due,
        oldest=oldest if oldest is not None and oldest <= reader.now else None,
        hosts=() if executor else hosts_of(reader, name),
        executor=executor,
        pause=pause,
    )


#: The maximum number of ticks that are read, newest first.
_SEARCHED_TICKS = 10_000
#: The shortest time for which a host counts as serving its queues after its last tick.
SERVES_FOR = timedelta(minutes=10)


class Host(NamedTuple):
    """A host that ticked within the last day.

    :ivar seen_at: the time when its last tick was seen.
    :ivar queues: the queues that its recent ticks served; None for all.
    :ivar version: its version of Flask-CronJobs.
    """

    host: str
    seen_at: datetime
    queues: tuple[str, ...] | None
    version: str | None


#: The maximum number of hosts that are listed.
HOSTS = 100


def list_hosts(source: Source) -> Page[Host]:
    """Return the hosts that ticked within the last day, most recently seen first."""
    with reading(source) as reader:
        hosts = _hosts(reader)
        return Page(hosts[:HOSTS], None, reader.now, Count(len(hosts)))


def hosts_of(reader: Reader, queue: str) -> tuple[str, ...]:
    """Return the hosts that serve *queue*."""
    serving = (host for host in _serving(reader) if host.queues is None or queue in host.queues)
    return tuple(sorted(host.host for host in serving))


def is_unserved(reader: Reader, queue: str) -> bool:
    """Return whether hosts tick, but none of them serves *queue*."""
    served = _served(reader)
    return bool(_serving(reader)) and served is not None and queue not in served


def unserved_since(reader: Reader, before: datetime) -> str | None:
    """Return the queue that no host serves and whose work has been due longest.

    Only work that was due *before* a time counts. Paused work and executors' queues are left out.
    """
    executors = reader.state.settings.executors
    waiting = (
        (group.due, group.queue)
        for group in unpaused_groups(reader)
        if group.due is not None
        and group.due <= before
        and group.queue not in executors
        and is_declared(reader, group.task)
        and is_unserved(reader, group.queue)
    )
    first = min(waiting, default=None)
    return None if first is None else first[1]


@read_once
def _served(reader: Reader) -> frozenset[str] | None:
    """Return the queues that hosts serve; None if a host serves all."""
    queues = [host.queues for host in _serving(reader)]
    return None if None in queues else frozenset(chain(*filter(None, queues)))


@read_once
def _serving(reader: Reader) -> list[Host]:
    return [host for host in _hosts(reader) if host.seen_at >= _serving_since(reader)]


def _serving_since(reader: Reader) -> datetime:
    longest = timedelta(seconds=reader.state.settings.health_tick_age)
    return reader.now - max(SERVES_FOR, longest)


@read_once
def _hosts(reader: Reader) -> list[Host]:
    """Return the hosts, most recently seen first."""
    rows_by_host: dict[str, list[Row[Any]]] = {}
    for row in sorted(reader.rows(_grouped(reader)), key=lambda row: row.seen, reverse=True):
        rows_by_host.setdefault(row.host, []).append(row)
    return [_host(reader, host, groups) for host, groups in rows_by_host.items()]


def _grouped(reader: Reader) -> Any:
    """Return the SELECT of the ticks of the last day, by host and queues."""
    c = TICKS.c
    columns = c.id, c.host, cast(c.queues, String).label("queues"), c.started_at, c.seen_at
    recent = select(*columns).where(c.started_at > reader.now - timedelta(days=1))
    n = recent.order_by(c.started_at.desc()).limit(_SEARCHED_TICKS).subquery().c
    alike = n.host, n.queues
    newest = func.max(n.seen_at).label("seen"), func.max(n.id).label("latest")
    groups = select(*alike, *newest).group_by(*alike).subquery()
    return select(groups, c.version).join(TICKS, c.id == groups.c.latest)


def _host(reader: Reader, host: str, groups: Sequence[Row[Any]]) -> Host:
    """Return a host from the *groups* of its ticks, most recently seen first."""
    here = [group for group in groups if group.seen >= _serving_since(reader)] or groups[:1]
    names: list[list[str]] = [
        json.loads(group.queues) for group in here if group.queues is not None
    ]
    queues = tuple(sorted({*chain(*names)})) if len(names) == len(here) else None
    version = groups[0].version and groups[0].version.partition(" ")[0]
    return Host(host, groups[0].seen, queues, version)
