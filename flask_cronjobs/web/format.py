"""Format times, statuses and sentences for the pages. Pure. Templates call them ``say``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from markupsafe import Markup, escape

from ..errors import ScheduleError
from ..jobs.agenda import Lane, Piece
from ..jobs.batches.views import BatchView
from ..jobs.definitions.needs import NEEDS as NEEDS
from ..jobs.definitions.views import Cell, DefinitionView
from ..jobs.history import Mark
from ..jobs.humanize import capitalized, since
from ..jobs.runs.detail import RunView
from ..jobs.runs.rows import RunRow
from ..jobs.ticks import Bucket
from ..jobs.trends import Period
from ..schedule.cron_text import parse_zone
from ..text import cut, printable
from ..types import JSON, Status

#: A color of the pages: a class name of the style sheet.
Tone: TypeAlias = Literal["good", "warn", "bad", "busy", "idle"]

#: How many characters of a payload or a result a page shows.
LONGEST_JSON = 20_000
#: How many characters of a name a list shows: two lines on a phone.
_LONGEST_NAME = 60
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NEAR = {-1: "yesterday", 0: "today", 1: "tomorrow"}
_TONES: dict[Status, Tone] = {
    "queued": "idle",
    "running": "busy",
    "succeeded": "good",
    "failed": "warn",
    "dead": "bad",
    "cancelled": "idle",
    "skipped": "idle",
}


def status_tone(status: Status) -> Tone:
    """Return the tone of a run of *status*."""
    return _TONES.get(status, "idle")


def definition_tone(view: DefinitionView) -> Tone:
    """Return the tone of a definition."""
    if view.paused_at is not None:
        return "idle"
    return "warn" if view.needs or view.broken or view.orphaned or view.undeclared else "good"


def batch_tone(batch: BatchView) -> Tone:
    """Return the tone of a batch."""
    if batch.counts.dead:
        return "bad" if batch.state == "finished" else "warn"
    return "good" if batch.state == "finished" else "busy"


def clock(moment: datetime, zone: str, now: datetime) -> str:
    """Return *moment* in *zone* as ``today 07:00`` or ``Mon 23 Nov 07:00:12``."""
    local, today = moment.astimezone(_zone(zone)), _day(now, zone)
    near = _NEAR.get((local.date() - today).days)
    if near is not None:
        return f"{near} {_hour(local)}"
    year = f" {local.year}" if local.year != today.year else ""
    return f"{day(local)}{year} {_hour(local)}"


def day(local: datetime) -> str:
    """Return the day of *local* in its own zone, as ``Mon 23 Nov``."""
    return f"{_DAYS[local.weekday()]} {local.day} {_MONTHS[local.month - 1]}"


def hour(moment: datetime, zone: str) -> str:
    """Return the time of *moment* in *zone*, with seconds unless it is a whole minute: a slot."""
    return _hour(moment.astimezone(_zone(zone)))


def _hour(local: datetime) -> str:
    whole = local.second == local.microsecond == 0
    return f"{local:%H:%M}" if whole else f"{local:%H:%M:%S}"


#: A moment in a sentence, such as those of missed slots.
_IN_TEXT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}) UTC")


def in_zone(sentence: str, zone: str, now: datetime) -> str:
    """Return *sentence* with its moments as `clock` says them: a page has one zone."""

    def local(found: re.Match[str]) -> str:
        return clock(datetime.fromisoformat(f"{found[1]}+00:00"), zone, now)

    return _IN_TEXT.sub(local, sentence)


def same_day(moment: datetime, other: datetime, zone: str) -> bool:
    """Return whether two moments are on the same day in *zone*."""
    return _day(moment, zone) == _day(other, zone)


def iso(moment: datetime) -> str:
    """Return *moment* as ISO 8601, in UTC."""
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")


def pretty(value: JSON) -> str:
    """Return *value* as indented JSON, cut to `LONGEST_JSON` characters."""
    return cut(json.dumps(value, indent=2, ensure_ascii=False), LONGEST_JSON)


def brief(value: JSON) -> str:
    """Return *value* as JSON in one line, cut to 120 characters."""
    return cut(json.dumps(value, ensure_ascii=False), 120)


def breakable(name: str) -> Markup:
    """Return *name* as HTML in which lines may break between its words, not inside them."""
    parts = re.split(r"(?<=[_.:/-])(?![_.:/-])", printable(name))
    return Markup("<wbr>").join(escape(part) for part in parts)


def marked(text: str, part: str) -> Markup:
    """Return *text* as HTML with each *part* of it marked; case does not matter."""
    if not part:
        return breakable(text)
    pieces = re.split(f"({re.escape(part)})", printable(text), flags=re.IGNORECASE)
    return Markup("").join(
        Markup("<mark>%s</mark>") % piece if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


def short(name: str, part: str = "") -> Markup:
    """Return *name* as `marked` does; a long one cut in its middle, and whole as its title.

    It is not cut if it has *part*, which is to be seen.
    """
    whole = printable(name)
    if len(whole) <= _LONGEST_NAME or (part and part.lower() in whole.lower()):
        return marked(whole, part)
    half = _LONGEST_NAME // 2
    cut = breakable(whole[:half]), breakable(whole[-half:])
    return Markup('<span title="%s">%s…%s</span>') % (whole, *cut)


def describe(run: RunView) -> str:
    """Return the state of *run* as a sentence."""
    row, of = run.row, f"attempt {run.row.attempts} of {run.row.max_attempts}"
    ended = since(row.finished_at, run.now)
    match row.status:
        case "queued":
            return _waiting(run)
        case "running" if row.handed_to:
            begun = since(row.started_at, run.now)
            return f"It was handed to {row.handed_to} {begun}, and has not begun there."
        case "running" if row.is_stale(run.now):
            lost = since(row.locked_until, run.now)
            return (
                f"Its worker {row.locked_by} was lost in {of}: the lease ran out {lost}. The "
                "next tick takes the run back."
            )
        case "running":
            asked = " It was asked to stop." if run.cancel_requested_at else ""
            begun = since(row.started_at, run.now)
            return f"It is running on {row.locked_by}, {of}, started {begun}.{asked}"
        case "succeeded":
            return f"It succeeded {ended}, in {of}."
        case "failed":
            return f"{of.capitalize()} failed. {_waiting(run)}"
        case "dead":
            return f"It gave up {ended}, after {of}."
        case "cancelled":
            return f"It was cancelled {ended}."
        case "skipped":
            return f"Its slot was skipped {ended}."


def _waiting(run: RunView) -> str:
    """Return why *run* waits; where it waits for a worker, how many runs come before it."""
    said = [f"It waits {wait.what}." for wait in run.waits]
    return " ".join([*said, *([f"{capitalized(run.position)}."] if run.position else [])])


@lru_cache(maxsize=64)
def _day(moment: datetime, zone: str) -> date:
    return moment.astimezone(_zone(zone)).date()


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    """Return the zone *name*; UTC if it does not exist."""
    try:
        return parse_zone(name)
    except ScheduleError:
        return timezone.utc


#: The size of the chart, in its own units; the style sheet scales it.
HEIGHT = 100.0
PITCH = 20.0
_BAR = 14.0
# The least height of a block, so that even one outcome can be seen.
_LEAST = 1.5
# The height of what tells that runs of a day ended dead.
_DEAD = 6.0
_PARTS: tuple[tuple[str, Tone], ...] = (
    ("succeeded", "good"),
    ("failed", "warn"),
    ("dead", "bad"),
)


class Line(NamedTuple):
    """Where a chart shows a mark."""

    mark: Mark
    x: float


class Block(NamedTuple):
    """One colored piece of a bar."""

    tone: Tone
    y: float
    height: float


class Bar(NamedTuple):
    """One hour of all tasks, or one day of a task.

    :ivar silent: whether no tick began in the hour.
    """

    of: Any
    x: float
    blocks: list[Block]
    silent: bool


class Chart(NamedTuple):
    """Hours or days, a bar each.

    :ivar peak: what the highest bar stands for: attempts, or seconds.
    """

    bars: list[Bar]
    peak: float
    width: float
    marks: list[Line]
    height: float = HEIGHT
    bar_width: float = _BAR

    def sum_of(self, name: str) -> int:
        """Return the sum of one of the counts of all bars."""
        return sum(getattr(bar.of, name) for bar in self.bars)

    @property
    def silent(self) -> int:
        """Return how many hours had no tick, since the first hour that had one."""
        return sum(bar.silent for bar in self.bars)


def chart(buckets: Sequence[Bucket], marks: Sequence[Mark] = ()) -> Chart:
    """Return the chart of *buckets*, which are oldest first."""
    ticked = {at for at, bucket in enumerate(buckets) if bucket.ticks}
    silent = set(range(min(ticked, default=len(buckets)), len(buckets) - 1)) - ticked
    stacks = [list(_parts(bucket)) for bucket in buckets]
    return _chart(buckets, stacks, marks, 3600, silent)


def _parts(bucket: Bucket) -> Iterator[tuple[Tone, float]]:
    for name, tone in _PARTS:
        yield tone, getattr(bucket, name)


def day_chart(days: Sequence[Period], marks: Sequence[Mark] = ()) -> Chart:
    """Return the chart of *days*, which are oldest first: the median and 95 % of what runs took."""
    halves = [(day.p50 or 0.0, day.p95 or 0.0) for day in days]
    drawn = _chart(
        days, [[("busy", p50), ("idle", p95 - p50)] for p50, p95 in halves], marks, 86400
    )
    for bar in drawn.bars:
        bar.blocks.extend([Block("bad", 0.0, _DEAD)] if bar.of.dead else [])
    return drawn


def _chart(
    starts: Sequence[Bucket] | Sequence[Period],
    stacks: Sequence[Sequence[tuple[Tone, float]]],
    marks: Sequence[Mark],
    seconds: int,
    silent: Set[int] = frozenset(),
) -> Chart:
    """Return the chart of bars that begin at *starts* and stand for *seconds* each."""
    peak = max((sum(value for _, value in parts) for parts in stacks), default=0)
    bars = [
        Bar(of, at * PITCH + (PITCH - _BAR) / 2, list(_stacked(parts, peak)), at in silent)
        for at, (of, parts) in enumerate(zip(starts, stacks, strict=True))
    ]
    width = len(bars) * PITCH
    lines = [
        Line(mark, round((mark.at - starts[0].start).total_seconds() / seconds * PITCH, 2))
        for mark in reversed(marks)
        if starts
    ]
    return Chart(bars, peak, width, [line for line in lines if 0 <= line.x <= width])


#: The width of a lane, in its own units.
ACROSS = 1000.0


def across(moment: datetime, start: datetime, end: datetime) -> float:
    """Return where *moment* is in a lane from *start* to *end*."""
    part = (moment - start) / (end - start)
    return round(min(max(part, 0.0), 1.0) * ACROSS, 1)


#: The tone of each piece of a lane; others are idle.
_PIECES: dict[str, Tone] = {
    "succeeded": "good",
    "running": "busy",
    "failed": "warn",
    "missed": "warn",
    "dead": "bad",
}
#: The least width of a piece, and how close those of one kind are that are one node of the page.
_NARROW, _CLOSE = 3.0, 15.0


@dataclass
class Stretch:
    """Pieces of a lane of one kind, close to one another: most often one.

    :ivar shape: their outlines, for an SVG path.
    :ivar first: the first of them.
    :ivar last: the last of them.
    :ivar number: how many runs or slots they stand for.
    """

    shape: str
    ends: float
    first: Piece
    last: Piece
    number: int

    @property
    def tone(self) -> str:
        """The class of its color."""
        kind = self.first.kind
        return "older" if kind == "older" else _PIECES.get(kind, "idle")

    @property
    def until(self) -> datetime:
        """The whole second behind its end."""
        return self.last.end + timedelta(seconds=1)

    def title(self, zone: str, now: datetime) -> str:
        """Return what it is, and when."""
        words = {"older": "older runs are not shown", "band": "planned"}
        first, last = (clock(each.start, zone, now) for each in (self.first, self.last))
        many = f"{self.number:,} " if self.number > 1 else ""
        kind = words.get(self.first.kind, self.first.kind)
        return f"{many}{kind}, {first}{f' to {last}' if last != first else ''}"


def stretches(lane: Lane, start: datetime, end: datetime) -> list[Stretch]:
    """Return what to draw of *lane*, each piece to scale: a busy one would have too many nodes."""
    found: list[Stretch] = []
    for piece in lane.pieces:
        x = across(piece.start, start, end)
        width = max(round(across(piece.end, start, end) - x, 1), _NARROW)
        y, height = (8, 4) if piece.kind in ("band", "missed", "older") else (2, 16)
        shape = f"M{x:g} {y}h{width:g}v{height}h-{width:g}z"
        last = found[-1] if found else None
        if last and last.first.kind == piece.kind and x - last.ends <= _CLOSE:
            last.shape, last.ends, last.last = last.shape + shape, x + width, piece
            last.number += piece.number
        else:
            found.append(Stretch(shape, x + width, piece, piece, piece.number))
    return found


#: Runs shorter than that are not told apart by the heights of their cells, in seconds.
_LONG = 1.0


def height(took: float | None, runs: Sequence[Cell | RunRow]) -> str:
    """Return the class of a cell, by its quarter of the longest of *runs*; none for the last."""
    longest = max((run.took or 0.0 for run in runs), default=0.0)
    if took is None or longest < _LONG or took > longest * 0.75:
        return ""
    return f" t{max(1, math.ceil(took / longest * 4))}"


def _stacked(parts: Iterable[tuple[Tone, float]], peak: float) -> Iterator[Block]:
    """Return the blocks of one bar, from the bottom up."""
    ground = HEIGHT
    for tone, value in parts:
        if value:
            height = max(_LEAST, value / peak * HEIGHT)
            ground = max(0.0, ground - height)
            yield Block(tone, round(ground, 2), round(height, 2))


#: How high a bar of `bars_of` is at most.
BAR = 20


def bars_of(numbers: Sequence[int]) -> list[int]:
    """Return how high the bars for *numbers* are; a number above 0 has one that can be seen."""
    most = max(1, *numbers)
    return [max(2, round(BAR * each / most)) if each else 0 for each in numbers]
