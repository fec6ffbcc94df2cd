"""Pure functions that format times, statuses and sentences for the pages.

Templates find them in ``say``.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime, timezone, tzinfo
from functools import lru_cache
from typing import Literal, TypeAlias

from markupsafe import Markup, escape

from ..errors import ScheduleError
from ..insights.batch_views import BatchView
from ..insights.operations import OperationView
from ..insights.run_detail import RunView
from ..insights.schedule_views import DefinitionView
from ..schedule.cron_text import parse_zone
from ..text import cut, printable
from ..text.humanize import Link, in_zone, since
from ..types import JSON, Status

#: A color of the pages, which is a class name of the style sheet.
Tone: TypeAlias = Literal["good", "warn", "bad", "busy", "idle"]

#: The maximum number of characters of a payload or a result that a page shows.
LONGEST_JSON = 20_000
#: The maximum number of characters of an error that the banner of a run shows.
_LONGEST_ERROR = 500
#: The maximum number of characters of a name that a list shows, which are two lines on a phone.
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


def status_word(status: Status) -> str:
    """Return the word for *status*; ``failed`` is shown as ``to be retried``."""
    return {"queued": "waiting", "failed": "to be retried"}.get(status, status)


def run_tone(run: RunView) -> Tone:
    """Return the tone of a run; one whose worker was lost is as bad as a dead run."""
    return "bad" if run.row.is_stale(run.now) else status_tone(run.row.status)


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
    local, today = in_zone(moment, _zone(zone)), _day(now, zone)
    near = _NEAR.get((local.date() - today).days)
    if near is not None:
        return f"{near} {_hour(local)}"
    year = f" {local.year}" if local.year != today.year else ""
    return f"{day(local)}{year} {_hour(local)}"


def day(local: datetime) -> str:
    """Return the day of *local* in its own zone, as ``Mon 23 Nov``."""
    return f"{_DAYS[local.weekday()]} {local.day} {_MONTHS[local.month - 1]}"


def hour(moment: datetime, zone: str) -> str:
    """Return the time of *moment* in *zone*, with seconds unless it is a whole minute."""
    return _hour(in_zone(moment, _zone(zone)))


def _hour(local: datetime) -> str:
    whole = local.second == local.microsecond == 0
    return f"{local:%H:%M}" if whole else f"{local:%H:%M:%S}"


#: Matches, in a sentence, a moment, code in backticks, or a number's last digit before its unit.
_IN_TEXT = re.compile(
    r"(?P<moment>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}) UTC|`(?P<code>[^`]+)`"
    r"|(?P<number>[0-9]) (?=(?:ms|s|min|h|d|kB|MB|%)\b)"
)


def prose(sentence: str, zone: str, now: datetime) -> Markup:
    """Return *sentence* as HTML, with moments as `clock` formats them, code and units marked up.

    A page shows one time zone; the title of a moment has it in UTC.
    """
    parts, at = list[str](), 0
    for match in _IN_TEXT.finditer(text := printable(sentence)):
        parts += [escape(text[at : match.start()]), _in_text(match, zone, now)]
        at = match.end()
    return Markup("").join([*parts, escape(text[at:])])


def _in_text(match: re.Match[str], zone: str, now: datetime) -> Markup:
    if match["moment"]:
        try:
            moment = datetime.fromisoformat(f"{match['moment']}+00:00")
            local = clock(moment.astimezone(_zone(zone)), zone, now)
        except (ValueError, OverflowError):  # A name may have digits that only look like a moment.
            return escape(match[0])
        time = Markup('<time datetime="%s" title="%s">%s</time>')
        return time % (iso(moment), match[0], local)
    if match["code"]:
        return Markup("<code>%s</code>") % match["code"]
    return escape(f"{match['number']}\N{NO-BREAK SPACE}")


#: The page of an operation's target, by the first word of the target.
_TARGETS: dict[str, tuple[str, str]] = {
    "definition": ("definition", "name"),
    "task": ("runs", "task"),
    "queue": ("runs", "queue"),
    "batch": ("runs", "batch"),
}


def place_of(operation: OperationView) -> Link | None:
    """Return the page of an operation's target; None if it has none."""
    if operation.run_id is not None:
        return "run", {"run_id": operation.run_id}
    kind, _, name = operation.target.partition(" ")
    endpoint, field = _TARGETS.get(kind, ("", ""))
    return (endpoint, {field: name}) if endpoint and name else None


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
    """Return *name* as HTML in which lines break only between its words."""
    parts = re.split(r"(?<=[_.:/-])(?![_.:/-])", printable(name))
    return Markup("<wbr>").join(escape(part) for part in parts)


def short(name: str) -> Markup:
    """Return *name* as `breakable` does; a long name is cut in the middle, with a ``title``."""
    whole = printable(name)
    if len(whole) <= _LONGEST_NAME:
        return breakable(whole)
    half = _LONGEST_NAME // 2
    cut = breakable(whole[:half]), breakable(whole[-half:])
    return Markup('<span title="%s">%s…%s</span>') % (whole, *cut)


def flowing(doc: str) -> str:
    """Return a docstring without the line breaks that only wrap its source."""
    return re.sub(r"(?<=\S)\n(?=\w)", " ", doc)


def describe(run: RunView) -> str:
    """Return the state of *run* as a sentence."""
    row, attempt = run.row, f"attempt {run.row.attempts} of {run.row.max_attempts}"
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
                f"Its worker {row.locked_by} was lost in {attempt}: the lease ended {lost}. The "
                "next tick reclaims the run."
            )
        case "running":
            asked = " It was asked to stop." if run.cancel_requested_at else ""
            begun = since(row.started_at, run.now)
            return f"It is running on {row.locked_by}, {attempt}, started {begun}.{asked}"
        case "succeeded":
            return f"It succeeded {ended}, in {attempt}."
        case "failed":
            return f"{attempt.capitalize()} failed, and it will be retried. {_waiting(run)}"
        case "dead":
            return f"It gave up {ended}, after {attempt}."
        case "cancelled":
            return f"It was cancelled {ended}."
        case "skipped":
            return f"Its slot was skipped {ended}."


def error_of(run: RunView) -> str:
    """Return the error that ended the latest attempt or the run, cut; empty if there is none."""
    row = run.row
    if row.status in ("queued", "running", "succeeded") or row.error_type == "Snooze":
        return ""
    kind = row.error_type if row.status in ("failed", "dead") else None
    return cut(": ".join(str(part) for part in (kind, run.last_error) if part), _LONGEST_ERROR)


def _waiting(run: RunView) -> str:
    """Return why *run* waits."""
    return " ".join(f"It waits {wait.what}." for wait in run.waits)


@lru_cache(maxsize=64)
def _day(moment: datetime, zone: str) -> date:
    return in_zone(moment, _zone(zone)).date()


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    """Return the zone *name*; UTC if it does not exist."""
    try:
        return parse_zone(name)
    except ScheduleError:
        return timezone.utc
