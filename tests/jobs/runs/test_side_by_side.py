"""What a worker may claim whose handlers are at work side by side."""

from __future__ import annotations

from typing import Any

from tests.kit import Kit
from tests.rows import ago


def first(kit: Kit, **values: Any) -> tuple[str, bool] | None:
    return kit.claims.next_run(kit.request(1, **values))


def test_first_is_what_an_idle_worker_would_claim(kit: Kit) -> None:
    tasks = ("task", "other")
    assert first(kit, tasks=tasks) is None
    run = kit.run(run_at=ago(minutes=5))
    kit.run(job_type="other", priority=-1, queue="slow")
    kit.run(job_type="of another app", priority=9)
    assert first(kit, tasks=tasks) == ("task", False)
    assert first(kit, tasks=("other",)) == ("other", False)
    assert first(kit, tasks=tasks, queues=("slow",)) == ("other", False)
    assert kit.row(run).status == "queued"


def test_first_says_whether_it_must_run_alone(kit: Kit) -> None:
    run = kit.run(status="failed", attempts=1, error_type="WorkerLost")
    assert first(kit) == ("task", True)
    kit.sql("UPDATE job_runs SET error_type = 'ValueError'")
    assert first(kit) == ("task", False)
    kit.sql("UPDATE job_runs SET max_attempts = 2")
    assert first(kit) == ("task", True)
    assert kit.row(run).attempts == 1
