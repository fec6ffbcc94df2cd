"""Hosts by their ticks: who is here, who is silent, what is at work there."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import CronJobs, __version__
from flask_cronjobs.jobs.checks import findings
from flask_cronjobs.jobs.queues import HostView, hosts_of, list_hosts
from flask_cronjobs.jobs.reader import reading
from flask_cronjobs.jobs.state import State
from tests.rows import Rows

MINUTE = 60.0


def ticks(rows: Rows, host: str, first: int, last: int, every: int = 5, **values: Any) -> None:
    """Ticks of *host* from *first* to *last*, in minutes before now."""
    for minutes in range(first, last - 1, -every):
        rows.tick(age=minutes * MINUTE, host=host, **values)


def hosts(state: State) -> dict[str, HostView]:
    return {each.host: each for each in list_hosts(state).rows}


@pytest.mark.parametrize(
    ("first", "last", "every", "values", "becomes"),
    [
        (120, 70, 5, {}, "silent"),
        (120, 10, 10, {}, "here"),  # Three times its usual gap have not passed.
        (1270, 190, 60, {}, "silent"),
        (1240, 160, 60, {}, "here"),
        (110, 70, 5, {}, "gone"),  # Nine ticks.
        (99, 70, 3, {}, "gone"),  # Not for long enough.
        (120, 9, 3, {}, "here"),
        (120, 70, 5, {"resident": True}, "ended"),
        (120, 70, 5, {"resident": True, "finished_at": None}, "silent"),
    ],
)
def test_a_host_is(
    rows: Rows, state: State, first: int, last: int, every: int, values: Any, becomes: str
) -> None:
    rows.tick(age=1, host="web-1")
    ticks(rows, "web-2", first, last, every, **values)
    assert hosts(state)["web-2"].state == becomes


def test_a_tick_notes_its_queues_and_version(state: State, jobs: CronJobs) -> None:
    with state.app.app_context():
        jobs.tick(queues=["slow", "mail"])
    (host,) = list_hosts(state).rows
    assert (host.queues, host.version, host.by) == (("mail", "slow"), __version__, ("cron",))


def test_a_host_that_is_gone_for_a_day_is_forgotten(rows: Rows, state: State) -> None:
    rows.tick(age=1, host="web-1")
    ticks(rows, "web-2", 1700, 1450)
    assert list(hosts(state)) == ["web-1"]


def test_a_host_says_how_it_ticks_and_what_it_does(rows: Rows, state: State) -> None:
    ticks(rows, "web-1", 200, 40, 10, version="0.9", queues=["old"])
    rows.tick(age=120, version="0.9", queues=["slow", "mail"])
    rows.tick(age=2, version="0.10", queues=["mail"], resident=True, finished_at=None)
    first = rows.run("running", age=60)
    rows.run("running", age=60, locked_by="web-2:7:token")
    (host,) = list_hosts(state).rows
    assert (host.by, host.queues, host.version) == (
        ("cron", "resident"),
        ("mail", "slow"),
        "0.10",
    )
    assert (host.running.value, [run.id for run in host.runs]) == (1, [first])
    with reading(state) as reader:
        served = {name: hosts_of(reader, name) for name in ("mail", "slow", "old", "default")}
    assert served == {"mail": ("web-1",), "slow": ("web-1",), "old": (), "default": ()}
    rows.tick(age=0)
    assert hosts(state)["web-1"].queues is None


def test_verdict_names_the_queue_that_no_host_serves(
    rows: Rows, state: State, jobs: CronJobs
) -> None:
    def overdue() -> list[str]:
        found = findings(state)
        return [each.what for each in found if each.id == "overdue"]

    jobs.task(name="send")(lambda: None)
    rows.run(age=1200, job_type="send", queue="images")
    rows.tick(queues=["mail"])
    rows.run(age=60 * MINUTE, job_type="send", queue="mail")
    rows.run(age=90 * MINUTE, job_type="gone", queue="old")
    rows.run(age=60, job_type="send", queue="later")
    said = "work has been waiting for 1 h"
    assert overdue() == [f"{said}: no worker serves the queue images"]
    rows.tick(host="web-2")  # It serves all.
    assert overdue() == [said]
