"""Compute the chart of the last day. Pure; the template draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..report.activity import Bucket
from .format import Tone

#: The size of the chart, in its own units; the style sheet scales it.
HEIGHT = 100.0
PITCH = 20.0
_BAR = 14.0
# The least height of a block, so that even one outcome can be seen.
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

    :ivar silent: whether no tick began in it.
    """

    bucket: Bucket
    x: float
    blocks: tuple[Block, ...]
    silent: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """The last day, hour by hour.

    :ivar peak: the most attempts of an hour; the highest bar.
    :ivar silent: how many hours had no tick, since the first hour that had one.
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
        """Return whether there was no tick at all."""
        return not any(bar.bucket.ticks for bar in self.bars)


def chart(buckets: Sequence[Bucket]) -> Chart:
    """Return the chart of *buckets*, which are oldest first."""
    peak = max((sum(_values(bucket)) for bucket in buckets), default=0)
    first = next((at for at, bucket in enumerate(buckets) if bucket.ticks), len(buckets))
    bars = tuple(
        Bar(
            bucket,
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
    """Return the blocks of one bar, from the bottom up."""
    ground = HEIGHT
    for (_, tone), value in zip(_PARTS, _values(bucket), strict=True):
        if value:
            height = max(_LEAST, value / peak * HEIGHT)
            ground = max(0.0, ground - height)
            yield Block(tone, round(ground, 2), round(height, 2))
