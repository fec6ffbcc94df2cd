"""Notes of calls: which job was called, how often, and when.

All programs use this module, so it imports only the standard library. Each process writes to its
own mapped file. A note costs no system call, so it neither slows a contestant nor makes its threads
alternate. Notes survive a process that is killed.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path


class Calls:
    """The notes of this process; a forked child begins a file of its own."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder = folder
        self.jobs = jobs
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def note(self, number: int) -> None:
        """Note a call of the job *number*, now."""
        self.counts[number] += 1
        self.times[number] = time.time_ns()

    def done(self) -> int:
        """Return how many jobs this process has called."""
        return self.jobs - bytes(self.counts).count(0)

    def _open(self) -> None:
        with (self.folder / str(os.getpid())).open("wb+") as file:
            file.truncate(9 * self.jobs)
            view = memoryview(mmap.mmap(file.fileno(), 9 * self.jobs))
        self.times = view[: 8 * self.jobs].cast("Q")
        self.counts = view[8 * self.jobs :]


@dataclass(frozen=True)
class Tally:
    """A summary of the notes of all processes.

    :ivar times: for each job, when it was called last, in nanoseconds since 1970; 0 for never.
    :ivar never: how many jobs were not called.
    :ivar again: how many jobs were called more than once.
    """

    times: list[int]
    never: int
    again: int

    @property
    def first(self) -> float:
        """When the first job was called, in seconds since 1970."""
        return min(filter(None, self.times)) / 1e9

    @property
    def last(self) -> float:
        """When the last job was called, in seconds since 1970."""
        return max(self.times) / 1e9

    def fault(self) -> str | None:
        """Return what is wrong; None if each job was called exactly once."""
        if self.never or self.again:
            return f"{self.never} jobs never ran, {self.again} ran more than once"
        return None


def tally(folder: Path, jobs: int) -> Tally:
    """Read the notes of all processes."""
    times, counts = [0] * jobs, [0] * jobs
    for path in folder.iterdir():
        content = memoryview(path.read_bytes())
        calls = zip(content[: 8 * jobs].cast("Q"), content[8 * jobs :], strict=True)
        for number, (when, count) in enumerate(calls):
            times[number] = max(times[number], when)
            counts[number] += count
    return Tally(times, counts.count(0), sum(count > 1 for count in counts))
