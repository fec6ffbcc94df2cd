"""The page about alerting: its receivers report, and its rules use metrics that exist."""

from __future__ import annotations

import re
import smtplib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml  # type: ignore[import-untyped]

from flask_cronjobs import CronJobs
from tests.monitor import Monitor

from .pages import blocks, dispose, named, prelude

PAGE = named("alerting.md")


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A mock of the parts of Sentry's SDK that the page uses."""
    sdk = MagicMock()
    for name in ("sentry_sdk", "sentry_sdk.integrations", "sentry_sdk.integrations.logging"):
        module = ModuleType(name)
        vars(module).update(new_scope=sdk.new_scope, ignore_logger=sdk.ignore_logger)
        monkeypatch.setitem(sys.modules, name, module)
    return sdk


@pytest.fixture
def smtp(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    mock = MagicMock()
    monkeypatch.setattr(smtplib, "SMTP", mock)
    return mock


@pytest.fixture
def names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentry: MagicMock,
    smtp: MagicMock,
    monitor: Monitor,
) -> Iterator[dict[str, Any]]:
    """The names that the page's blocks have defined, one after the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PING_BACK_UP", f"{monitor.url}back-up")
    names = prelude()
    names["jobs"] = CronJobs(names["app"], authorize=lambda action: True)
    for block in blocks(PAGE, "python"):
        exec(block.code, names)
    with names["app"].app_context():
        names["db"].create_all()
    yield names
    dispose(names)


def test_dead_run_is_reported_by_mail_and_to_sentry(
    names: dict[str, Any], smtp: MagicMock, sentry: MagicMock
) -> None:
    @names["jobs"].task(retry=False)
    def hopeless() -> None:
        raise ConnectionError("the bank is closed")

    with names["app"].app_context():
        hopeless.using(commit=True).enqueue()
        assert names["jobs"].tick().dead == 1
    (mail,) = smtp.return_value.__enter__.return_value.send_message.call_args.args
    assert mail["Subject"] == "hopeless is dead: ConnectionError"
    assert "the bank is closed" in mail.get_content()
    assert "flask jobs admin retry 1" in mail.get_content()
    scope = sentry.new_scope.return_value.__enter__.return_value
    assert scope.fingerprint == ["{{ default }}", "hopeless"]
    (error,) = scope.capture_exception.call_args.args
    assert isinstance(error, ConnectionError)
    with names["app"].app_context():
        (refusal,) = names["db"].session.scalars(names["db"].select(names["Refusal"]))
    assert refusal.why == "hopeless 1: the bank is closed"
    assert error.__traceback__ is not None
    scope.capture_message.assert_not_called()
    sentry.ignore_logger.assert_called_once_with("flask_cronjobs")


def test_rules_name_figures_of_the_metrics(names: dict[str, Any]) -> None:
    with names["app"].app_context():
        names["jobs"].tick()
        names["jobs"].pause(queue="mail")  # Otherwise there would be nothing to count.
    scraped = names["app"].test_client().get("/jobs/metrics").text
    figures = set(re.findall(r"^(cronjobs_\w+)", scraped, re.MULTILINE))
    scrape, rules = (yaml.safe_load(block.text) for block in blocks(PAGE, "yaml"))
    (group,) = rules["groups"]
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in group["rules"])
    section = PAGE.read_text().partition("## Prometheus")[2].partition("\n## ")[0]
    metrics = set(re.findall(r"\bcronjobs_\w+", section))
    assert metrics
    assert metrics <= figures
    (job,) = scrape["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in group["rules"][1]["expr"]
    assert job["metrics_path"] == "/jobs/metrics"
