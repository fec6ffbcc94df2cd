"""Seconds in logarithmic buckets: their bounds, in SQL; percentiles of what is in them. Pure.

Four buckets to a doubling: what is read from them is off by a tenth at most. A bucket has the same
number for ever, since rows that are kept for a year have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

#: The upper bounds of the buckets, in seconds: from a millisecond to three days. What took longer
#: is in one bucket more.
BOUNDS = tuple(round(0.001 * 2 ** (number / 4), 6) for number in range(113))


def bucket_of(seconds: str, low: int = 0, high: int = len(BOUNDS)) -> str:
    """Return SQL for the bucket that *seconds*, the name of a column, belong to.

    Nested, so that seven comparisons find it.
    """
    if low == high:
        return str(low)
    middle = (low + high) // 2
    below, above = bucket_of(seconds, low, middle), bucket_of(seconds, middle + 1, high)
    return f"CASE WHEN {seconds} <= {BOUNDS[middle]} THEN {below} ELSE {above} END"


def counted(buckets: object) -> Counter[int]:
    """Return the numbers that a row has by bucket; none if somebody edited it so as not to tell."""
    if not isinstance(buckets, Mapping):
        return Counter()
    found: Counter[int] = Counter()
    for bucket, number in buckets.items():  # pyright: ignore[reportUnknownVariableType]
        if str(bucket).isdigit() and type(number) is int and number > 0:  # pyright: ignore[reportUnknownArgumentType]
            found[min(int(str(bucket)), len(BOUNDS))] += number  # pyright: ignore[reportUnknownArgumentType]
    return found


def percentile(buckets: Counter[int], percent: int) -> float | None:
    """Return about how many seconds *percent* of what is in *buckets* do not exceed.

    It is the middle of a bucket. None if there is nothing in them.
    """
    wanted, seen = buckets.total() * percent / 100, 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return middle(bucket)
    return None


def middle(bucket: int) -> float:
    """Return the seconds in the middle of a bucket; of the last one its least, of the first 0."""
    if bucket == 0:
        return 0.0
    at = min(bucket, len(BOUNDS) - 1)
    return BOUNDS[at - 1] * 2 ** (1 / 8) if bucket == at else BOUNDS[at]


def cumulative(buckets: Counter[int], every: int) -> Iterator[tuple[float, int]]:
    """Yield each bound in *every*, in seconds, and how many took no longer."""
    for at in range(0, len(BOUNDS), every):
        yield BOUNDS[at], sum(number for bucket, number in buckets.items() if bucket <= at)
