"""Pruning: in short transactions, by age, all kinds in proportion, and nothing still needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from flask_cronjobs.config import Settings
from flask_cronjobs.core import prune as pruning
from flask_cronjobs.core import ticks
from flask_cronjobs.core.prune import prunable, prune
from flask_cronjobs.insights.health_checks import seconds_behind
from flask_cronjobs.insights.run_actions import RETRY
from flask_cronjobs.models import JobBatch, JobOperation
from tests.kit import Kit
from tests.marks import on_postgresql
from tests.plans import Sent, sent_by
from tests.rows import ago

DAY = 86400.0
KEPT = Settings(retention=14 * DAY, retention_dead=90 * DAY)
OLD = ago(days=200)


def pruned(kit: Kit, kept: Settings = KEPT) -> int:
    return sum(prune(kit.books, kept))


def finished(kit: Kit, status: str, days: float, **values: Any) -> int:
    return kit.run(status=status, finished_at=ago(days=days), attempts=1, **values)


def ids(kit: Kit) -> list[int]:
    return [row.id for row in kit.all_rows()]


def batch(kit: Kit, key: str, **values: Any) -> int:
    """Insert a batch that ended long ago; return its id."""
    columns = {"key": key, "closed_at": OLD, "finished_at": OLD, "total": 1, "dead": 0} | values
    with Session(kit.engine) as session:
        session.add(row := JobBatch(**columns))
        session.commit()
        return row.id


def past(kit: Kit) -> float:
    """Return how long the oldest row is past its retention, in seconds."""
    return seconds_behind(kit.books, KEPT)


def left(kit: Kit) -> tuple[int, int, int]:
    """Return how many runs, effects and batches there are."""
    tables = ("job_runs", "job_effects", "job_batches")
    counts = [kit.sql(f"SELECT count(*) FROM {table}")[0][0] for table in tables]
    return counts[0], counts[1], counts[2]


def count(sent: Sent, beginning: str) -> int:
    """Return how many of the statements begin with *words*."""
    return sum(" ".join(sql.split()).startswith(beginning) for sql, _ in sent.statements)


@on_postgresql
def test_run_that_is_retried_meanwhile_keeps_its_failures(kit: Kit) -> None:
    """On SQLite, no run can be retried meanwhile, since pruning holds the write lock."""
    run = kit.run(max_attempts=1)
    kit.finish(kit.claim_one(), "dead")
    kit.sql("UPDATE job_runs SET finished_at = '2000-01-01'")
    with kit.engine.begin() as operator:
        operator.execute(text("UPDATE job_runs SET status = 'queued', finished_at = NULL"))
        assert pruned(kit) == 0
    assert ids(kit) == [run]
    assert len(kit.failures(run)) == 1


def test_large_backlog_goes_in_short_transactions(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "DELETED_AT_ONCE", 4)
    for _ in range(10):
        finished(kit, "succeeded", 20)
    with sent_by(kit.engine) as sent:
        assert list(prune(kit.books, KEPT)) == [4, 4, 2, 0]
    assert count(sent, "DELETE FROM job_runs") == 3
    assert ids(kit) == []


def test_runs_of_many_steps_go_in_short_transactions(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction deletes few steps, but at least one run; all are deleted, each once."""
    monkeypatch.setattr(pruning, "STEPS_AT_ONCE", 10)
    for steps in (0, 4, 4, 25, 1, *[0] * 10):
        run_id = finished(kit, "succeeded", days=20)
        for number in range(steps):
            kit.sql(f"""
                INSERT INTO job_steps (run_id, name, kind, finished_at)
                VALUES ({run_id}, 'step {number}', 'step', '2026-01-01')
            """)
    with sent_by(kit.engine) as sent:
        assert pruned(kit) == 15
    assert (ids(kit), kit.sql("SELECT count(*) FROM job_steps")[0][0]) == ([], 0)
    deleted = [values for sql, values in sent.statements if "DELETE FROM job_steps" in sql]
    assert len(deleted) >= 4


