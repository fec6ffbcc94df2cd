"""Pure functions that scale the chart of ticks and the cells of runs.

Templates find them in ``say``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ..insights.run_rows import RunRow
from ..insights.schedule_views import Cell
from ..insights.tick_views import Bucket
from .format import Tone

#: The height of a chart in its own units; the style sheet scales it.
HEIGHT = 100.0
# The least height of a block, so that a single outcome is visible.
_LEAST = 1.5
_PARTS: tuple[tuple[str, Tone], ...] = (
    ("succeeded", "good"),
    ("failed", "warn"),
    ("dead", "bad"),
)
#: A colored block of a bar: its tone, its top and its height.
Block: TypeAlias = tuple[Tone, float, float]


class Bar(NamedTuple):
    """The bar of an hour, for all tasks.

    :ivar blocks: the blocks of the bar, from the bottom up.
    :ivar silent: whether no tick began in the hour.
    """

    of: Bucket
    blocks: list[Block]
    silent: bool


class Chart(NamedTuple):
    """A chart with a bar for each hour.

    :ivar peak: the number of attempts that the highest bar shows.
    """

    bars: list[Bar]
    peak: int


def chart(buckets: Sequence[Bucket]) -> Chart:
    """Return the chart of *buckets*, which begin with the oldest."""
    ticked = {at for at, bucket in enumerate(buckets) if bucket.ticks}
    silent = set(range(min(ticked, default=len(buckets)), len(buckets) - 1)) - ticked
    stacks = [_parts(bucket) for bucket in buckets]
    peak = max(sum(number for _, number in parts) for parts in stacks)
    bars = [
        Bar(bucket, list(_stacked(parts, peak)), at in silent)
        for at, (bucket, parts) in enumerate(zip(buckets, stacks, strict=True))
    ]
    return Chart(bars, peak)


def _parts(bucket: Bucket) -> list[tuple[Tone, int]]:
    return [(tone, getattr(bucket, name)) for name, tone in _PARTS]


def _stacked(parts: Sequence[tuple[Tone, int]], peak: int) -> Iterator[Block]:
    """Return the blocks of one bar, from the bottom up."""
    ground = HEIGHT
    for tone, number in parts:
        if number:
            height = max(_LEAST, number / peak * HEIGHT)
            ground = max(0.0, ground - height)
            yield tone, round(ground, 2), round(height, 2)


#: If no run took as long as this, in seconds, all cells have the same height.
_LONG = 1.0


def height(took: float | None, runs: Sequence[Cell | RunRow]) -> str:
    """Return the CSS class for a cell's height, in quarters of the longest run.

    It is empty for full height: above three quarters, without a duration, or if all runs are short.
    """
    longest = max((run.took or 0.0 for run in runs), default=0.0)
    if took is None or longest < _LONG or took > longest * 0.75:
        return ""
    return f" t{max(1, math.ceil(took / longest * 4))}"
