"""Read ``CRONJOBS_*`` from ``app.config`` into one typed, frozen object."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeGuard, cast
from urllib.parse import urlsplit

from .errors import ConfigError, ScheduleError, TaskError
from .schedule.cron_text import parse_zone
from .text import similar_names
from .text.redaction import SECRET_NAMES

PREFIX = "CRONJOBS_"
MINUTE = 60.0
DAY = 86400.0
#: A token as RFC 6750 defines it; werkzeug does not parse others as tokens.
_BEARER = r"[A-Za-z0-9._~+/-]+=*"


@dataclass(eq=False, frozen=True)
class Kind:
    """The kind of values that a setting or an option accepts.

    :ivar fits: returns whether a value is accepted.
    :ivar wanted: describes the accepted values to people.
    :ivar is_secret: whether messages must not contain the value.
    :ivar hint: returns a sentence about a refused value, or an empty text.
    :ivar read: converts an accepted value to the stored one; None stores it unchanged.
    """

    fits: Callable[[object], object]
    wanted: str
    is_secret: bool = False
    read: Callable[[Any], Any] | None = None
    hint: Callable[[object], str] | None = None

    def check(
        self, name: str, value: object, error: Callable[[str], Exception] = TaskError
    ) -> None:
        """Check that *value* of the option *name* is accepted.

        :param error: the exception to raise.
        :raises TaskError: it is not accepted, and *error* names no other exception.
        """
        if not self.fits(value):
            value_text = "not valid" if self.is_secret else repr(value)
            hint = "" if self.hint is None else self.hint(value)
            raise error(f"{name} is {value_text}. Give {self.wanted}.{hint}")


def is_number(value: object, least: float, most: float) -> TypeGuard[float]:
    """Return whether *value* is a number in this range; True and False do not count as numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return least <= value <= most


def is_url(value: object) -> TypeGuard[str]:
    """Return whether *value* can be the URL of a monitor."""
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        return False
    try:
        return bool(urlsplit(value).hostname) and value.isprintable() and " " not in value
    except ValueError:
        return False


