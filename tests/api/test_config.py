"""``CRONJOBS_*`` is read once; a bad value fails at that point, and the error names it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from werkzeug.datastructures import Authorization

from flask_cronjobs import ConfigError
from flask_cronjobs.config import Settings, read_settings

TOKEN = "sixteen-characters~and.more_+/=="
DAY = 86400.0

#: The accepted values of each setting, as they are stored, and the refused values.
VALUES: dict[str, tuple[list[tuple[Any, Any]], list[Any]]] = {
    "TIMEZONE": ([("Europe/Berlin",) * 2], ["Berlin", None, "../../etc/passwd", 5]),
    "MAX_ATTEMPTS": ([(1, 1), (1000, 1000)], [0, 1001, "10", True, 2.0]),
    "LEASE": ([(2, 2.0), (timedelta(minutes=5), 300.0)], [1, "120", float("nan"), True, 86401]),
    "TIMEOUT": ([(0.05, 0.05)], [0, float("inf"), timedelta(0), None]),
    "SHUTDOWN_GRACE": ([(0, 0.0), (3600, 3600.0)], [-1, 3601]),
    "TICK_BUDGET": ([(timedelta(seconds=30), 30.0)], [0, DAY + 1]),
    "WORKERS": ([(64, 64)], [0, 65]),
    "WORK_IN_DEBUG": ([(True, True)], [1, "yes"]),
    "ASYNC_AT_ONCE": ([(1000, 1000)], [0, 1001]),
    "RETENTION": ([(timedelta(days=1), DAY), (0, 0.0)], [-1]),
    "RETENTION_DEAD": ([(timedelta(days=2), 2 * DAY)], [-1]),
    "MAX_PAYLOAD_BYTES": ([(64, 64)], [63, 2**26 + 1]),
    "HEALTH_TICK_AGE": ([(60, 60.0)], [59]),
    "HEALTH_OVERDUE": ([(1, 1.0)], [0.5]),
    "URL_PREFIX": ([("/admin/jobs",) * 2, (None, None)], ["", "jobs", "/jobs/", 5]),
    "TICK_TOKEN": (
        [(TOKEN, TOKEN), (None, None), ("0123456789abcdef",) * 2, ("abcdefghijklmno=",) * 2],
        [
            *("short", "é" * 20, "k=vvvvvvvvvvvvvvvv", "spaces and as long as is wanted", " " * 20),
            *("read-from-a-file-as-it-is\n", "with,commas,and;semicolons", "=" * 20, b"b" * 20),
        ],
    ),
    "PING_URL": ([("https://a.example/x",) * 2, (None, None)], ["ftp://a.example", "a.example"]),
    "ALERT_URL": (
        [("https://a.example/x",) * 2, ("http://ada:pw@[::1]:8/",) * 2, (None, None)],
        ["ftp://a.example", 7, "http://", "http://[a/", "http://a b/", "http://a/\r\nX: y"],
    ),
    "REDACT": ([(["Password", "PIN"], ("password", "pin"))], ["password", [""], ["-_ "], [1], 5]),
    "SHOW_PAYLOAD": ([(True, True)], [1]),
    "KEEP_OUTPUT": ([(True, True)], ["yes"]),
    "EXECUTORS": (
        [({}, {}), ({"mail": "celery"}, {"mail": "celery"})],
        ["celery", {"mail": "carrot"}, {"": "celery"}, {"mail": object()}],
    ),
    "HANDED_LIMIT": ([(1, 1)], [0]),
}


def read(name: str, value: Any) -> Any:
    return getattr(read_settings({f"CRONJOBS_{name}": value}), name.lower())


def test_nothing_given_is_the_defaults_and_other_keys_are_not_read() -> None:
    settings = read_settings({"SECRET_KEY": "x", "CRONJOB_LEASE": "typo of another"})
    assert vars(settings) == vars(Settings())


@pytest.mark.parametrize("name", VALUES)
def test_value_is_read_or_refused_by_name(name: str) -> None:
    accepted, refused = VALUES[name]
    for value, setting in accepted:
        assert (read(name, value), type(read(name, value))) == (setting, type(setting))
    for value in refused:
        with pytest.raises(ConfigError, match=f"^CRONJOBS_{name} is .*Give ") as refusal:
            read(name, value)
        if name in (
            "TICK_TOKEN",
            "PING_URL",
            "ALERT_URL",
            "EXECUTORS",
        ):  # These settings are secrets, or contain secrets.
            assert repr(value) not in str(refusal.value).partition("Give")[0]


def test_every_token_that_is_taken_arrives_in_a_header() -> None:
    for token in filter(None, (token_value for _, token_value in VALUES["TICK_TOKEN"][0])):
        header = Authorization.from_header(f"Bearer {token}")
        assert header is not None
        assert header.token == token


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("LEESE", 60, r"CRONJOBS_LEESE is not a setting of .*CRONJOBS_LEASE"),
        ("TIMEZNE", "UTC", r"TIMEZNE .*\. Did you mean CRONJOBS_TIMEZONE\? The settings"),
        ("FOO", "UTC", r"FOO is not a setting of Flask-CronJobs\. The settings are:"),
        ("HEALTH_TICK_AGE", 5, "seconds from 60 to 2592000: ticks"),
        ("TIMEOUT", 0, r"seconds from 0\.05 to 2592000\.$"),
        ("TIMEOUT", "60", r"It is a string: convert it to a number, or read it with from_prefixed"),
        ("TIMEOUT", "None", r"seconds from 0\.05 to 2592000\.$"),
        (
            "SHOW_PAYLOAD",
            "True",
            r"is 'True'\. Give True or False\. In the environment, write true",
        ),
        ("KEEP_OUTPUT", "off", r"In the environment, write false\."),
        ("WORK_IN_DEBUG", 1, r"In the environment, write true\."),
        ("URL_PREFIX", "None", r"or None\. In the environment, write null\."),
        ("TICK_TOKEN", 12345678901234567, r"It is a number: in the environment, put it in"),
    ],
)
def test_message_helps(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(name, value)


def test_every_setting_is_tried_here() -> None:
    assert [name.lower() for name in VALUES] == list(Settings.__dataclass_fields__)
