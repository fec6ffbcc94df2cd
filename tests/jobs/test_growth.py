"""The rows of ticks and of failures stay few, whatever happens to ticks and runs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, text, update

from flask_cronjobs.jobs import outcomes
from flask_cronjobs.jobs import ticks as ticks_module
from flask_cronjobs.models import JobTick
from flask_cronjobs.types import TickReport
from tests.kit import Kit
from tests.marks import on_postgresql
from tests.rows import ago

KEPT = 5


@pytest.fixture(autouse=True)
def keep_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `KEPT` failures of a run."""
    monkeypatch.setattr(outcomes, "FAILURES_KEPT", KEPT)


def begin(kit: Kit, hours: float = 0, finished: bool = False) -> int:
    """Begin a tick, as if so many hours ago."""
    row = ticks_module.begin(kit.books, "host:7", "host", 7)
    if finished:
        ticks_module.finish(kit.books, row.id, TickReport("host:7"), 0.0)
    with kit.engine.begin() as connection:
        aged = update(JobTick).where(JobTick.id == row.id).values(started_at=ago(hours=hours))
        connection.execute(aged)
    return row.id


def tick_ids(kit: Kit) -> list[int]:
    return [row.id for row in kit.sql("SELECT id FROM job_ticks ORDER BY id")]


class TestTicks:
    def test_rows_are_kept_for_a_day_and_go_as_ticks_begin(self, kit: Kit) -> None:
        begin(kit, 30, finished=True)
        begin(kit, 26, finished=True)
        kept = [begin(kit, 23, finished=True), begin(kit)]
        assert tick_ids(kit) == kept

    def test_rows_go_though_every_tick_is_killed(self, kit: Kit) -> None:
        for _ in range(10):
            begin(kit, 26)
        assert len(tick_ids(kit)) == 1, "each begins, and deletes the one before it"

    def test_the_last_tick_that_finished_stays_until_another_has(self, kit: Kit) -> None:
        last = begin(kit, 50, finished=True)
        begin(kit, 40)
        unfinished = begin(kit)
        assert tick_ids(kit) == [last, unfinished]
        later = begin(kit, 1, finished=True)
        assert tick_ids(kit) == [last, unfinished, later]
        now = begin(kit)
        assert tick_ids(kit) == [unfinished, later, now]

    def test_a_crowd_of_old_rows_goes_in_batches(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        many = [begin(kit) for _ in range(10)]
        kit.sql("UPDATE job_ticks SET started_at = '2000-01-01'")
        monkeypatch.setattr(ticks_module, "CHUNK", 4)
        left = [len(tick_ids(kit)) for _ in many[:3] if begin(kit)]
        assert left == [7, 4, 3]

    def test_most_ticks_send_one_statement_for_it(self, kit: Kit) -> None:
        begin(kit, 24.9, finished=True)
        begin(kit, 23, finished=True)
        sent: list[str] = []

        def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            sent.append(statement)

        event.listen(kit.engine, "before_cursor_execute", note)
        ticks_module.begin(kit.books, "host:7", "host", 7)
        event.remove(kit.engine, "before_cursor_execute", note)
        assert [statement.split()[0] for statement in sent] == ["INSERT"]

    @on_postgresql
    def test_a_row_that_somebody_has_locked_is_passed_over(self, kit: Kit) -> None:
        locked, free = begin(kit), begin(kit)
        kit.sql("UPDATE job_ticks SET started_at = '2000-01-01'")
        with kit.engine.begin() as operator:
            operator.execute(text(f"SELECT 1 FROM job_ticks WHERE id = {locked} FOR UPDATE"))
            now = begin(kit)
            assert free not in tick_ids(kit)
        assert tick_ids(kit) == [locked, now]
        begin(kit)
        assert locked not in tick_ids(kit)


class TestFailures:
    def fail(self, kit: Kit, run_id: int, times: int) -> None:
        """Let a run fail, as often as somebody says that it is to be tried again."""
        for _ in range(times):
            kit.finish(kit.claim_one(), "dead", error="boom")
            kit.sql(
                "UPDATE job_runs SET status = 'queued', finished_at = NULL,"
                " max_attempts = attempts + 1 WHERE id = :id",
                id=run_id,
            )

    def test_a_run_keeps_its_latest_failures(self, kit: Kit) -> None:
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT)
        assert [failure.attempt for failure in kit.failures(run)] == [1, 2, 3, 4, 5]
        self.fail(kit, run, 3)
        assert [failure.attempt for failure in kit.failures(run)] == [4, 5, 6, 7, 8]

    def test_those_of_other_runs_stay(self, kit: Kit) -> None:
        other = kit.run(max_attempts=1)
        kit.finish(kit.claim_one(), "dead")
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT + 1)
        assert len(kit.failures(other)) == 1

    def test_lost_workers_count_as_failures(self, kit: Kit) -> None:
        run = kit.run(max_attempts=100, attempts=20)
        for _ in range(KEPT + 2):
            claim = kit.claim_one(idle=True)
            kit.expire(claim)
            assert kit.finish(claim, "failed", reclaimed=True, delay=-60.0)
        assert [failure.attempt for failure in kit.failures(run)] == [23, 24, 25, 26, 27]

    def test_an_outcome_whose_lease_was_lost_deletes_no_failure_of_the_latest(
        self, kit: Kit
    ) -> None:
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT)
        lost = kit.claim_one()
        kit.expire(lost)
        kit.finish(lost, "dead", reclaimed=True)
        assert not kit.finish(lost, "dead")
        assert [failure.attempt for failure in kit.failures(run)] == [2, 3, 4, 5, 6]

    @on_postgresql
    def test_a_failure_that_somebody_has_locked_holds_up_no_outcome(self, kit: Kit) -> None:
        run = kit.run(max_attempts=1)
        self.fail(kit, run, KEPT)
        with kit.engine.begin() as operator:
            operator.execute(text("SELECT 1 FROM job_failures FOR UPDATE"))
            self.fail(kit, run, 1)
        assert [failure.attempt for failure in kit.failures(run)] == [1, 2, 3, 4, 5, 6]
        self.fail(kit, run, 1)
        assert [failure.attempt for failure in kit.failures(run)] == [3, 4, 5, 6, 7]
