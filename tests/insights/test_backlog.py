"""Walking from group to group finds the same waiting runs as reading all of them."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights import backlog
from flask_cronjobs.insights.backlog import Waiting, oldest_due, waiting_groups
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.health_checks import findings
from flask_cronjobs.insights.reader import reading
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import list_runs
from tests.rows import Rows, ago

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _send(jobs: CronJobs) -> None:
    jobs.task(name="send")(lambda: None)


@pytest.fixture(params=[1_000, 1], ids=["by steps", "by reading all"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `waiting_groups` walk from group to group, or act as if there were too many groups."""
    monkeypatch.setattr(backlog, "MOST_STEPS", request.param)


def groups(state: State) -> dict[tuple[str, str], tuple[int, int | None]]:
    """Return for how many hours the first run of each group has been due, and been runnable."""
    groups: dict[tuple[str, str], list[Waiting]] = {}
    with reading(state) as reader:
        for group in waiting_groups(reader):
            groups.setdefault((group.task, group.queue), []).append(group)
        now = reader.now

    def hours(moments: list[object]) -> int | None:
        return max((round((now - m).total_seconds() / HOUR) for m in moments if m), default=None)  # type: ignore[operator]

    return {
        key: (hours([group.oldest for group in some]) or 0, hours([group.due for group in some]))
        for key, some in groups.items()
    }


def test_the_oldest_run_of_each_task_and_queue_is_found(
    state: State, rows: Rows, steps: None
) -> None:
    for task in ("other", "send"):
        for queue in ("default", "mail"):
            for priority in (0, 5, -3):
                for age in (2, 3, 1):
                    at = (age + priority + 5) * HOUR
                    rows.run(job_type=task, queue=queue, priority=priority, age=at)
    rows.run(job_type="send", queue="later", age=-HOUR)
    rows.run("failed", job_type="failing", age=4 * HOUR)
    for status in ("running", "succeeded", "dead"):
        rows.run(status, job_type="ended", age=99 * HOUR)
    expected = {
        ("other", "default"): (13, 13),
        ("other", "mail"): (13, 13),
        ("send", "default"): (13, 13),
        ("send", "mail"): (13, 13),
        ("send", "later"): (-1, None),
        ("failing", "default"): (4, 4),
    }
    assert groups(state) == expected


def test_a_run_whose_key_is_at_its_limit_is_not_due(state: State, rows: Rows, steps: None) -> None:
    rows.run("running", concurrency_key="a", concurrency_limit=1, concurrency_share=1)
    rows.run("running", concurrency_key="b", concurrency_limit=2, concurrency_share=2)
    for number in range(3):
        rows.run(age=(10 + number) * HOUR, concurrency_key="a", concurrency_limit=1)
    rows.run(age=6 * HOUR, concurrency_key="b", concurrency_limit=2)
    rows.run(age=5 * HOUR, concurrency_key="c", concurrency_limit=1)
    rows.run(job_type="full", age=8 * HOUR, concurrency_key="a", concurrency_limit=1)
    expected = {("send", "default"): (12, 6), ("full", "default"): (8, None)}
    assert groups(state) == expected
    assert hours_due(state) == 6


def test_a_run_is_due_though_others_hold_shares_above_its_limit(
    state: State, rows: Rows, steps: None
) -> None:
    rows.run("running", concurrency_key="a", concurrency_limit=2, concurrency_share=2)
    rows.run(age=6 * HOUR, concurrency_key="a", concurrency_limit=1)
    assert groups(state) == {("send", "default"): (6, 6)}
    assert hours_due(state) == 6


def test_a_run_at_a_rate_is_due_since_a_start_has_been_free(
    state: State, rows: Rows, jobs: CronJobs, steps: None
) -> None:
    jobs.task(name="mail", rate="1/hour")(lambda: None)
    rows.tick()
    rated: dict[str, Any] = {"job_type": "mail", "gate": "rate"}
    for key in ("taken", "free", "new"):
        rows.run(age=9 * HOUR, rate_key=key, **rated)
    busy: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
    rows.run(age=8 * HOUR, rate_key="new", queue="busy", **rated, **busy)
    rows.run("running", **busy, concurrency_share=1)
    rows.run(age=-HOUR, rate_key="new", queue="later", **rated)
    start = {"period": HOUR, "burst": 1}
    rows.rate("taken", tat=ago(-HOUR / 2), **start)
    rows.rate("free", tat=ago(3 * HOUR), **start)
    assert groups(state) == {
        ("mail", "default"): (9, 9),
        ("mail", "busy"): (8, None),
        ("mail", "later"): (-1, None),
    }
    (overdue,) = findings(state)
    assert (overdue.id, hours_due(state)) == ("overdue", 9)
    assert overdue.number == len(list_runs(state, RunFilter(overdue=True)).rows) == 2
    rows.rate("new", tat=ago(-HOUR / 2), **start)
    assert hours_due(state) == 3
    rows.rate("free", tat=ago(-HOUR / 2), **start)
    assert read_verdict(state).ok


def test_the_verdict_leaves_out_tasks_of_other_code_and_what_is_paused(
    state: State, rows: Rows, jobs: CronJobs, app: Flask
) -> None:
    rows.run(job_type="other", age=9 * HOUR)
    rows.run(queue="mail", age=8 * HOUR)
    rows.run(age=2 * HOUR)
    rows.tick()
    assert hours_due(state) == 8
    with app.app_context():
        jobs.pause(queue="mail")
    assert hours_due(state) == 2
    assert [finding.number for finding in findings(state) if finding.id == "overdue"] == [1]


def hours_due(state: State) -> int:
    """Return how long the oldest runnable run has been due, in hours."""
    with reading(state) as reader:
        oldest = oldest_due(reader)
        assert oldest is not None
        return round((reader.now - oldest).total_seconds() / HOUR)
