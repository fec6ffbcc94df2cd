"""The kinds of work that are measured, each a function that returns its tables."""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import contestants
from .arena import STATES, Arena, Ended
from .calls import tally
from .contestants import Contestant
from .environments import is_available
from .figures import Table

WHOLE, SPAN = "whole process, jobs/s", "first call to last outcome, jobs/s"
CLIENT, SERVER = "client CPU, µs/job", "server CPU, µs/job"
RATIOS = {WHOLE: "ours to it", SPAN: "ours to it, so measured"}
RATE = "jobs/s"
CPU, WALL = "CPU, s", "wall, s"
MEDIAN, SLOW = "median, ms", "9 of 10 within, ms"

#: The average time between jobs that are enqueued for a resident worker, in seconds.
PAUSES = (0.5, 0.1)
#: How long a resident worker gets to start, in seconds.
LISTENS = 5
#: The number of a resident worker's first jobs that are not counted: it may not listen yet.
WARM = 5


@dataclass(frozen=True)
class Plan:
    """The extent of a measurement.

    :ivar only: the keys of the contestants; empty for all.
    :ivar rounds: how often each contestant does the work.
    :ivar jobs: how many jobs to drain.
    :ivar many: how many jobs the fast contestants drain.
    :ivar calls: how many jobs to enqueue one by one.
    :ivar bulk: how many jobs to enqueue in bulk.
    :ivar waits: how many jobs to wait for, one by one.
    :ivar states: the states of the table before a drain.
    """

    only: list[str] = field(default_factory=list)
    rounds: int = 11
    jobs: int = 10_000
    many: int = 50_000
    calls: int = 2_000
    bulk: int = 50_000
    waits: int = 20
    states: list[str] = field(default_factory=lambda: ["fresh"])

    def chosen(self, groups: dict[str, list[Contestant]]) -> list[Contestant]:
        """Return the contestants to measure, without those whose environment cannot be made."""
        keys = [key for key in groups if not self.only or key in self.only]
        return [peer for key in keys for peer in groups[key] if is_available(peer.environment)]

    def interleaved(self, groups: dict[str, list[Contestant]]) -> Iterator[Contestant]:
        """Yield the contestants in turn: forward, backward, and then from another one."""
        chosen = self.chosen(groups)
        for number in range(self.rounds if chosen else 0):
            start = number // 2 % len(chosen)
            order = chosen[start:] + chosen[:start]
            yield from reversed(order) if number % 2 else order


def drain(arena: Arena, plan: Plan) -> list[Table]:
    """Measure how fast one worker drains no-op jobs, for each state of the table."""
    return _drain(arena, plan, "drain", contestants.DRAIN, plan.jobs, "one worker")


def many(arena: Arena, plan: Plan) -> list[Table]:
    """Measure how fast the fast contestants drain more jobs."""
    return _drain(arena, plan, "many", contestants.MANY, plan.many, "one worker")


def two(arena: Arena, plan: Plan) -> list[Table]:
    """Measure how much a second worker adds."""
    return _drain(arena, plan, "two", contestants.TWO, plan.many, "one worker and two")


def sqlite(arena: Arena, plan: Plan) -> list[Table]:
    """Measure how fast one worker drains SQLite."""
    title = f"Drain {plan.jobs:,} jobs on SQLite, one worker"
    table = Table("sqlite", title, {WHOLE: 0, CLIENT: 0}, {WHOLE: RATIOS[WHOLE]})
    for peer in plan.interleaved(contestants.SQLITE):
        ended = arena.run(peer, "work", arena.file(peer, plan.jobs), plan.jobs)
        values = {WHOLE: plan.jobs / ended.seconds, CLIENT: ended.cpu * 1e6 / plan.jobs}
        table.add(peer.label, values, ended.tally.fault())
    return [table]


def enqueue(arena: Arena, plan: Plan) -> list[Table]:
    """Measure how fast one process enqueues jobs, each with its own commit."""
    title = f"Enqueue one job with its commit, {plan.calls:,} times"
    return _timed(arena, plan, "enqueue", contestants.ENQUEUE, "enqueue", plan.calls, title)


def bulk(arena: Arena, plan: Plan) -> list[Table]:
    """Measure how fast one process enqueues jobs in bulk."""
    title = f"Enqueue {plan.bulk:,} jobs, 1,000 with each call and commit"
    return _timed(arena, plan, "bulk", contestants.BULK, "load", plan.bulk, title)


