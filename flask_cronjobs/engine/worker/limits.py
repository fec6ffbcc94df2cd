"""After what a resident worker ends, so that a fresh one takes its place."""

from __future__ import annotations

import sys
from typing import NamedTuple

from ...jobs.humanize import plural, print_age

#: By how much to divide what the system says of memory, to get MB.
_OF_A_MB = 2**20 if sys.platform == "darwin" else 2**10


class Limits(NamedTuple):
    """The limits of one worker; None: there is none.

    :ivar runs: how many runs it takes.
    :ivar memory: how much resident memory it may hold, in MB. It runs one run at least.
    :ivar age: how long it works, in seconds.
    """

    runs: int | None = None
    memory: int | None = None
    age: float | None = None

    def reached(self, runs: int, age: float) -> str | None:
        """Return after what a worker with so many *runs* and of such an *age* ends, if it does."""
        if self.runs is not None and runs >= self.runs:
            return f"after {plural(runs, 'run')}"
        if self.age is not None and age >= self.age:
            return f"after {print_age(self.age)}"
        if self.memory is not None and runs and (held := most_held()) > self.memory:
            return f"after it held {held:.0f} MB"
        return None


def most_held() -> float:
    """Return the most resident memory that this process has held, in MB."""
    import resource  # Windows lacks it.

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _OF_A_MB
