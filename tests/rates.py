"""The check that a rate limit holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import combinations


def refuse_too_early(times: Sequence[datetime], period: float, burst: int = 1) -> None:
    """Fail if a window has more of the sorted *times* than its length and *burst* allow."""
    for (i, first), (j, last) in combinations(enumerate(times), 2):
        least = timedelta(seconds=period) * (j - i + 1 - burst)
        assert last - first >= least, f"{j - i + 1} attempts in {last - first}"