def idle(arena: Arena, plan: Plan) -> list[Table]:
    """Measure what a worker costs that finds nothing to do, and ends."""
    names = {CPU: 3, WALL: 3}
    table = Table("idle", "Nothing to do: one process, to its end", names, {CPU: "tick to it"})
    table.base, table.less_is_better = "flask jobs tick", True
    urls: dict[str, str] = {}
    for peer in plan.interleaved(contestants.IDLE):
        if peer.label not in urls:
            urls[peer.label] = arena.empty(peer)
            arena.run(peer, "work", urls[peer.label], 1)
        ended = arena.run(peer, "work", urls[peer.label], 1)
        table.add(peer.label, {CPU: ended.cpu, WALL: ended.seconds})
    return [table]


def latency(arena: Arena, plan: Plan) -> list[Table]:
    """Measure the time from before the enqueue to the handler's call, by a resident worker."""
    base = contestants.RESIDENT.label
    tables = {
        pause: Table(
            f"latency-{pause}",
            f"From enqueue to call, with NOTIFY: {plan.waits} jobs, one every {pause} s",
            {MEDIAN: 1, SLOW: 1},
            {MEDIAN: "ours to it"},
            base,
            less_is_better=True,
        )
        for pause in PAUSES
    }
    for peer in plan.interleaved(contestants.LATENCY):
        for pause, table in tables.items():
            waits, fault = _waits(arena, peer, plan.waits + WARM, pause)
            values = {MEDIAN: statistics.median(waits), SLOW: statistics.quantiles(waits, n=10)[-1]}
            table.add(peer.label, values, fault)
    return list(tables.values())


#: The kinds of work that ``--work`` takes.
KINDS: dict[str, Callable[[Arena, Plan], list[Table]]] = {
    "drain": drain,
    "many": many,
    "two": two,
    "sqlite": sqlite,
    "enqueue": enqueue,
    "bulk": bulk,
    "idle": idle,
    "latency": latency,
}


def _drain(
    arena: Arena,
    plan: Plan,
    name: str,
    groups: dict[str, list[Contestant]],
    jobs: int,
    workers: str,
) -> list[Table]:
    columns = {WHOLE: 0, SPAN: 0, CLIENT: 0, SERVER: 0}
    tables = {
        state: Table(
            f"{name}-{state}", f"Drain {jobs:,} jobs, {workers}; {STATES[state]}", columns, RATIOS
        )
        for state in plan.states
    }
    for contestant in plan.interleaved(groups):
        for state, table in tables.items():
            _drain_once(arena, contestant, jobs, state, table)
    return list(tables.values())


def _drain_once(arena: Arena, one: Contestant, jobs: int, state: str, table: Table) -> None:
    jobs //= one.part
    url = arena.loaded(one, jobs, state)
    ended = arena.run(one, "work", url, jobs)
    span = _last_outcome(arena, one, url, ended) - ended.tally.first
    arena.server.drop_database(url)
    values = {
        WHOLE: jobs / ended.seconds,
        SPAN: jobs / span,
        CLIENT: ended.cpu * 1e6 / jobs,
        SERVER: ended.server_cpu * 1e6 / jobs,
    }
    table.add(one.label, values, ended.tally.fault())


def _last_outcome(arena: Arena, one: Contestant, url: str, ended: Ended) -> float:
    if not one.recorded:
        return ended.printed.get("recorded", ended.ended)
    with arena.connect(url) as connection:
        return float(connection.execute(one.recorded.encode()).fetchall()[0][0])


def _timed(
    arena: Arena,
    plan: Plan,
    name: str,
    groups: dict[str, list[Contestant]],
    verb: str,
    jobs: int,
    title: str,
) -> list[Table]:
    """Measure a verb that prints how long it took, on an empty table each time."""
    table = Table(name, title, {RATE: 0, SERVER: 0}, {RATE: "ours to it"})
    for peer in plan.interleaved(groups):
        url = arena.empty(peer)
        ended = arena.run(peer, verb, url, jobs)
        arena.server.drop_database(url)
        values = {RATE: jobs / ended.printed["seconds"], SERVER: ended.server_cpu * 1e6 / jobs}
        table.add(peer.label, values)
    return [table]


def _waits(
    arena: Arena, one: Contestant, jobs: int, pause: float
) -> tuple[list[float], str | None]:
    """Return how many milliseconds each job waited, and what went wrong."""
    url, folder = arena.empty(one), Path(tempfile.mkdtemp(dir=arena.folder))
    listener = arena.start(one, "listen", url, jobs, folder)
    try:
        time.sleep(LISTENS)
        enqueued = arena.run(one, "enqueue", url, jobs, pause).tally.times
        time.sleep(1)
    finally:
        listener.send_signal(signal.SIGTERM)
        listener.wait()
    called = tally(folder / "calls", jobs)
    pairs = list(zip(enqueued, called.times, strict=True))[WARM:]
    return [(end - begin) / 1e6 for begin, end in pairs], called.fault()
