"""How many runs a worker claims ahead."""

from __future__ import annotations

from collections.abc import Sequence

#: How much work a worker claims ahead, in seconds.
AHEAD = 0.05
#: How many runs one claim takes at most.
MOST = 1000
#: When the run at work takes longer than this, in seconds, what waits behind it is given back.
LONG = 4 * AHEAD
#: Of how many of the last runs the mean is, about.
RECENT = 3


class Prefetch:
    """How many runs to claim, by the recent mean duration of a run.

    :ivar mean: in seconds; None until a run has ended.
    """

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, seconds: Sequence[float]) -> None:
        """Take the durations of several attempts into the mean."""
        if not seconds:
            return
        latest = sum(seconds) / len(seconds)
        weight = 1.0 if self.mean is None else len(seconds) / (len(seconds) + RECENT)
        self.mean = latest * weight + (self.mean or 0.0) * (1 - weight)

    def wanted(self, waiting: int, idle: bool, recording: bool = False) -> int:
        """Return how many runs to claim when *waiting* runs are claimed and not begun.

        None until half of the target is used up, so that each claim is worth its statement, unless
        there is a statement anyway. None behind a long run, or a first one, whose length nobody
        knows: another worker can have them.

        :param idle: whether the worker has nothing to do.
        :param recording: whether there are outcomes to record in the same statement.
        """
        if self.mean is None or self.mean > LONG:
            return 1 if idle else 0
        target = max(1, min(MOST, int(AHEAD / max(self.mean, 1e-6))))
        return target - waiting if recording or waiting <= target // 2 else 0