def in_seconds(duration: Any) -> Any:
    """Return a `timedelta` as a number of seconds, and any other value unchanged."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def whole(least: int, most: int) -> Kind:
    """Return the kind of whole numbers in this range."""
    return Kind(
        lambda value: isinstance(value, int) and is_number(value, least, most),
        f"a whole number from {least} to {most}",
    )


def choice(*values: object) -> Kind:
    """Return the kind that accepts only these *values*."""
    return Kind(lambda value: value in values, f"one of {', '.join(map(repr, values))}")


def _seconds(least: float, most: float, why: str = "") -> Kind:
    return Kind(
        lambda value: is_number(in_seconds(value), least, most),
        f"a number of seconds from {least:.12g} to {most:.12g}{why}",
        read=lambda value: float(in_seconds(value)),
    )


def _is_zone(value: Any) -> bool:
    try:
        parse_zone(value)
    except ScheduleError:
        return False
    return True


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and value == "/" + value.strip("/")


def _is_token(value: Any) -> bool:
    return isinstance(value, str) and len(value) >= 16 and bool(re.fullmatch(_BEARER, value))


def _are_names(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Collection):
        return False
    names = cast("Collection[object]", value)
    return all(isinstance(name, str) and name.strip("-_ ") for name in names)


def _are_executors(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    queues = cast("Mapping[object, object]", value)
    return all(
        isinstance(queue, str) and queue and executor == "celery"
        for queue, executor in queues.items()
    )


def _or_none(kind: Kind) -> Kind:
    def fits(value: object) -> object:
        return value is None or kind.fits(value)

    return replace(kind, fits=fits, wanted=f"{kind.wanted}, or None")


def _setting(kind: Kind, default: Any) -> Any:
    """Return the field of a setting."""
    return field(default_factory=lambda: default, metadata={"kind": kind})


FLAG = Kind(lambda value: isinstance(value, bool), "True or False")
_ZONE = Kind(_is_zone, "the name of a time zone, such as 'Europe/Berlin'", read=str)
_PATH = Kind(_is_path, "a path such as '/jobs'")
_TOKEN = Kind(
    _is_token,
    "a string for a bearer header, 16 or more of A-Z a-z 0-9 - . _ ~ + / (= only at the end)",
    is_secret=True,
)
# Anybody who knows the URL could ping in the app's name.
_URL = Kind(is_url, "a URL that starts with http:// or https://, without spaces", is_secret=True)
_NAMES = Kind(_are_names, "a list of strings", read=lambda names: tuple(map(str.lower, names)))
_EXECUTORS = Kind(
    _are_executors,
    "queues and their executor, such as {'reports': 'celery'}: the names of queues, each with "
    "'celery'",
    is_secret=True,  # A wrong value may be a URL with a password.
    read=dict,
)


@dataclass(eq=False, frozen=True, repr=False)  # Some values are secrets.
class Settings:
    """An app's ``CRONJOBS_*`` values. Durations are in seconds.

    In ``app.config``, give a duration as a number of seconds or as a `timedelta`.
    """

    timezone: str = _setting(_ZONE, "UTC")
    """``CRONJOBS_TIMEZONE``: the time zone of schedules that name none."""

    max_attempts: int = _setting(whole(1, 1000), 10)
    """``CRONJOBS_MAX_ATTEMPTS``: how many attempts a run has, unless its task says otherwise."""

    lease: float = _setting(_seconds(2, 86400), 120.0)
    """``CRONJOBS_LEASE``: how long a claim holds without a heartbeat. At least four heartbeats are
    sent in this time."""

    timeout: float = _setting(_seconds(0.05, 30 * DAY), 3600.0)
    """``CRONJOBS_TIMEOUT``: how long a handler may run, unless its task says otherwise."""

    shutdown_grace: float = _setting(_seconds(0, 3600), 20.0)
    """``CRONJOBS_SHUTDOWN_GRACE``: how long a handler may continue after SIGTERM before it is
    interrupted; and how long an interrupted handler may take to end before its process is ended (at
    least 1 s, and at most 5 s if the worker is stopping)."""

    tick_budget: float = _setting(_seconds(0.1, 86400), 50.0)
    """``CRONJOBS_TICK_BUDGET``: for how long a tick claims runs."""

    workers: int = _setting(whole(1, 64), 1)
    """``CRONJOBS_WORKERS``: how many worker processes a tick runs."""

    work_in_debug: bool = _setting(FLAG, False)
    """``CRONJOBS_WORK_IN_DEBUG``: whether ``flask run --debug`` starts ``flask jobs work`` beside
    the server, and restarts it when code changes."""

    async_at_once: int = _setting(whole(1, 1000), 10)
    """``CRONJOBS_ASYNC_AT_ONCE``: how many ``async def`` handlers one worker process runs at once.
    Each may hold a connection while it waits, and SQLAlchemy's pool has 15 by default."""

    retention: float = _setting(_seconds(0, 3650 * DAY), 14 * DAY)
    """``CRONJOBS_RETENTION``: how long succeeded, cancelled and skipped runs are kept."""

    retention_dead: float = _setting(_seconds(0, 3650 * DAY), 90 * DAY)
    """``CRONJOBS_RETENTION_DEAD``: how long dead runs are kept."""

    max_payload_bytes: int = _setting(whole(64, 64 * 1024 * 1024), 64 * 1024)
    """``CRONJOBS_MAX_PAYLOAD_BYTES``: how large a payload or a kept result may be, as JSON."""

    health_tick_age: float = _setting(
        _seconds(MINUTE, 30 * DAY, ": ticks come once a minute"), 3 * MINUTE
    )
    """``CRONJOBS_HEALTH_TICK_AGE``: after this long without a tick, health answers 503. It is at
    least 60, since ticks come once a minute."""

    health_overdue: float = _setting(_seconds(1, 30 * DAY), 10 * MINUTE)
    """``CRONJOBS_HEALTH_OVERDUE``: if a run that could run has waited longer than this, health
    answers 503."""

    url_prefix: str | None = _setting(_or_none(_PATH), "/jobs")
    """``CRONJOBS_URL_PREFIX``: the path of the pages; with ``None`` there are none."""

    tick_token: str | None = _setting(_or_none(_TOKEN), None)
    """``CRONJOBS_TICK_TOKEN``: the bearer token of ``<prefix>/tick``; ``None`` disables it."""

    ping_url: str | None = _setting(_or_none(_URL), None)
    """``CRONJOBS_PING_URL``: fetched after each tick, so that a monitor notices missing ticks."""

    alert_url: str | None = _setting(_or_none(_URL), None)
    """``CRONJOBS_ALERT_URL``: a webhook to which ticks report what begins to need attention, and
    what no longer does."""

    redact: tuple[str, ...] = _setting(_NAMES, SECRET_NAMES)
    """``CRONJOBS_REDACT``: payload keys whose values no page shows; a part of the key is enough.
    Case, ``-`` and ``_`` are ignored."""

    show_payload: bool = _setting(FLAG, False)
    """``CRONJOBS_SHOW_PAYLOAD``: whether pages show payloads, results, stacks and outputs."""

    keep_output: bool = _setting(FLAG, False)
    """``CRONJOBS_KEEP_OUTPUT``: whether to keep the last 64 kB of what a handler prints and logs,
    unless its task says otherwise."""

    executors: Mapping[str, str] = _setting(_EXECUTORS, {})
    """``CRONJOBS_EXECUTORS``: queues whose runs Celery executes, each with ``"celery"``. Runs of
    all other queues are executed here."""

    handed_limit: int = _setting(whole(1, 100_000), 100)
    """``CRONJOBS_HANDED_LIMIT``: how many runs of a queue may wait in Celery's broker."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings of an app.

    :param config: ``app.config``.
    :raises ConfigError: a value is not valid, or a ``CRONJOBS_`` name does not exist.
    """
    settings_by_key = {PREFIX + setting.name.upper(): setting for setting in fields(Settings)}
    values = {key: value for key, value in config.items() if key.startswith(PREFIX)}
    for key in values.keys() - settings_by_key.keys():
        # All settings have the same prefix, so compare the rest.
        names = [setting.removeprefix(PREFIX) for setting in settings_by_key]
        close = similar_names(key.removeprefix(PREFIX), names)
        hint = f"Did you mean {PREFIX}{close[0]}? " if close else ""
        raise ConfigError(
            f"{key} is not a setting of Flask-CronJobs. {hint}"
            f"The settings are: {', '.join(settings_by_key)}."
        )
    return Settings(
        **{
            settings_by_key[key].name: _read(settings_by_key[key], key, value)
            for key, value in values.items()
        }
    )


def _read(setting: Field[Any], key: str, value: object) -> Any:
    kind: Kind = setting.metadata["kind"]
    hint: Callable[[object], str] = partial(_from_environment, kind)
    replace(kind, hint=hint).check(key, value, ConfigError)
    return value if kind.read is None else kind.read(value)


#: Words that people write in the environment, the JSON for them, and its value.
_WORDS: tuple[tuple[str, str, object], ...] = (
    ("true yes on 1", "true", True),
    ("false no off 0", "false", False),
    ("none null", "null", None),
)


def _from_environment(kind: Kind, value: object) -> str:
    """Return a sentence on what to write in the environment instead of *value*.

    ``from_prefixed_env`` parses each value as JSON; a value that is not JSON stays a text.
    """
    word = str(value).strip().lower()
    for words, json_word, json_value in _WORDS:
        if word in words.split() and kind.fits(json_value):
            return f" In the environment, write {json_word}."
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", word):
        number = float(word) if "." in word else int(word)
        if kind.fits(number):
            return " It is a string: convert it to a number, or read it with from_prefixed_env()."
    if is_number(value, 0, float("inf")) and kind.fits(str(value)):
        return " It is a number: in the environment, put it in double quotes."
    return ""
