"""A machine without a tz database, such as a small container: UTC still works."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import ConfigError, CronJobs, Schedule, ScheduleError
from flask_cronjobs.config import read_settings

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the files of the zones, and the package that has them."""

    def nothing(*args: Any, **more: Any) -> Any:
        raise ModuleNotFoundError("no tzdata")

    monkeypatch.setattr("importlib.resources.open_binary", nothing)
    monkeypatch.setattr("importlib.resources.files", nothing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


def test_utc_may_be_named_and_others_are_refused_with_what_to_install() -> None:
    assert Schedule("@daily", "UTC").next_after(NOON) == NOON + timedelta(hours=12)
    with pytest.raises(ScheduleError, match="pip install tzdata"):
        Schedule("@daily", "Europe/Berlin")
    assert read_settings({"CRONJOBS_TIMEZONE": "UTC"}).timezone == "UTC"
    with pytest.raises(ConfigError, match="CRONJOBS_TIMEZONE"):
        read_settings({"CRONJOBS_TIMEZONE": "Europe/Berlin"})


@pytest.mark.parametrize("command", [[], ["definitions"], ["doctor", "--json"]])
def test_commands_show_definitions_in_utc(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, command: list[str]
) -> None:
    jobs.task(name="daily", schedule="@daily")(lambda: None)
    run = app.test_cli_runner().invoke
    assert run(args=["jobs", "tick"]).exit_code == 0
    result = run(args=["jobs", "admin", *command])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.output