def test_no_kind_waits_for_the_end_of_another(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick whose time is over stops after a round."""
    monkeypatch.setattr(ticks, "DELETED_AT_ONCE", 2)
    for number in range(6):
        finished(kit, "succeeded", 20)
        finished(kit, "dead", 100)
        batch(kit, str(number))
        kit.old_effect(str(number))
    rounds = prune(kit.books, KEPT)
    assert left(kit) == (12, 6, 6)
    assert next(rounds) == 4
    assert left(kit) == (8, 4, 4)
    assert sum(rounds) == 8
    assert left(kit) == (0, 0, 0)


@pytest.mark.parametrize("chunk", [2, 100])
def test_runs_of_a_batch_go_with_it(kit: Kit, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(ticks, "DELETED_AT_ONCE", chunk)
    ended = batch(kit, "all are old")
    for status, days in (("succeeded", 30), ("cancelled", 15), ("dead", 91), ("skipped", 16)):
        finished(kit, status, days, batch_id=ended)
    kept_ids = [
        finished(kit, status, days, batch_id=batch(kit, key, **values))
        for key, status, days, values in (
            ("not ended", "succeeded", 30, {"finished_at": None, "total": None}),
            ("ended lately", "succeeded", 30, {"finished_at": ago(days=13)}),
            ("one is dead", "dead", 89, {}),
            ("one was retried", "succeeded", 13, {}),
        )
    ]
    live = kit.run(batch_id=batch(kit, "one is tried again"))
    then_id = finished(kit, "succeeded", 13)
    batch(kit, "its then may ask", then_run_id=then_id)
    assert prunable(kit.books, KEPT) == 4
    assert pruned(kit) == 4
    assert ids(kit) == [*kept_ids, live, then_id]
    assert left(kit)[2] == 6


def test_run_that_is_retried_while_its_batch_is_pruned_stays(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [finished(kit, "dead", 100, batch_id=batch(kit, "b"))]
    real = pruning._prune_members

    def retried(*args: Any) -> Any:
        operator = kit.another()
        operator.act(RETRY, *members)
        operator.books.close()
        return real(*args)

    monkeypatch.setattr(pruning, "_prune_members", retried)
    assert pruned(kit) == 0
    assert left(kit) == (1, 0, 1)


def test_rows_that_must_stay_hold_up_no_others(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many older batches and effects belong to dead runs, which are kept."""
    monkeypatch.setattr(ticks, "DELETED_AT_ONCE", 2)
    for number in range(5):
        at = ago(days=300 - number)
        holding = batch(kit, f"of {number}", dead=1, finished_at=at)
        dead = finished(kit, "dead", 10, batch_id=holding)
        kit.old_effect(f"of {number}", done_at=at, run_id=dead)
    for number in range(3):
        batch(kit, str(number))
        kit.old_effect(str(number))
    pruned(kit)
    assert left(kit) == (5, 5, 5)


def test_others_write_between_two_transactions(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite, writers retry every few milliseconds, and would always find the file locked."""
    monkeypatch.setattr(ticks, "DELETED_AT_ONCE", 1)
    for _ in range(3):
        finished(kit, "succeeded", 20)
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        with kit.engine.begin() as writer:
            writer.execute(text("PRAGMA busy_timeout = 0"))
            writer.execute(text("UPDATE job_ticks SET recorded = 0"))

    monkeypatch.setattr(time, "sleep", rest)
    assert pruned(kit) == 3
    if kit.engine.dialect.name == "sqlite":
        assert len(rests) >= 3
        assert min(rests) > 0.0
    else:
        assert rests == []


def test_it_says_how_long_the_oldest_row_is_past_its_retention(kit: Kit) -> None:
    assert past(kit) == 0.0
    finished(kit, "succeeded", 13)
    finished(kit, "dead", 89, batch_id=batch(kit, "kept", finished_at=ago(days=100), dead=1))
    assert past(kit) == 0.0
    for days, add in (
        (1, lambda: finished(kit, "cancelled", 15)),
        (2, lambda: finished(kit, "dead", 92)),
        (4, lambda: batch(kit, "old", finished_at=ago(days=18))),
        (110, lambda: kit.old_effect("old")),
    ):
        add()
        assert past(kit) == pytest.approx(days * DAY, abs=DAY / 2)
    pruned(kit)
    assert past(kit) == 0.0


@pytest.mark.parametrize(
    "made",
    [
        lambda at: JobOperation(what="paused", target="queue mail", actor="ada", started_at=at),
    ],
)
def test_rows_of_history_are_kept_for_a_year(kit: Kit, made: Callable[[datetime], object]) -> None:
    old, young = made(ago(days=366)), made(ago(days=364))
    with Session(kit.engine) as session:
        session.add_all([old, young])
        session.commit()
        pruned(kit)
        assert session.scalars(select(type(old))).all() == [young]
