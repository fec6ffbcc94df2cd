"""``CRONJOBS_*``: read once, and a bad value fails there, by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from werkzeug.datastructures import Authorization

from flask_cronjobs import ConfigError
from flask_cronjobs.config import Settings, read_settings

TOKEN = "sixteen-characters~and.more_+/=="


def test_nothing_given_is_the_defaults() -> None:
    assert read_settings({}) == Settings()


def test_other_keys_of_the_app_are_not_read() -> None:
    assert read_settings({"SECRET_KEY": "x", "CRONJOB_LEASE": "typo of another"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("TIMEZONE", "Europe/Berlin", "Europe/Berlin"),
        ("MAX_ATTEMPTS", 3, 3),
        ("LEASE", 60, 60.0),
        ("LEASE", timedelta(minutes=5), 300.0),
        ("TIMEOUT", 0.5, 0.5),
        ("SHUTDOWN_GRACE", 0, 0.0),
        ("TICK_BUDGET", timedelta(seconds=30), 30.0),
        ("WORKERS", 4, 4),
        ("ASYNC_AT_ONCE", 50, 50),
        ("RETENTION", timedelta(days=1), 86400.0),
        ("RETENTION_DEAD", timedelta(days=2), 172800.0),
        ("MAX_PAYLOAD_BYTES", 1000, 1000),
        ("HEALTH_TICK_AGE", 60, 60.0),
        ("HEALTH_OVERDUE", 60, 60.0),
        ("URL_PREFIX", "/admin/jobs", "/admin/jobs"),
        ("URL_PREFIX", None, None),
        ("TICK_TOKEN", TOKEN, TOKEN),
        ("TICK_TOKEN", None, None),
        ("PING_URL", "https://example.com/x", "https://example.com/x"),
        ("REDACT", ["Password", "PIN"], ("password", "pin")),
        ("SHOW_PAYLOAD", True, True),
    ],
)
def test_value_is_read(name: str, value: Any, kept: Any) -> None:
    settings = read_settings({f"CRONJOBS_{name}": value})
    assert getattr(settings, name.lower()) == kept
    assert type(getattr(settings, name.lower())) is type(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEZONE", "Berlin"),
        ("TIMEZONE", None),
        ("TIMEZONE", "../../etc/passwd"),
        ("MAX_ATTEMPTS", 0),
        ("MAX_ATTEMPTS", "10"),
        ("MAX_ATTEMPTS", True),
        ("LEASE", 1),
        ("LEASE", "120"),
        ("LEASE", float("nan")),
        ("LEASE", True),
        ("TIMEOUT", 0),
        ("TIMEOUT", float("inf")),
        ("SHUTDOWN_GRACE", -1),
        ("TICK_BUDGET", 0),
        ("WORKERS", 0),
        ("WORKERS", 2.0),
        ("RETENTION", -1),
        ("MAX_PAYLOAD_BYTES", 0),
        ("URL_PREFIX", ""),
        ("URL_PREFIX", "jobs"),
        ("URL_PREFIX", "/jobs/"),
        ("TICK_TOKEN", "short"),
        ("TICK_TOKEN", "é" * 20),
        ("TICK_TOKEN", "k=vvvvvvvvvvvvvvvv"),
        ("TICK_TOKEN", "spaces and as long as is wanted"),
        ("TICK_TOKEN", " " * 20),
        ("TICK_TOKEN", "read-from-a-file-as-it-is\n"),
        ("TICK_TOKEN", "with,commas,and;semicolons"),
        ("TICK_TOKEN", "=" * 20),
        ("TICK_TOKEN", b"bytes-are-no-text-here"),
        ("PING_URL", "ftp://example.com"),
        ("PING_URL", "example.com"),
        ("REDACT", "password"),
        ("REDACT", [""]),
        ("REDACT", ["-_ "]),
        ("REDACT", [1]),
        ("REDACT", 5),
        ("SHOW_PAYLOAD", 1),
        ("SHOW_PAYLOAD", "yes"),
    ],
)
def test_value_that_cannot_be_right_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^CRONJOBS_{name} is .*Give "):
        read_settings({f"CRONJOBS_{name}": value})


@pytest.mark.parametrize(
    ("name", "value"), [("TICK_TOKEN", "hunter2"), ("PING_URL", "monitor.example/hunter2")]
)
def test_refused_secret_is_not_in_the_message(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_settings({f"CRONJOBS_{name}": value})
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("token", [TOKEN, "0123456789abcdef", "abcdefghijklmno="])
def test_every_token_that_is_taken_arrives_in_a_header(token: str) -> None:
    read_settings({"CRONJOBS_TICK_TOKEN": token})
    given = Authorization.from_header(f"Bearer {token}")
    assert given is not None
    assert given.token == token


def test_name_that_does_not_exist_is_refused_and_the_others_listed() -> None:
    with pytest.raises(ConfigError, match=r"CRONJOBS_LEESE is not a setting of .*CRONJOBS_LEASE"):
        read_settings({"CRONJOBS_LEESE": 60})


def test_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"TIMEZNE .*\. Did you mean CRONJOBS_TIMEZONE\? There"):
        read_settings({"CRONJOBS_TIMEZNE": "UTC"})
    with pytest.raises(ConfigError, match=r"FOO is not a setting of Flask-CronJobs\. There"):
        read_settings({"CRONJOBS_FOO": "UTC"})


def test_bounds_are_written_as_plain_numbers() -> None:
    with pytest.raises(ConfigError, match="seconds from 60 to 2592000: ticks"):
        read_settings({"CRONJOBS_HEALTH_TICK_AGE": 5})
    with pytest.raises(ConfigError, match=r"seconds from 0\.05 to 2592000\."):
        read_settings({"CRONJOBS_TIMEOUT": 0})
