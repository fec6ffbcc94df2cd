"""The geometry of the chart of the last day. Pure: the template draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..report import Bucket
from .format import Tone

#: The size of the drawing, in its own units; the style sheet stretches it.
HEIGHT = 100.0
PITCH = 20.0
_BAR = 14.0
# What happened, though seldom, can be seen.
_LEAST = 1.5
_PARTS: tuple[tuple[str, Tone], ...] = (
    ("succeeded", "good"),
    ("failed", "warn"),
    ("dead", "bad"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One colored piece of a bar."""

    tone: Tone
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour.

    :ivar silent: no tick began in it.
    """

    bucket: Bucket
    start: datetime
    x: float
    blocks: tuple[Block, ...]
    silent: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """The last day, hour by hour.

    :ivar peak: the most attempts of an hour: the height of the drawing.
    :ivar silent: how many hours saw no tick, since the first that did.
    """

    bars: tuple[Bar, ...]
    width: float
    height: float
    bar_width: float
    peak: int
    succeeded: int
    failed: int
    dead: int
    silent: int

    @property
    def empty(self) -> bool:
        """Whether no tick came at all."""
        return not any(bar.bucket.ticks for bar in self.bars)


def chart(buckets: Sequence[Bucket]) -> Chart:
    """The drawing of *buckets*, oldest first."""
    peak = max((sum(_values(bucket)) for bucket in buckets), default=0)
    first = next((at for at, bucket in enumerate(buckets) if bucket.ticks), len(buckets))
    bars = tuple(
        Bar(
            bucket,
            bucket.start,
            at * PITCH + (PITCH - _BAR) / 2,
            tuple(_blocks(bucket, peak)),
            silent=at > first and not bucket.ticks and at < len(buckets) - 1,
        )
        for at, bucket in enumerate(buckets)
    )
    succeeded, failed, dead = (
        sum(getattr(bucket, name) for bucket in buckets) for name, _ in _PARTS
    )
    silent = sum(bar.silent for bar in bars)
    width = len(bars) * PITCH
    return Chart(bars, width, HEIGHT, _BAR, peak, succeeded, failed, dead, silent)


def _values(bucket: Bucket) -> tuple[int, ...]:
    return tuple(getattr(bucket, name) for name, _ in _PARTS)


def _blocks(bucket: Bucket, peak: int) -> Iterator[Block]:
    """The pieces of one bar, from the ground up."""
    ground = HEIGHT
    for (_, tone), value in zip(_PARTS, _values(bucket), strict=True):
        if value:
            height = max(_LEAST, value / peak * HEIGHT)
            ground = max(0.0, ground - height)
            yield Block(tone, round(ground, 2), round(height, 2))
