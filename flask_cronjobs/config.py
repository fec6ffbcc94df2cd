"""Read ``CRONJOBS_*`` from ``app.config`` into one typed, frozen object."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, cast

from .errors import ConfigError, ScheduleError
from .schedule.cron_text import parse_zone
from .text import SECRET_NAMES, similar_names
from .types import is_url, is_whole

PREFIX = "CRONJOBS_"
MINUTE = 60.0
DAY = 86400.0
#: A token by RFC 6750; werkzeug does not parse others as tokens.
_BEARER = r"[A-Za-z0-9._~+/-]+=*"


@dataclass(frozen=True, repr=False)  # Some values are secrets.
class Settings:
    """An app's ``CRONJOBS_*`` values. Durations are in seconds.

    In ``app.config``, give a duration as a number of seconds or as a `timedelta`.
    """

    timezone: str = "UTC"
    """``CRONJOBS_TIMEZONE``: the time zone of schedules that name none."""

    max_attempts: int = 10
    """``CRONJOBS_MAX_ATTEMPTS``: how many attempts, where a task does not say."""

    lease: float = 120.0
    """``CRONJOBS_LEASE``: how long a claim holds without a heartbeat; one comes each quarter."""

    timeout: float = 3600.0
    """``CRONJOBS_TIMEOUT``: how long a handler may run, where its task does not say."""

    shutdown_grace: float = 20.0
    """``CRONJOBS_SHUTDOWN_GRACE``: how long a handler may go on after SIGTERM, and again after
    it was interrupted (then at least a second), before its process is ended."""

    tick_budget: float = 50.0
    """``CRONJOBS_TICK_BUDGET``: for how long a tick claims runs."""

    workers: int = 1
    """``CRONJOBS_WORKERS``: how many worker processes a tick runs."""

    work_in_debug: bool = False
    """``CRONJOBS_WORK_IN_DEBUG``: whether ``flask run --debug`` starts ``flask jobs work`` beside
    the server, and anew when code changes."""

    async_at_once: int = 10
    """``CRONJOBS_ASYNC_AT_ONCE``: how many ``async def`` handlers one worker process runs at once.
    Each may hold a connection while it waits, and SQLAlchemy's pool has 15 by default."""

    retention: float = 14 * DAY
    """``CRONJOBS_RETENTION``: how long succeeded, cancelled and skipped runs are kept."""

    retention_dead: float = 90 * DAY
    """``CRONJOBS_RETENTION_DEAD``: how long dead runs are kept."""

    max_payload_bytes: int = 64 * 1024
    """``CRONJOBS_MAX_PAYLOAD_BYTES``: how large a payload or a kept result may be, as JSON."""

    health_tick_age: float = 3 * MINUTE
    """``CRONJOBS_HEALTH_TICK_AGE``: without a tick for this long, health answers 503.
    At least 60, since ticks come once a minute."""

    health_overdue: float = 10 * MINUTE
    """``CRONJOBS_HEALTH_OVERDUE``: with a run overdue for this long, health answers 503."""

    url_prefix: str | None = "/jobs"
    """``CRONJOBS_URL_PREFIX``: the path of the pages; with ``None`` there are none."""

    tick_token: str | None = None
    """``CRONJOBS_TICK_TOKEN``: the bearer token of ``<prefix>/tick``; ``None`` disables it."""

    ping_url: str | None = None
    """``CRONJOBS_PING_URL``: fetched after each tick, so that a monitor notices missing ticks."""

    redact: tuple[str, ...] = SECRET_NAMES
    """``CRONJOBS_REDACT``: payload keys whose values no page shows; a part of the key is enough.
    Case, ``-`` and ``_`` are ignored."""

    show_payload: bool = False
    """``CRONJOBS_SHOW_PAYLOAD``: whether pages show payloads, results, stacks and outputs."""

    keep_output: bool = False
    """``CRONJOBS_KEEP_OUTPUT``: whether to keep the last 64 kB of what a handler prints and logs,
    where its task does not say."""

    executors: Mapping[str, object] = field(default_factory=dict[str, object])
    """``CRONJOBS_EXECUTORS``: queues whose runs an executor executes, each with ``"celery"``,
    ``"rq"`` or an `~flask_cronjobs.executors.Executor`. Runs of all other queues are executed
    here."""

    handed_limit: int = 100
    """``CRONJOBS_HANDED_LIMIT``: how many runs of a queue may wait in an executor's broker."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings of an app.

    :param config: ``app.config``.
    :raises ConfigError: a value is not valid, or a ``CRONJOBS_`` name does not exist.
    """
    known = {PREFIX + field.name.upper(): field.name for field in fields(Settings)}
    given = {key: value for key, value in config.items() if key.startswith(PREFIX)}
    for key in given.keys() - known.keys():
        # All of them begin alike, so that a low cutoff would suggest any.
        close = similar_names(key, list(known), most=1, cutoff=0.85)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"{key} is not a setting of Flask-CronJobs. {hint}There are: {', '.join(known)}."
        )
    values = {known[key]: _CHECKS[known[key]](key, value) for key, value in given.items()}
    return Settings(**values)


