"""The verdict: whether ticks run and work is claimed in time, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, cast

from sqlalchemy import select, text

from ..models.conditions import HANDED, RUNNING
from ..text.humanize import ago, capitalized, plural, seconds_between
from .backlog import oldest_due
from .health_checks import Finding, findings, last_tick
from .reader import RUNS, Reader, Source, capped, count_of, reading

#: ``never``: no tick has run yet. ``late``: the last tick was too long ago. ``overdue``: ticks run,
#: but another check has found an error, such as a run that has waited too long.
HealthStatus: TypeAlias = Literal["ok", "never", "late", "overdue"]
#: The color of the verdict: ``bad`` if it is not ok, ``warn`` if something needs attention.
VerdictTone: TypeAlias = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether ticks run and work is claimed in time.

    :ivar word: the health status.
    :ivar sentence: the status for people, such as ``Last tick 12 s ago from web-1``.
    :ivar headline: the number of things that need attention, in words.
    :ivar now: the database's now.
    :ivar last_tick_at: the time when a tick that did its work was last seen alive.
    :ivar age: the seconds since *last_tick_at*.
    :ivar host: the host of that tick.
    :ivar findings: the problems that need attention, worst first.
    """

    word: HealthStatus
    sentence: str
    headline: str
    now: datetime
    last_tick_at: datetime | None
    age: float | None
    host: str | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the status is ``ok``."""
        return self.word == "ok"

    @property
    def tone(self) -> VerdictTone:
        """``bad`` if it is not ``ok``, ``warn`` if something needs attention, else ``good``."""
        if not self.ok:
            return "bad"
        return "warn" if self.findings else "good"

    @property
    def ticks(self) -> str:
        """The last tick, such as ``Last tick 12 s ago from web-1``; empty if there was none."""
        return _ticks(self.age, self.host)


def read_verdict(source: Source, *, only_errors: bool = False) -> Verdict:
    """Return whether ticks run and runnable work is claimed in time.

    :param only_errors: run only the checks that can make the verdict red.
    """
    with reading(source) as reader:
        tick = last_tick(reader)
        problems = findings(reader, only_errors=only_errors)
        age = seconds_between(tick.seen_at, reader.now)
        word = _word(problems, age)
        return Verdict(
            word=word,
            sentence=_sentence(word, _ticks(age, tick.host), problems),
            headline=_headline(len(problems)) if problems else "All is well",
            now=reader.now,
            last_tick_at=tick.seen_at,
            age=age,
            host=tick.host,
            findings=tuple(problems),
        )


def _word(problems: Sequence[Finding], age: float | None) -> HealthStatus:
    if not problems or problems[0].level != "error":
        return "ok"
    if problems[0].id != "ticks":
        return "overdue"
    return "never" if age is None else "late"


def _ticks(age: float | None, host: str | None) -> str:
    return "" if age is None else f"Last tick {ago(age)} from {host}"


def _sentence(word: HealthStatus, ticks: str, problems: Sequence[Finding]) -> str:
    if word == "ok":
        return ticks
    what, joined = problems[0].what, ", but " if word == "overdue" else ": "
    return f"{ticks}{joined}{what}" if ticks else capitalized(what)


def _headline(number: int) -> str:
    return f"{plural(number, 'thing')} need{'s' if number == 1 else ''} attention"


def read_figures(reader: Reader) -> dict[str, float]:
    """Return the metrics that are not findings, by name."""
    figures: dict[str, float] = {
        "oldest_due_seconds": seconds_between(oldest_due(reader), reader.now) or 0.0,
        "running_runs": _count(reader, RUNNING),
    }
    if reader.state.settings.executors:
        figures["handed_runs"] = _count(reader, HANDED)
    return figures


def _count(reader: Reader, rows: str) -> int:
    number = reader.value(select(capped(select(RUNS.c.id).where(text(rows)))))
    return count_of(cast("int", number)).value
