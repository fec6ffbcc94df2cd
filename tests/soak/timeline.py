"""The faults of a soak, in a file to which every process of it appends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: The variable that names the file.
TIMELINE = "SOAK_TIMELINE"


@dataclass(frozen=True)
class Fault:
    """One fault. Times are the machine's monotonic clock, one for all processes and never faked.

    :ivar what: its kind, by which the summary counts.
    :ivar until: when it ended; the same as *at* for what takes no time.
    :ivar pid: the process that it hit, if it was one.
    :ivar group: the process group of that process, which is one tick's; None for a fault that hits
        all.
    :ivar delays: whether what it hit must wait for its end.
    """

    what: str
    at: float
    until: float
    pid: int | None = None
    group: int | None = None
    note: str | None = None
    delays: bool = False


def add(fault: Fault) -> None:
    """Append *fault* to the file."""
    append(os.environ[TIMELINE], json.dumps(asdict(fault)))


def note(what: str, **where: Any) -> None:
    """Append a fault that takes no time."""
    now = time.monotonic()
    add(Fault(what, now, now, **where))


def append(path: str | Path, line: str) -> None:
    """Append *line* to a file, in one write, which is not mixed with another process's."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def read(path: Path) -> list[Fault]:
    """Return all faults, by their beginning."""
    faults = [Fault(**json.loads(line)) for line in path.read_text().splitlines()]
    return sorted(faults, key=lambda fault: fault.at)


def length_within(spans: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """Return how much of the time from *start* to *end* is in at least one of *spans*."""
    total, reached = 0.0, start
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total
