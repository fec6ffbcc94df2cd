"""Parse cron texts and zone names.

An error says what to write instead.

Only the part of Debian's crontab(5) on which most crons agree is accepted. This module uses no
clock, and of the calendar it knows only the lengths of the months.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timezone, tzinfo
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from ..errors import ScheduleError

MAX_CHARACTERS = 200

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron(NamedTuple):
    """A parsed cron text: the values of each field, ascending, and the rules that it implies."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    """0 is Sunday, 6 is Saturday."""
    follows_clock: bool
    """The minute or hour field starts with ``*``: at a clock change, repeated times run twice, and
    skipped times do not run."""
    either_day: bool
    """If true, a day matches by day-of-month or day-of-week; if false, both must match."""

    @property
    def any_date(self) -> bool:
        """Whether every day matches."""
        return (len(self.days), len(self.months), len(self.weekdays)) == (31, 12, 7)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    size: int
    names: Mapping[str, int] = MappingProxyType({})

    @property
    def top(self) -> int:
        return self.low + self.size - 1


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS = (
    _Field("minute", 0, 59, 60),
    _Field("hour", 0, 23, 24),
    _Field("day-of-month", 1, 31, 31),
    _Field("month", 1, 12, 12, dict(zip(_MONTHS, range(1, 13), strict=True))),
    _Field("day-of-week", 0, 7, 7, dict(zip(_WEEKDAYS, range(7), strict=True))),
)
_LONGEST = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))

_ALL_DAYS = tuple(range(1, 32))
_ZONE_NAME = r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}"
_OFFSET = r"(?i)(?:GMT|UTC) ?([+-])0?([0-9]{1,2})(?::?00)?"

#: Characters that word processors and chats substitute for a hyphen: dashes and a minus.
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"

# Syntax of other crons that this one refuses, and what to write instead.
_HINTS = (
    (r".*\?", "Write '*' for every day."),
    (r".*#", "Write the weekday alone and let the task check the day of the month."),
    (r"\d*l(-?\d+|w)?$", "Write '28-31' and let the task check whether it is the last day."),
    (r"(\d+w|w\d+)$", "Write '1-5' in day-of-week, or let the task check the weekday."),
    (r"[hr]\b|.*~", "Write a number of your choice: random and hashed values are not supported."),
)


def parse_cron(text: object) -> Cron:
    """Parse a cron text.

    1. Accept only a `str` of at most 200 printable ASCII characters.
    2. Replace an alias by its five fields.
    3. Parse each field, then check that some date matches.

    :param text: five fields separated by spaces or tabs, or one of `ALIASES`, in upper or
        lower case.
    :returns: the values of the fields.
    :raises ScheduleError: for anything else; the message quotes it and says what to write.
    """
    if not isinstance(text, str):
        raise ScheduleError(
            f"A schedule is a string, but this is of type {type(text).__name__}."
            " Write five fields such as '0 7 * * 1-5'."
        )
    try:
        return _read(_split(text))
    except ScheduleError as error:
        raise ScheduleError(f"The schedule {_quoted(text)} cannot be used: {error}") from None


def parse_zone(name: object) -> tzinfo:
    """Find a time zone by its name.

    :param name: a name of the tz database; ``"UTC"`` works without one, for small containers.
    :returns: the zone.
    :raises ScheduleError: there is no such zone; the message may suggest one.
    """
    if not isinstance(name, str):
        raise ScheduleError(
            f"A time zone is given by name, but this is of type {type(name).__name__}."
            " Write an IANA name such as 'Europe/Berlin'."
        )
    if name == "UTC":
        return timezone.utc
    from zoneinfo import ZoneInfo  # Here, since many apps have no other zone.

    try:
        if re.fullmatch(_ZONE_NAME, name):
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # no file; not a zone; a directory
        pass
    raise ScheduleError(f"There is no time zone {_quoted(name)}. {_zone_hint(name)}")


def _zone_hint(name: str) -> str:
    from zoneinfo import available_timezones

    zones = available_timezones()
    if not zones:
        return "This machine has no tz database: install it with pip install tzdata."
    if offset := re.fullmatch(_OFFSET, name.strip()):
        ahead, hours = offset[1] == "+", int(offset[2])
        zone = f"Etc/GMT{'-' if ahead else '+'}{hours}"
        if zone in zones:
            return (
                f"Write a place such as 'Europe/Berlin', which knows when clocks change; or "
                f"'{zone}' for always {hours} h {'ahead of' if ahead else 'behind'} UTC: in such "
                "names the sign is reversed."
            )
    suffix = "/" + name.strip().lower().replace(" ", "_")
    for zone in sorted(sorted(zones), key=len):
        if len(suffix) > 1 and f"/{zone.lower()}".endswith(suffix):
            return f"Write '{zone}'."
    return "Write an IANA name such as 'Europe/Berlin'."


def _quoted(text: str) -> str:
    return ascii(text) if len(text) <= 60 else ascii(text[:40]) + "..."


def _split(text: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        _refuse(
            f"it has {len(text)} characters, and at most {MAX_CHARACTERS} are allowed",
            "Write ranges (1-5) and steps (*/10), or several schedules.",
        )
    for char in text:
        if not (" " <= char <= "~" or char == "\t"):
            if char in _DASHES:
                _refuse(f"it contains {char!a}, a dash", "Write '-', as in '1-5'.")
            _refuse(f"it contains {char!a}", "Write one line of plain ASCII characters.")
    words = text.split()
    if zone := re.match(r"(?:CRON_)?TZ=(\S*)", words[0] if words else "", re.IGNORECASE):
        _refuse("it begins with a time zone", f"Give it separately: timezone={zone[1]!r}.")
    if words and words[0].startswith("@"):
        words = _alias(" ".join(words)).split()
    if len(words) != len(_FIELDS):
        names = " ".join(field.name for field in _FIELDS)
        is_long = len(words) > len(_FIELDS)
        extra = "; seconds, years and commands are not supported" if is_long else ""
        _refuse(f"it has {len(words)} fields{extra}", f"Write five: {names}.")
    return words


def _alias(text: str) -> str:
    if text.lower() not in ALIASES:
        reboot = "To run something at start-up, enqueue it there. " if "reboot" in text else ""
        _refuse(
            f"there is no alias {_quoted(text)}",
            f"{reboot}Write five fields, or one of {' '.join(ALIASES)}.",
        )
    return ALIASES[text.lower()]


def _read(words: list[str]) -> Cron:
    minute, hour, day, _, weekday = words
    minutes, hours, days, months, weekdays = map(_values, _FIELDS, words)
    cron = Cron(
        minutes,
        hours,
        days,
        months,
        tuple(sorted({value % 7 for value in weekdays})),
        follows_clock=minute.startswith("*") or hour.startswith("*"),
        either_day=not (day.startswith("*") or weekday.startswith("*")),
    )
    return _simplified(cron)


def _simplified(cron: Cron) -> Cron:
    """Simplify "either kind of day" where one kind matches every day or no day.

    :raises ScheduleError: no date matches.
    """
    longest = max(_LONGEST[month] for month in cron.months)
    if cron.either_day and (len(cron.days) == 31 or len(cron.weekdays) == 7):
        return cron._replace(days=_ALL_DAYS, weekdays=tuple(range(7)), either_day=False)
    is_possible = cron.days[0] <= longest
    if not is_possible and not cron.either_day:
        months = ",".join(_MONTHS[month - 1] for month in cron.months)
        _refuse(
            f"its date never comes, because there is no day {cron.days[0]} in {months}",
            f"Write a day from 1 to {longest}, or another month.",
        )
    return cron if is_possible else cron._replace(days=_ALL_DAYS, either_day=False)


def _values(field: _Field, word: str) -> tuple[int, ...]:
    return tuple(sorted({value for term in word.split(",") for value in _term(field, term)}))


def _term(field: _Field, term: str) -> range:
    base, slash, tail = term.partition("/")
    if base == "*":
        first, last = field.low, field.top
    elif "-" in base:
        first, last = (_number(field, term, part) for part in base.split("-", 1))
    else:
        first = last = _number(field, term, base)
    step = _step(field, term, tail) if slash else 1
    if first > last:
        advice = f"Write two ranges, as in '{_span(first, field.top)},{_span(field.low, last)}'."
        _refuse_term(field, term, "a range that runs backward", advice)
    if slash and base.isalnum():
        instead = f"{first}-{field.top}/{step}" if first + step <= field.top else f"{first}"
        _refuse_term(field, term, "a step on a single number", f"Write '{instead}'.")
    return range(first, last + 1, step)


def _number(field: _Field, term: str, word: str) -> int:
    if word.lower() in field.names:
        return field.names[word.lower()]
    if not word.isdigit():
        _refuse_term(field, term, "which is not understood", _hint(field, term, word))
    if not field.low <= int(word) <= field.high:
        advice = f"Write a number from {field.low} to {field.high}."
        _refuse_term(field, term, "which is out of range", advice)
    return int(word)


def _step(field: _Field, term: str, word: str) -> int:
    if not word.isdigit() or not 1 <= int(word) <= field.size:
        problem = f"whose step is not a number from 1 to {field.size}"
        _refuse_term(field, term, problem, "Write one that is, as in '*/2'.")
    return int(word)


def _hint(field: _Field, term: str, word: str) -> str:
    for pattern, hint in _HINTS:
        if re.match(pattern, term.lower()):
            return hint
    if word[:3].lower() in field.names and word.isalpha():
        return f"Write '{word[:3].lower()}'."
    if not word and "-" not in term and "/" not in term:
        return "Take out the comma, or write a number next to it."
    names = f", names ({' '.join(field.names)})" if field.names else ""
    return (
        f"Write '*', numbers from {field.low} to {field.high}{names}, ranges (1-5) or steps (*/2)."
    )


def _span(first: int, last: int) -> str:
    return f"{first}-{last}" if first < last else f"{last}"


def _refuse_term(field: _Field, term: str, problem: str, instead: str) -> NoReturn:
    _refuse(f"the {field.name} field says {_quoted(term)}, {problem}", instead)


def _refuse(problem: str, instead: str) -> NoReturn:
    raise ScheduleError(f"{problem}. {instead}")
