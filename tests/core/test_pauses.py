"""The runs of a paused task or queue wait; all others continue."""

from __future__ import annotations

from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import func, select, text

from flask_cronjobs import CronJobs, NotFound
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.models import JobDefinition, JobOperation, JobPause, JobRun
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def seen() -> list[str]:
    """The tasks whose handlers were called."""
    return []


@pytest.fixture
def tasks(jobs: CronJobs, seen: list[str]) -> dict[str, Any]:
    """Four tasks in two queues; one has a concurrency key, and one is async."""

    @jobs.task(queue="mail")
    def send() -> None:
        seen.append("send")

    @jobs.task
    def plain() -> None:
        seen.append("plain")

    @jobs.task(concurrency=1)
    def keyed() -> None:
        seen.append("keyed")

    @jobs.task
    async def waiting() -> None:
        seen.append("waiting")

    return {task.name: task for task in (send, plain, keyed, waiting)}


def enqueue_all(tasks: dict[str, Any]) -> None:
    for task in tasks.values():
        task.using(commit=True).enqueue()


@pytest.mark.parametrize("name", ["send", "plain", "keyed", "waiting"])
def test_runs_of_a_paused_task_wait(
    jobs: CronJobs, tasks: dict[str, Any], seen: list[str], name: str
) -> None:
    jobs.pause(task=name)
    enqueue_all(tasks)
    assert jobs.tick().succeeded == 3
    assert sorted(seen) == sorted(tasks.keys() - {name})
    assert jobs.resume(task=name)
    assert jobs.tick().succeeded == 1
    assert seen[-1] == name


def test_backlog_of_a_paused_task_is_skipped(
    jobs: CronJobs, tasks: dict[str, Any], seen: list[str]
) -> None:
    for name in ("send", "keyed"):
        tasks[name].using(priority=9, commit=True).enqueue_many([{}] * 400)
        jobs.pause(task=name)
    tasks["plain"].using(commit=True).enqueue()
    jobs.tick()
    assert seen == ["plain"]


def test_pause_holds_from_its_commit_also_for_a_running_tick(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    numbers: list[int] = []

    @jobs.task(retry=False)
    def busy(number: int) -> None:
        """A last attempt runs alone, so nothing is claimed ahead."""
        numbers.append(number)
        if number == 3:
            jobs.pause(task="busy")

    busy.using(commit=True).enqueue_many([{"number": number} for number in range(9)])
    jobs.tick()
    assert numbers == [0, 1, 2, 3]
    waiting = select(func.count()).where(JobRun.status == "queued")
    assert db.session.scalars(waiting).one() == 5


def test_slots_of_a_paused_task_are_enqueued_and_wait(
    jobs: CronJobs, db: SQLAlchemy, rows: Rows
) -> None:
    @jobs.task
    def nightly() -> None: ...

    jobs.add_definition("every", "nightly", schedule="@yearly", overlap="allow")
    past = "'2020-01-01 00:00:00.000000'"
    db.session.execute(text(f"UPDATE job_definitions SET next_run_at = {past}, "
                            f"considered_until = {past}"))  # fmt: skip
    db.session.commit()
    jobs.pause(task="nightly")
    report = jobs.tick()
    assert (report.recorded, report.attempts) == (1, 0)
    assert db.session.scalars(select(JobRun.status).where(JobRun.status == "queued")).all()
    jobs.resume(task="nightly")
    assert jobs.tick().succeeded == 1


def test_pausing_twice_keeps_the_first(jobs: CronJobs, db: SQLAlchemy) -> None:
    jobs.pause(queue="mail")
    first = db.session.scalars(select(JobPause.paused_at)).one()
    jobs.pause(queue="mail")
    assert db.session.scalars(select(JobPause.paused_at)).one() == first
    assert (jobs.resume(queue="mail"), jobs.resume(queue="mail")) == (True, False)


def test_pausing_a_definition_twice_keeps_the_first(jobs: CronJobs, db: SQLAlchemy) -> None:
    jobs.task(name="nightly", schedule="@yearly")(lambda: None)
    jobs.tick()
    paused_at = select(JobDefinition.paused_at)
    jobs.pause("nightly")
    first = db.session.scalars(paused_at).one()
    db.session.rollback()
    jobs.pause("nightly")
    assert db.session.scalars(paused_at).one() == first
    assert db.session.scalars(select(JobOperation.what)).all() == ["paused"]
    db.session.rollback()
    assert (jobs.resume("nightly"), jobs.resume("nightly")) == (True, False)


def test_resuming_one_leaves_the_others_paused(
    jobs: CronJobs, db: SQLAlchemy, tasks: dict[str, Any]
) -> None:
    for name in ("plain", "keyed"):
        jobs.pause(task=name)
    jobs.pause(queue="plain")
    jobs.resume(task="plain")
    remaining = select(JobPause.kind, JobPause.name).order_by(JobPause.kind)
    assert [tuple(row) for row in db.session.execute(remaining)] == [
        ("queue", "plain"),
        ("task", "keyed"),
    ]


def test_what_cannot_be_paused_is_refused(jobs: CronJobs, tasks: dict[str, Any]) -> None:
    with pytest.raises(NotFound, match=r"There is no task 'sent'\. Did you mean"):
        jobs.pause(task="sent")
    with pytest.raises(NotFound, match="There is no queue ''"):
        jobs.pause(queue="")
    for give in ({}, {"name": "x", "queue": "y"}, {"queue": "x", "task": "y"}):
        with pytest.raises(TypeError, match="Give exactly one"):
            jobs.pause(**give)


class TestReports:
    def test_paused_work_is_not_overdue_but_needs_attention(
        self, jobs: CronJobs, tasks: dict[str, Any], state: State, rows: Rows
    ) -> None:
        rows.tick()
        rows.run(age=7200, job_type="send", queue="mail")
        rows.run(age=7200, job_type="keyed", concurrency_key="keyed", concurrency_limit=1)
        assert not jobs.health().ok
        jobs.pause(queue="mail")
        jobs.pause(task="keyed")
        verdict = read_verdict(state)
        assert (verdict.ok, verdict.tone, verdict.headline) == (
            True,
            "warn",
            "2 things need attention",
        )
        jobs.resume(task="keyed")
        (paused,) = (finding for finding in jobs.health().findings if finding.id == "paused")
        assert (paused.by, paused.what) == ("Python", "the queue mail is paused")
        assert not jobs.health().ok
