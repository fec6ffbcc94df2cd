"""What a rate limit forbids."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import combinations


def refuse_too_early(times: Sequence[datetime], period: float, burst: int = 1) -> None:
    """Fail if any window has more of *times*, in order, than its length allows, and *burst*."""
    for (i, first), (j, last) in combinations(enumerate(times), 2):
        least = timedelta(seconds=period) * (j - i + 1 - burst)
        assert last - first >= least, f"{j - i + 1} attempts in {last - first}"
