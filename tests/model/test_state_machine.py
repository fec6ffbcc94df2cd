"""The store beside its model, through random histories on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from flask_cronjobs.config import Settings
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.jobs.definitions import rows as definitions
from flask_cronjobs.jobs.definitions.slots import record_slots
from flask_cronjobs.jobs.pruning import prune
from flask_cronjobs.jobs.runs import changes
from flask_cronjobs.jobs.runs.changes import Operator
from flask_cronjobs.jobs.runs.claim import ClaimRequest
from flask_cronjobs.jobs.runs.exchange import Claims
from flask_cronjobs.jobs.runs.insert import insert_run
from flask_cronjobs.jobs.runs.leases import look_for_expired, progress, renew
from flask_cronjobs.registry.registry import DefinitionSpec
from flask_cronjobs.schedule.catchup import Slot, SlotPlan
from flask_cronjobs.types import Claim, Outcome
from tests.model.model import TERMINAL, ModelRun

SLOT = datetime(2026, 1, 5, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
KINDS = ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
#: Times that move when the clock steps.
CLOCKED = ("run_at", "locked_until", "finished_at")


class StoreMachine(RuleBasedStateMachine):
    """Rules call the store and the model; the invariants compare them after each."""

    engine: Engine

    @initialize()
    def begin(self) -> None:
        self.books = Bookkeeping(self.engine)
        for table in ("job_failures", "job_effects", "job_runs", "job_definitions"):
            self.sql(f"DELETE FROM {table}")
        self.claims, self.operator = Claims(self.books), Operator(self.books)
        self.runs: dict[int, ModelRun] = {}
        self.held: list[Claim] = []
        """Every claim ever made: those that were lost go on trying to write."""
        self.tokens = (f"host:{number}:fresh" for number in itertools.count())
        self.used: set[str] = set()
        self.slots: dict[int, list[datetime]] = {}
        self.plans: list[SlotPlan] = []

    def teardown(self) -> None:
        if hasattr(self, "books"):
            self.books.close()

    def sql(self, statement: str, **parameters: object) -> list[Any]:
        return list(self.books.rows(text(statement), parameters))

    def past(self, seconds: int) -> str:
        return self.books.dialect.later(str(-seconds))

    @rule(attempts=st.integers(1, 3), key=st.sampled_from([None, None, "k"]))
    def enqueue(self, attempts: int, key: str | None) -> None:
        limit = None if key is None else 1
        values = {"job_type": "t", "max_attempts": attempts, "payload": "{}", "on_dead": None,
                  "concurrency_key": key, "concurrency_limit": limit,
                  "run_at": None, "delay": 0.0}  # fmt: skip
        id_, _ = changes.insert_run(self.books, values)
        self.runs[id_] = ModelRun(attempts)

    @property
    def key_holders(self) -> list[int]:
        return [id_ for id_, run in self.runs.items() if run.holds_key]

    @rule()
    def enqueue_unique(self) -> None:
        """Enqueue a run whose key is unique while it is pending, unless there is one."""
        values = {"job_type": "t", "queue": "default", "priority": 0, "max_attempts": 2,
                  "concurrency_limit": None, "concurrency_key": None, "payload": "{}", "delay": 0.0,
                  "run_at": None, "idempotency_key": "u", "unique_while": "pending",
                  "batch_id": None, "on_dead": None}  # fmt: skip
        with Session(self.engine) as session:
            run, became, _ = insert_run(session, values)
            id_ = run.id
            session.commit()
        assert [id_] == self.key_holders or (became == "new" and not self.key_holders)
        self.runs.setdefault(id_, ModelRun(2, unique=True))

    @rule()
    def define(self) -> None:
        name = f"d{len(self.slots)}"
        spec = DefinitionSpec(name, "t", "* * * * *", "UTC", {}, max_attempts=2)
        assert definitions.declare(self.books, [(spec, SLOT)], "database") == 1
        assert definitions.declare(self.books, [(spec, SLOT)], "database") == 0
        row = definitions.find(self.books, name)
        assert row is not None
        self.slots[row.id] = []

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), number=st.integers(1, 3), skipped=st.integers(0, 2))
    def record_slots(self, data: st.DataObject, number: int, skipped: int) -> None:
        """Record slots from where the watermark stands."""
        id_ = data.draw(st.sampled_from(sorted(self.slots)))
        first = SLOT + len(self.slots[id_]) * MINUTE
        times = [first + n * MINUTE for n in range(number)]
        slots = [Slot(id_, at, skipped if at == first else 0, first) for at in times]
        plan = SlotPlan(id_, first, times[-1] + MINUTE, tuple(slots))
        self.plans.append(plan)
        overlapping = any(self.live_of(id_))
        recorded = record_slots(self.books, [plan])
        assert [slot.at for slot in recorded] == times
        for slot in recorded:
            assert (slot.skipped > 0) == (overlapping or (slot.at == first and skipped > 0))
            self.runs[slot.run_id] = ModelRun(2, "skipped" if slot.skipped else "queued")
        self.slots[id_] += times

    def live_of(self, definition: int) -> Iterator[int]:
        live = "status IN ('queued', 'running')"
        rows = self.sql(f"SELECT id FROM job_runs WHERE definition_id = {definition} AND {live}")
        return (row.id for row in rows)

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def record_slots_late(self, data: st.DataObject) -> None:
        """A tick that was slower than another records nothing."""
        assert record_slots(self.books, [data.draw(st.sampled_from(self.plans))]) == []

    @rule(limit=st.integers(1, 4), idle=st.booleans())
    def claim(self, limit: int, idle: bool) -> None:
        token = next(self.tokens)
        claimed = self.claims.exchange([], ClaimRequest(limit, token, ("t",), idle=idle)).claims
        assert len(claimed) <= limit
        if any(claim.attempt > 1 or claim.max_attempts == 1 for claim in claimed):
            assert idle
            assert len(claimed) == 1
        for claim in claimed:
            self.runs[claim.id].claim(token)
            assert claim.attempt == self.runs[claim.id].attempts
        self.held += claimed

    @precondition(lambda self: self.held)
    @rule(data=st.data(), kind=st.sampled_from(KINDS), delay=st.sampled_from([0.0, 60.0]))
    def finalize(self, data: st.DataObject, kind: Any, delay: float) -> None:
        """Any claim ever made says what came of it; only its run's holder is heard."""
        claim = data.draw(st.sampled_from(self.held))
        run = self.runs.get(claim.id)
        if run is not None and kind == "failed" and run.attempts >= run.max_attempts:
            kind = "dead"
        outcome = Outcome(
            claim.id, claim.token, kind, claim.attempt, "t", "it broke", "Broken", delay=delay
        )
        holds = run is not None and run.token == claim.token
        recorded = self.claims.exchange([outcome], None).recorded
        assert recorded == (frozenset({claim.id}) if holds else frozenset())
        if run is not None and holds:
            run.finalize(kind)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.held))
        run = self.runs.get(claim.id)
        holds = run is not None and run.token == claim.token
        renewal = renew(self.books, [claim], 120)
        assert renewal.held == (frozenset({claim.id}) if holds else frozenset())
        assert progress(self.books, claim, 0.5, "half") == holds
        assert bool(renewal.cancelled) == bool(run and holds and run.cancel_requested)

    @rule()
    def expire_and_reclaim(self) -> None:
        """All leases run out, and a tick takes the runs back."""
        self.sql(f"UPDATE job_runs SET locked_until = {self.past(1)} WHERE status = 'running'")
        outcomes = [
            Outcome(e.id, e.token, _fate(e), e.attempt, "t", "lost", "WorkerLost", reclaimed=True)
            for e in look_for_expired(self.books).leases
        ]
        running = {id_ for id_, run in self.runs.items() if run.status == "running"}
        assert {outcome.id for outcome in outcomes} == running
        assert self.claims.exchange(outcomes, None).recorded == running
        for outcome in outcomes:
            self.runs[outcome.id].finalize(outcome.kind)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def reclaim_a_living_lease(self, data: st.DataObject) -> None:
        """A reclaim that was planned before a renewal does nothing after it."""
        claim = data.draw(st.sampled_from(self.held))
        renew(self.books, [claim], 120)
        late = Outcome(claim.id, claim.token, "failed", 1, "t", "x", "X", reclaimed=True)
        assert self.claims.exchange([late], None).recorded == frozenset()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        self.operator.cancel([id_], "not wanted")
        self.runs[id_].cancel()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        self.operator.discard([id_], "not wanted")
        self.runs[id_].discard()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        self.operator.retry([id_])
        self.runs[id_].retry(bool(self.key_holders))

    @rule()
    def prune(self) -> None:
        ended = [id_ for id_, run in self.runs.items() if run.status in TERMINAL]
        self.sql(f"UPDATE job_runs SET finished_at = {self.past(1)} WHERE finished_at IS NOT NULL")
        assert sum(prune(self.books, Settings(retention=0, retention_dead=0))) == len(ended)
        for id_ in ended:
            del self.runs[id_]

    @rule(seconds=st.sampled_from([-90, 90]))
    def step_clock(self, seconds: int) -> None:
        """The database's clock steps: as seen from the rows, which all move the other way."""
        for column in CLOCKED:
            moved = (
                f"{column} - make_interval(secs => {seconds})"
                if self.books.dialect.name == "postgresql"
                else f"strftime('%Y-%m-%d %H:%M:%f000', {column}, '{-seconds:+d} seconds')"
            )
            self.sql(f"UPDATE job_runs SET {column} = {moved} WHERE {column} IS NOT NULL")

    @invariant()
    def the_rows_are_the_model(self) -> None:
        if not hasattr(self, "runs"):
            return
        rows = {row.id: row for row in self.sql("SELECT * FROM job_runs")}
        assert rows.keys() == self.runs.keys()
        for id_, run in self.runs.items():
            row = rows[id_]
            assert (row.status, row.attempts, row.locked_by) == (
                run.status,
                run.attempts,
                run.token,
            )
            assert row.attempts <= row.max_attempts == run.max_attempts

    @invariant()
    def each_failed_attempt_has_one_row(self) -> None:
        if not hasattr(self, "runs"):
            return
        rows = self.sql("SELECT run_id, attempt FROM job_failures ORDER BY attempt")
        kept = sorted((row.run_id, row.attempt) for row in rows)
        wanted = [(id_, n) for id_, run in self.runs.items() for n in run.failed_attempts]
        assert kept == sorted(wanted)

    @invariant()
    def one_run_at_most_has_the_unique_key(self) -> None:
        if not hasattr(self, "runs"):
            return
        sql = "SELECT count(*) FROM job_runs WHERE idempotency_key = 'u' AND finished_at IS NULL"
        assert self.sql(sql)[0][0] == len(self.key_holders) <= 1

    @invariant()
    def no_key_is_held_twice(self) -> None:
        if not hasattr(self, "runs"):
            return
        sql = "SELECT count(*) FROM job_runs WHERE status = 'running' AND concurrency_key = 'k'"
        assert self.sql(sql)[0][0] <= 1


def _fate(expired: Any) -> Any:
    return "failed" if expired.attempt < expired.max_attempts else "dead"


@pytest.mark.parametrize(
    ("database", "examples"), [("sqlite", 40), ("postgresql", 12)], ids=["sqlite", "postgresql"]
)
def test_the_store_does_as_its_model(
    database: str, examples: int, request: pytest.FixtureRequest
) -> None:
    engine = create_engine(request.getfixturevalue(f"{database}_url"))
    create_tables(engine)
    machine = type("Machine", (StoreMachine,), {"engine": engine})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        engine.dispose()
