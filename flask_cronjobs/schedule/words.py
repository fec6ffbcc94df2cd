"""Say in words when a schedule runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cron_text import Cron, parse_cron

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "", "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
#: Up to so many times of a day are listed one by one.
_TIMES = 6


def in_words(cron: str) -> str:
    """Return when *cron* runs, such as ``at 07:00, on Monday to Friday``.

    :raises ScheduleError: it cannot be read.
    """
    parsed = parse_cron(cron)
    times, dates = _times(parsed), _dates(parsed)
    if dates:
        return f"{times}, {dates}"
    return f"every day {times}" if times.startswith("at ") else times


def _times(cron: Cron) -> str:
    minutes, hours = cron.minutes, cron.hours
    if len(hours) == 24:
        return _minutes(minutes)
    if len(minutes) * len(hours) <= _TIMES:
        return f"at {_list([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    first, last = f"{hours[0]:02}:{minutes[0]:02}", f"{hours[-1]:02}:{minutes[-1]:02}"
    if _is_range(hours):
        every = "every hour" if len(minutes) == 1 else _minutes(minutes)
        return f"{every} from {first} to {last}"
    if len(minutes) == 1 and (step := _step(hours, 24)):
        return f"every {step} hours" + ("" if first == "00:00" else f" from {first} on")
    every = f"at minute {minutes[0]}" if len(minutes) == 1 else _minutes(minutes)
    return f"{every} of the hours {_spans(hours, str)}"


def _minutes(minutes: Sequence[int]) -> str:
    step = _step(minutes, 60)
    if step:
        every = "every minute" if step == 1 else f"every {step} minutes"
        return every + (f" from minute {minutes[0]} on" if minutes[0] else "")
    if len(minutes) == 1:
        return "every hour" + (f" at minute {minutes[0]}" if minutes[0] else "")
    return f"every hour at the minutes {_spans(minutes, str)}"


def _dates(cron: Cron) -> str:
    months = "" if len(cron.months) == 12 else _spans(cron.months, _MONTHS.__getitem__)
    weekdays = "" if len(cron.weekdays) == 7 else f"on {_spans(_from_monday(cron), _weekday)}"
    if len(cron.days) == 31:
        return " ".join(part for part in (weekdays, months and f"in {months}") if part)
    number = "day" if len(cron.days) == 1 else "the days"
    days = f"on {number} {_spans(cron.days, str)} of {months or 'the month'}"
    if not weekdays:
        return days
    if not cron.either_day:
        return f"{days}, but only {weekdays}"
    return f"{days} or {weekdays}" + (f" in {months}" if months else "")


def _from_monday(cron: Cron) -> list[int]:
    """Return the weekdays with Sunday as 7 at the end, so that a weekend is a span."""
    return sorted(day or 7 for day in cron.weekdays)


def _weekday(day: int) -> str:
    return _DAYS[day % 7]


def _step(values: Sequence[int], size: int) -> int:
    """Return the step of *values* that goes on from the end of *size* to its start; 0 if none."""
    if len(values) < 2:
        return 0
    step = values[1] - values[0]
    regular = size % step == 0 and list(values) == list(range(values[0] % step, size, step))
    return step if regular else 0


def _is_range(values: Sequence[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1


def _spans(values: Sequence[int], name: Callable[[int], str]) -> str:
    """Return *values* as a list, three or more in a row as ``1 to 5``."""
    found: list[str] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end] == values[end - 1] + 1:
            continue
        run = values[start:end]
        found += [f"{name(run[0])} to {name(run[-1])}"] if len(run) > 2 else map(name, run)
        start = end
    return _list(found)


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
