"""Rows of ticks, and pruning: in batches, by age, and nothing that lives."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from flask_cronjobs.models import JobTick
from flask_cronjobs.store import ticks as ticks_module
from flask_cronjobs.types import TickReport
from tests.marks import on_postgresql
from tests.rows import ago
from tests.store.kit import Kit

DAY = 86400.0
FORTNIGHT, QUARTER = 14 * DAY, 90 * DAY


def ticks(kit: Kit) -> list[JobTick]:
    with Session(kit.engine) as session:
        return list(session.scalars(select(JobTick).order_by(JobTick.id)))


def finished(kit: Kit, status: str, days: float, **values: Any) -> int:
    return kit.run(status=status, finished_at=ago(days=days), attempts=1, **values)


def ids(kit: Kit) -> list[int]:
    return [row.id for row in kit.all_rows()]


def test_tick_leaves_a_row_of_who_when_and_what(kit: Kit) -> None:
    before = kit.definitions.now()
    row = kit.ticks.begin("host:7", "host", 7)
    assert before <= row.now <= kit.definitions.now()
    (begun,) = ticks(kit)
    assert (begun.worker, begun.host, begun.pid) == ("host:7", "host", 7)
    assert begun.finished_at is None

    report = TickReport("host:7", recorded=1, skipped=2, reclaimed=3, succeeded=4, failed=5, dead=6,
                        cancelled=7, released=8, snoozed=9, lost=10, pruned=11)  # fmt: skip
    kit.ticks.finish(row.id, report, 0.25)
    (done,) = ticks(kit)
    assert done.finished_at is not None
    assert done.clock_offset == 0.25
    counts = ("recorded", "skipped", "reclaimed", "succeeded", "failed", "dead", "cancelled",
              "released", "snoozed", "lost", "pruned")  # fmt: skip
    assert [getattr(done, name) for name in counts] == list(range(1, 12))


def test_tick_says_that_it_is_alive(kit: Kit) -> None:
    row = kit.ticks.begin("host:7", "host", 7)
    kit.sql("UPDATE job_ticks SET seen_at = '2000-01-01'")
    kit.ticks.seen(row.id)
    assert ticks(kit)[0].seen_at.year > 2000


class TestPrune:
    @pytest.mark.parametrize("status", ["succeeded", "cancelled", "skipped"])
    def test_finished_runs_go_after_their_retention(self, kit: Kit, status: str) -> None:
        finished(kit, status, 15)
        kept = finished(kit, status, 13)
        assert kit.ticks.prune(FORTNIGHT, QUARTER) == 1
        assert ids(kit) == [kept]

    def test_dead_runs_have_their_own_retention(self, kit: Kit) -> None:
        finished(kit, "dead", 91)
        kept = finished(kit, "dead", 89)
        assert kit.ticks.prune(FORTNIGHT, QUARTER) == 1
        assert ids(kit) == [kept]

    def test_what_is_not_finished_stays_however_old(self, kit: Kit) -> None:
        old: dict[str, Any] = {"created_at": ago(days=999), "run_at": ago(days=999)}
        kit.run(**old)
        kit.run(status="failed", attempts=1, **old)
        kit.run(**old, job_type="other")
        kit.claim(limit=1)
        before = ids(kit)
        assert kit.ticks.prune(0, 0) == 0
        assert ids(kit) == before

    def test_failures_go_with_their_run(self, kit: Kit) -> None:
        gone, kept = kit.runs(2)
        for claim in kit.claim():
            kit.finish(claim, "dead")
        kit.sql("UPDATE job_runs SET finished_at = '2000-01-01' WHERE id = :id", id=gone)
        assert kit.ticks.prune(FORTNIGHT, QUARTER) == 1
        assert kit.failures(gone) == []
        assert len(kit.failures(kept)) == 1

    @on_postgresql
    def test_run_that_is_retried_meanwhile_keeps_its_failures(self, kit: Kit) -> None:
        """On SQLite nobody can: pruning holds the write lock."""
        run = kit.run(max_attempts=1)
        kit.finish(kit.claim_one(), "dead")
        kit.sql("UPDATE job_runs SET finished_at = '2000-01-01'")
        with kit.engine.begin() as operator:
            operator.execute(text("UPDATE job_runs SET status = 'queued', finished_at = NULL"))
            assert kit.ticks.prune(FORTNIGHT, QUARTER) == 0
        assert ids(kit) == [run]
        assert len(kit.failures(run)) == 1

    def test_large_backlog_goes_in_small_batches(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ticks_module, "CHUNK", 4)
        for _ in range(10):
            finished(kit, "succeeded", 20)
        sizes: list[int] = []
        one_batch = ticks_module._prune_runs

        def counted(connection: Connection, condition: str, seconds: float) -> int:
            sizes.append(one_batch(connection, condition, seconds))
            return sizes[-1]

        monkeypatch.setattr(ticks_module, "_prune_runs", counted)
        assert kit.ticks.prune(FORTNIGHT, QUARTER) == 10
        assert sizes == [4, 4, 2, 0]

    def test_backlog_is_left_to_later_ticks_when_the_budget_is_used_up(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ticks_module, "CHUNK", 2)
        for _ in range(6):
            finished(kit, "succeeded", 20)
        assert kit.ticks.prune(FORTNIGHT, QUARTER, budget=0) == 2
        assert len(ids(kit)) == 4

    def test_prunable_counts_what_prune_would_delete(self, kit: Kit) -> None:
        finished(kit, "succeeded", 15)
        finished(kit, "succeeded", 1)
        finished(kit, "dead", 100)
        assert kit.ticks.prunable(FORTNIGHT, QUARTER) == 2
        assert len(ids(kit)) == 3
        assert kit.ticks.prune(FORTNIGHT, QUARTER) == 2

    def test_effects_go_when_done_long_ago_and_never_while_open(self, kit: Kit) -> None:
        for key in ("old", "new", "open"):
            kit.effects.begin(key, "owner", None, 60)
        for key in ("old", "new"):
            kit.effects.done(key, "owner", None)
        kit.sql("UPDATE job_effects SET done_at = '2000-01-01' WHERE key = 'old'")
        kit.sql("UPDATE job_effects SET created_at = '2000-01-01'")
        kit.ticks.prune(FORTNIGHT, QUARTER)
        rows = kit.sql("SELECT key FROM job_effects ORDER BY key")
        assert [row.key for row in rows] == ["new", "open"]

    def test_effects_of_a_run_that_may_be_tried_again_stay_however_old(self, kit: Kit) -> None:
        kit.runs(6)
        for claim in kit.claim():
            kit.effects.begin(f"run {claim.id}", claim.token, claim.id, 60)
            kit.effects.done(f"run {claim.id}", claim.token, None)
        succeeded, dead, cancelled, failed, queued, running = (row.id for row in kit.all_rows())
        unlocked = "locked_by = NULL, locked_until = NULL"
        for status, run_id in (
            ("succeeded", succeeded), ("dead", dead), ("cancelled", cancelled),
            ("failed", failed), ("queued", queued),
        ):  # fmt: skip
            at = "NULL" if status in ("failed", "queued") else "CURRENT_TIMESTAMP"
            kit.sql(
                f"UPDATE job_runs SET status = '{status}', finished_at = {at}, {unlocked}"
                f" WHERE id = {run_id}"
            )
        kit.sql("UPDATE job_effects SET done_at = '2000-01-01'")
        kit.ticks.prune(FORTNIGHT, QUARTER)
        left = [row.run_id for row in kit.sql("SELECT run_id FROM job_effects ORDER BY run_id")]
        assert left == [dead, cancelled, failed, queued, running]

    @pytest.mark.parametrize(("budget", "left"), [(60.0, 0), (-1.0, 15)])
    def test_old_effects_go_in_batches_until_none_or_no_time_is_left(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch, budget: float, left: int
    ) -> None:
        monkeypatch.setattr(ticks_module, "CHUNK", 10)
        for key in map(str, range(25)):
            kit.effects.begin(key, "owner", None, 60)
            kit.effects.done(key, "owner", None)
        kit.sql("UPDATE job_effects SET done_at = '2000-01-01'")
        kit.ticks.prune(FORTNIGHT, QUARTER, budget)
        assert len(kit.sql("SELECT key FROM job_effects")) == left
