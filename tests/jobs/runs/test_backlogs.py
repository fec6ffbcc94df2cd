"""Claims behind a backlog of runs that they may not take: the same runs in the same order."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from flask_cronjobs.jobs.runs import candidates
from flask_cronjobs.models import JobRun
from tests.kit import Kit
from tests.marks import on_postgresql
from tests.rows import ago

#: More than a claim of ten reads in order before it goes from group to group.
MANY = 10 + candidates.WINDOW + candidates.WINDOW + 1
KEY = {"concurrency_key": "key", "concurrency_limit": 1}


def fill(kit: Kit, **values: object) -> None:
    """Insert a backlog that comes before all else."""
    given = {"job_type": "task", "priority": 9, "run_at": ago(days=9), **values}
    with kit.engine.begin() as connection:
        connection.execute(insert(JobRun), [given] * MANY)


@pytest.fixture(
    params=[
        {"job_type": "theirs"},
        {"queue": "bulk"},
        {"run_at": ago(days=-9)},
        {"job_type": "theirs", **KEY},
        {"queue": "bulk", **KEY},
        {"run_at": ago(days=-9), **KEY},
    ],
    ids=["task", "queue", "delayed", "task of keys", "queue of keys", "delayed keys"],
)
def blocked(request: pytest.FixtureRequest, kit: Kit) -> Kit:
    """A database with a backlog that is not to be claimed."""
    fill(kit, **request.param)
    return kit


def test_runs_behind_a_backlog_are_claimed_in_order(blocked: Kit) -> None:
    """By priority, then by time, then by id, over all tasks, queues and keys."""
    asked = {"tasks": ("task", "other", "none"), "queues": ("default", "mail", "empty")}
    at = ago(minutes=5)
    last = blocked.run(run_at=ago(minutes=1))
    third = blocked.run(job_type="other", run_at=ago(minutes=7))
    fifth = blocked.run(queue="mail", run_at=at)
    first = blocked.run(priority=2)
    sixth = blocked.run(run_at=at)
    second = blocked.run(priority=1, job_type="other", queue="mail")
    fourth = blocked.run(run_at=ago(minutes=6), concurrency_key="a", concurrency_limit=1)
    blocked.run(run_at=at, concurrency_key="a", concurrency_limit=1)
    blocked.run(run_at=ago(minutes=-5))
    blocked.run(status="failed", attempts=2, max_attempts=2)
    expected = [first, second, third, fourth, fifth, sixth, last]
    assert blocked.claim_ids(2, **asked) == expected[:2]
    assert blocked.claim_ids(10, **asked) == expected[2:]
    assert blocked.claim_ids(10, **asked) == []


def test_all_queues_are_looked_through_behind_a_backlog(kit: Kit) -> None:
    fill(kit, job_type="theirs")
    ids = [kit.run(queue=f"queue {number}") for number in range(5)]
    assert kit.claim_ids(10) == ids


def test_retry_behind_a_backlog_is_claimed_alone(blocked: Kit) -> None:
    retry = blocked.run(status="failed", attempts=1, run_at=ago(minutes=9))
    fresh = blocked.runs(3)
    asked = {"queues": ("default",)}
    assert blocked.claim_ids(10, idle=False, **asked) == []
    assert blocked.claim_ids(10, **asked) == [retry]
    assert blocked.claim_ids(10, **asked) == fresh


def test_limit_of_a_key_holds_behind_a_backlog(blocked: Kit) -> None:
    asked = {"queues": ("default",)}
    for _ in range(3):
        blocked.run(concurrency_key="mine", concurrency_limit=2)
    assert [len(blocked.claim(10, **asked)) for _ in range(3)] == [1, 1, 0]


def test_more_runs_of_one_group_than_are_wanted(kit: Kit) -> None:
    fill(kit, job_type="theirs")
    ids = kit.runs(60)
    claimed = [kit.claim_ids(25) for _ in range(4)]
    assert [len(batch) for batch in claimed] == [25, 25, 10, 0]
    assert [run_id for batch in claimed for run_id in batch] == ids


@on_postgresql
def test_runs_that_another_claim_has_locked_are_skipped(kit: Kit) -> None:
    fill(kit, job_type="theirs")
    ids = kit.runs(6)
    with kit.engine.begin() as connection:
        connection.exec_driver_sql(
            f"SELECT id FROM job_runs WHERE id IN ({ids[0]}, {ids[1]}) FOR UPDATE"
        )
        assert kit.claim_ids(2) == ids[2:4]
    assert kit.claim_ids(10) == [*ids[:2], *ids[4:]]
