"""Draw the chart and the lives of runs, to scale. Pure. Templates call them ``say``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from ..jobs.definitions.views import Cell
from ..jobs.humanize import duration, seconds_since
from ..jobs.runs.detail import RunView
from ..jobs.runs.rows import RunRow
from ..jobs.ticks import Bucket
from .format import Tone, status_tone

#: How high a chart is, in its own units; the style sheet scales it.
HEIGHT = 100.0
# The least height of a block, so that even one outcome can be seen.
_LEAST = 1.5
_PARTS: tuple[tuple[str, Tone], ...] = (
    ("succeeded", "good"),
    ("failed", "warn"),
    ("dead", "bad"),
)
#: A colored piece of a bar: its tone, its top and its height.
Block: TypeAlias = tuple[Tone, float, float]


class Bar(NamedTuple):
    """One hour of all tasks.

    :ivar blocks: its pieces, from the bottom up.
    :ivar silent: whether no tick began in the hour.
    """

    of: Bucket
    blocks: list[Block]
    silent: bool


class Chart(NamedTuple):
    """Hours, a bar each.

    :ivar peak: how many attempts the highest bar stands for.
    """

    bars: list[Bar]
    peak: int


def chart(buckets: Sequence[Bucket]) -> Chart:
    """Return the chart of *buckets*, which are oldest first."""
    ticked = {at for at, bucket in enumerate(buckets) if bucket.ticks}
    silent = set(range(min(ticked, default=len(buckets)), len(buckets) - 1)) - ticked
    stacks = [[(tone, getattr(bucket, name)) for name, tone in _PARTS] for bucket in buckets]
    peak = max(sum(number for _, number in parts) for parts in stacks)
    bars = [
        Bar(bucket, list(_stacked(parts, peak)), at in silent)
        for at, (bucket, parts) in enumerate(zip(buckets, stacks, strict=True))
    ]
    return Chart(bars, peak)


def _stacked(parts: Sequence[tuple[Tone, int]], peak: int) -> Iterator[Block]:
    """Return the blocks of one bar, from the bottom up."""
    ground = HEIGHT
    for tone, number in parts:
        if number:
            height = max(_LEAST, number / peak * HEIGHT)
            ground = max(0.0, ground - height)
            yield tone, round(ground, 2), round(height, 2)


#: The width of a life, in its own units.
ACROSS = 1000.0
#: The least width of a piece.
_NARROW = 3.0


def across(moment: datetime, start: datetime, end: datetime) -> float:
    """Return where *moment* is in what goes from *start* to *end*."""
    part = (moment - start) / (end - start)
    return round(min(max(part, 0.0), 1.0) * ACROSS, 1)


#: Runs shorter than that are not told apart by the heights of their cells, in seconds.
_LONG = 1.0


def height(took: float | None, runs: Sequence[Cell | RunRow]) -> str:
    """Return the class of a cell, by its quarter of the longest of *runs*; none for the last."""
    longest = max((run.took or 0.0 for run in runs), default=0.0)
    if took is None or longest < _LONG or took > longest * 0.75:
        return ""
    return f" t{max(1, math.ceil(took / longest * 4))}"


class Part(NamedTuple):
    """A wait or an attempt.

    :ivar tone: its color; None: it waits.
    """

    tone: Tone | None
    x: float
    width: float
    words: str


class Life(NamedTuple):
    """The waits and attempts of one run, from when it was due until its end, or now."""

    parts: list[Part]
    start: datetime
    end: datetime


def life_of(run: RunView) -> Life | None:
    """Return the life of *run*; None if no attempt of it is known."""
    spans = list(_spans(run))
    if not spans:
        return None
    start = spans[0][1]
    end = max(start + timedelta(microseconds=1), *(over for _, _, over, _ in spans))
    parts: list[Part] = []
    for tone, begun, over, words in spans:
        x = across(begun, start, end)
        width = max(_NARROW if tone else 0.0, round(across(over, start, end) - x, 1))
        took = duration(seconds_since(begun, over))
        parts.append(Part(tone, round(min(x, ACROSS - width), 1), width, f"{words} {took}"))
    return Life(parts, start, end)


def _spans(run: RunView) -> Iterator[tuple[Tone | None, datetime, datetime, str]]:
    """Yield the waits and attempts, each with its color, its begin, its end and its words."""
    before: datetime | None = None
    for each in reversed(run.attempts):
        begun = each.started_at
        if begun is None:
            continue
        over = each.ended_at or (run.now if each.outcome == "running" else begun)
        if before is None:
            before = min(run.row.scheduled_for, begun) if each.number == 1 else begun
        if begun > before:
            yield None, before, begun, "waited"
        outcome = "has run" if each.outcome == "running" else f"{each.outcome} after"
        tone = status_tone("failed" if each.outcome == "failed" else run.row.status)
        yield tone, begun, max(begun, over), f"attempt {each.number} {outcome}"
        before = max(before, over)
    if before is not None and run.row.finished_at is None and before < run.now:
        yield None, before, run.now, "has waited"