def _refuse(key: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{key} is {value!r}. Give {wanted}.")


def _seconds(least: float, most: float, why: str = "") -> Callable[[str, Any], float]:
    def check(key: str, value: Any) -> float:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise _refuse(key, value, "a number of seconds or a timedelta")
        if not least <= seconds <= most:
            raise _refuse(key, value, f"seconds from {least:.12g} to {most:.12g}{why}")
        return float(seconds)

    return check


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def check(key: str, value: Any) -> int:
        if not is_whole(value, least, most):
            raise _refuse(key, value, f"a whole number from {least} to {most}")
        return value

    return check


def _zone(key: str, value: Any) -> str:
    try:
        parse_zone(value)
    except ScheduleError:
        raise _refuse(key, value, "the name of a time zone, such as 'Europe/Berlin'") from None
    return str(value)


def _prefix(key: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith("/") or value != "/" + value.strip("/"):
        raise _refuse(key, value, "a path such as '/jobs', or None for no pages")
    return value


def _token(key: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) < 16 or not re.fullmatch(_BEARER, value):
        # The value itself stays out of the message: it is a secret.
        raise ConfigError(
            f"{key} is too short, or not a text for a bearer header. Give 16 or more of "
            "A-Z a-z 0-9 - . _ ~ + / (and = only at the end), or None."
        )
    return value


def _url(key: str, value: Any) -> str | None:
    if value is None:
        return None
    if not is_url(value):
        # This value stays out as well: whoever knows the URL can ping for the app.
        raise ConfigError(
            f"{key} is not a URL. Give one that starts with http:// or https://, or None."
        )
    return value


def _names(key: str, value: Any) -> tuple[str, ...]:
    wanted = "a list of texts"
    if isinstance(value, str) or not isinstance(value, Collection):
        raise _refuse(key, cast("object", value), wanted)
    names = cast("Collection[object]", value)
    if not all(isinstance(name, str) and name.strip("-_ ") for name in names):
        raise _refuse(key, names, wanted)
    return tuple(str(name).lower() for name in names)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(key, value, "True or False")
    return value


def _executors(key: str, value: Any) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{key} is a {type(value).__name__}. Give queues and their executors, such as "
            "{'reports': 'celery'}."
        )
    for queue, executor in cast("Mapping[object, object]", value).items():
        if not (isinstance(queue, str) and queue and _is_executor(executor)):
            # The executor stays out of the message: it may be a URL with a password.
            raise ConfigError(
                f"{key} has for {queue!r} a {type(executor).__name__} that is no executor. "
                "Give the name of a queue, and 'celery', 'rq' or an object of a subclass of "
                "flask_cronjobs.executors.Executor."
            )
    return dict(cast("Mapping[str, object]", value))


def _is_executor(value: object) -> bool:
    """Return whether *value* can take runs, or is the name of a module of ours that can.

    The name of an executor becomes a part of tokens.
    """
    if isinstance(value, str):
        return value.isidentifier() and find_spec(f"{__package__}.executors.{value}") is not None
    name: object = getattr(value, "name", None)
    is_name = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) is not None
    return is_name and callable(getattr(value, "send", None))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "timezone": _zone,
    "max_attempts": _whole(1, 1000),
    "lease": _seconds(2, 86400),
    "timeout": _seconds(0.05, 30 * DAY),
    "shutdown_grace": _seconds(0, 3600),
    "tick_budget": _seconds(0.1, 86400),
    "workers": _whole(1, 64),
    "work_in_debug": _flag,
    "async_at_once": _whole(1, 1000),
    "retention": _seconds(0, 3650 * DAY),
    "retention_dead": _seconds(0, 3650 * DAY),
    "max_payload_bytes": _whole(64, 64 * 1024 * 1024),
    # With less, health would be late between two ticks.
    "health_tick_age": _seconds(MINUTE, 30 * DAY, ": ticks come once a minute"),
    "health_overdue": _seconds(1, 30 * DAY),
    "url_prefix": _prefix,
    "tick_token": _token,
    "ping_url": _url,
    "redact": _names,
    "show_payload": _flag,
    "keep_output": _flag,
    "executors": _executors,
    "handed_limit": _whole(1, 100_000),
}
