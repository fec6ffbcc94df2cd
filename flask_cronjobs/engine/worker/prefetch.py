"""How much at once, and how soon again: what a worker claims ahead, and a throttle."""

from __future__ import annotations

from collections.abc import Sequence

#: How much work a worker claims ahead, in seconds.
AHEAD = 0.05
#: How many runs one claim takes at most.
MOST = 1000
#: When the run at work takes longer than this, in seconds, what waits behind it is handed back.
LONG = 4 * AHEAD
#: What one more batch counts in the mean.
WEIGHT = 0.3


class Pace:
    """The recent mean of a run's seconds, and what follows from it."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def note(self, seconds: Sequence[float]) -> None:
        """Take the durations of a batch of attempts into the mean."""
        if not seconds:
            return
        batch = sum(seconds) / len(seconds)
        self._mean = batch if self._mean is None else self._mean + WEIGHT * (batch - self._mean)

    def wanted(self, ahead: int, idle: bool) -> int:
        """How many to claim when *ahead* runs wait already.

        Nothing until half of what is wanted is gone, so that claims stay worth their statement.
        Behind a long run, or a first one, of which nothing is known, none: another worker can have
        them.

        :param idle: whether the worker has nothing to do.
        """
        if self._mean is None or self._mean > LONG:
            return 1 if idle else 0
        target = max(1, min(MOST, int(AHEAD / max(self._mean, 1e-6))))
        return target - ahead if ahead <= target // 2 else 0
