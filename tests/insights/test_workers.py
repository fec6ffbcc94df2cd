"""Hosts by their last ticks: when they were seen, and which queues they serve."""

from __future__ import annotations

import pytest

from flask_cronjobs import CronJobs, __version__
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights import queues
from flask_cronjobs.insights.health_checks import findings
from flask_cronjobs.insights.queues import hosts_of, list_hosts
from flask_cronjobs.insights.reader import reading
from tests.rows import Rows

MINUTE = 60.0


def test_a_tick_notes_its_queues_and_version(state: State, jobs: CronJobs) -> None:
    with state.app.app_context():
        jobs.tick(queues=["slow", "mail"])
    (host,) = list_hosts(state).rows
    assert (host.queues, host.version) == (("mail", "slow"), __version__)


def test_hosts_of_the_last_day_are_listed_the_one_seen_last_first(
    rows: Rows, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host, minutes in (("web-1", 70), ("web-2", 5), ("web-1", 80), ("gone", 1450)):
        rows.tick(age=minutes * MINUTE, host=host)
    page = list_hosts(state)
    assert [row.host for row in page.rows] == ["web-2", "web-1"]
    assert (page.now - page.rows[1].seen_at).total_seconds() // MINUTE == 70
    monkeypatch.setattr(queues, "HOSTS", 1)
    assert list_hosts(state).cut("host") == "1 of 2 hosts"


def test_a_host_serves_the_queues_of_its_ticks_of_the_last_minutes(
    rows: Rows, state: State
) -> None:
    rows.tick(age=40 * MINUTE, queues=["old"])
    rows.tick(age=2 * MINUTE, queues=["slow", "mail"])
    rows.tick(age=2, queues=["mail"], resident=True, finished_at=None)
    with reading(state) as reader:
        served = {name: hosts_of(reader, name) for name in ("mail", "slow", "old", "default")}
    assert served == {"mail": ("web-1",), "slow": ("web-1",), "old": (), "default": ()}
    rows.tick(age=0)
    (host,) = list_hosts(state).rows
    assert host.queues is None


def test_verdict_names_the_queue_that_no_host_serves(
    rows: Rows, state: State, jobs: CronJobs
) -> None:
    def overdue() -> list[str]:
        views = findings(state)
        return [row.what for row in views if row.id == "overdue"]

    jobs.task(name="send")(lambda: None)
    rows.run(age=1200, job_type="send", queue="images")
    rows.tick(queues=["mail"])
    rows.run(age=60 * MINUTE, job_type="send", queue="mail")
    rows.run(age=90 * MINUTE, job_type="gone", queue="old")
    rows.run(age=60, job_type="send", queue="later")
    text = "work has been waiting for 1 h"
    assert overdue() == [f"{text}: no worker serves the queue images"]
    rows.tick(host="web-2")  # This worker serves all queues.
    assert overdue() == [text]
