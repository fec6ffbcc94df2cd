"""The life of a run as a bar: waits and attempts, to scale. What its payload had before. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from ..jobs.humanize import duration
from ..jobs.runs.detail import Attempt, RunView
from ..types import JSON
from .format import Tone, pretty, status_tone

#: The width of the bar, in its own units; the style sheet scales it.
WIDTH = 1000.0
# The least width of a part, so that even a short attempt can be seen.
_LEAST = 3.0
_LONGEST_DIFF = 60


class Part(NamedTuple):
    """A wait or an attempt.

    :ivar tone: its color; None: it waits.
    """

    tone: Tone | None
    x: float
    width: float
    words: str


class Life(NamedTuple):
    """The bar of one run, from when it was due until its end, or now."""

    parts: list[Part]
    start: datetime
    end: datetime
    width: float = WIDTH

    @property
    def words(self) -> str:
        """Return the same as a sentence."""
        return ", ".join(part.words for part in self.parts)


def life_of(run: RunView) -> Life | None:
    """Return the life of *run*; None if no attempt of it is known."""
    attempts = [each for each in reversed(run.attempts) if each.started_at is not None]
    if not attempts:
        return None
    end = max(moment for each in attempts for moment in _moments(each, run))
    end = end if run.row.finished_at is not None else max(end, run.now)
    first = attempts[0].started_at or run.now
    start = min(run.row.scheduled_for, first) if attempts[0].number == 1 else first
    whole = max((end - start).total_seconds(), 1e-6)
    parts: list[Part] = []
    for tone, begun, over, words in _spans(run, attempts, start):
        seconds = (over - begun).total_seconds()
        x = (begun - start).total_seconds() / whole * WIDTH
        width = max(_LEAST if tone else 0.0, seconds / whole * WIDTH)
        x = min(x, WIDTH - width)
        parts.append(Part(tone, round(x, 2), round(width, 2), f"{words} {duration(seconds)}"))
    return Life(parts, start, end)


def _moments(attempt: Attempt, run: RunView) -> Iterator[datetime]:
    assert attempt.started_at is not None
    yield attempt.started_at
    yield attempt.ended_at or (run.now if attempt.outcome == "running" else attempt.started_at)


def _spans(
    run: RunView, attempts: list[Attempt], start: datetime
) -> Iterator[tuple[Tone | None, datetime, datetime, str]]:
    """Yield the waits and attempts, each with its color, its begin, its end and its words."""
    before = start
    for each in attempts:
        begun, over = _moments(each, run)
        if begun > before:
            yield None, before, begun, "waited"
        outcome = "has run" if each.outcome == "running" else f"{each.outcome} after"
        tone = status_tone("failed" if each.outcome == "failed" else run.row.status)
        yield tone, begun, max(begun, over), f"attempt {each.number} {outcome}"
        before = max(before, over)
    if run.row.finished_at is None and before < run.now:
        yield None, before, run.now, "has waited"


def differences(before: JSON, after: JSON) -> list[str]:
    """Return the lines in which two payloads differ, each with ``+`` or ``-`` before it."""
    lines = difflib.unified_diff(
        pretty(before).splitlines(), pretty(after).splitlines(), lineterm="", n=0
    )
    # The first two are the head. What is in a payload begins with + or - here, also if it is "--".
    changed = [line for line in list(lines)[2:] if not line.startswith("@@")]
    left_out = len(changed) - _LONGEST_DIFF
    return [*changed[:_LONGEST_DIFF], *([f"… {left_out} more lines"] if left_out > 0 else [])]
