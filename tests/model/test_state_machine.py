"""The store beside its model, through random histories on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
from flask_cronjobs.jobs import once_effects, orders, rates
from flask_cronjobs.jobs.batches import rows as batches
from flask_cronjobs.jobs.batches.ending import end_batch, end_batches
from flask_cronjobs.jobs.definitions import rows as definitions
from flask_cronjobs.jobs.definitions.slots import record_slots
from flask_cronjobs.jobs.operations import Act, Operation
from flask_cronjobs.jobs.pruning import prune
from flask_cronjobs.jobs.runs import changes
from flask_cronjobs.jobs.runs.changes import Operator
from flask_cronjobs.jobs.runs.claim import ClaimRequest, record_and_claim, release_token
from flask_cronjobs.jobs.runs.insert import insert_run
from flask_cronjobs.jobs.runs.leases import look_for_expired, progress, renew, watch
from flask_cronjobs.models.conditions import RUNNABLE, RUNNING
from flask_cronjobs.registry import DefinitionSpec
from flask_cronjobs.registry.options import Rate
from flask_cronjobs.schedule.catchup import Slot, SlotPlan
from flask_cronjobs.types import Claim, Outcome, stored_time
from tests.jobs.test_rates import refuse_too_early
from tests.model.model import TERMINAL, Model, ModelBatch, ModelRun

SLOT = datetime(2026, 1, 5, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
KINDS = ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
#: Times that move when the clock steps.
CLOCKED = ("run_at", "locked_until", "finished_at")
#: A key with one share, and one with a strict order.
KEYED, ORDERED = "k", "o"
#: And one with a rate.
RATED, RATE = "r", Rate(timedelta(hours=1), 3)
#: Of the run of ``then``.
THEN = {**dict.fromkeys(batches.THEN_COLUMNS), "queue": "default", "priority": 0,
        "max_attempts": 2, "strict": False}  # fmt: skip
#: The tables, in an order in which nothing is missed while they are emptied.
TABLES = ("job_rates", "job_failures", "job_effects", "job_batches", "job_runs", "job_definitions")


class StoreMachine(RuleBasedStateMachine):
    """Rules call the store and the model; the invariants compare them after each.

    What follows adds rules about one subject each: all at once would seldom meet.
    """

    engine: Engine

    @initialize()
    def begin(self) -> None:
        self.books = Bookkeeping(self.engine)
        for table in TABLES:
            self.sql(f"DELETE FROM {table}")
        self.operator = Operator(self.books, Operation(Act("changed", "runs", "ada")))
        self.model = Model()
        self.runs, self.batches = self.model.runs, self.model.batches
        self.marks: dict[str, tuple[str, int, str]] = {}
        """The owner, the run and the state of each effect."""
        self.used: set[int] = set()
        """The ids that runs have or had: others were taken by transactions that rolled back."""
        self.held: list[Claim] = []
        """Every claim ever made: those that were lost go on trying to write."""
        self.numbers = itertools.count()
        self.tokens = (f"host:{number}:fresh" for number in self.numbers)
        self.slots: dict[int, list[datetime]] = {}
        self.plans: list[dict[int, SlotPlan]] = []
        self.fill()

    def fill(self) -> None:
        """Make what the rules are about: in many histories, no rule that makes any is chosen."""
        for _ in range(3):
            self.insert(2, None, strict=False)

    def teardown(self) -> None:
        if hasattr(self, "books"):
            self.books.close()

    def sql(self, statement: str, **parameters: object) -> list[Any]:
        return list(self.books.rows(text(statement), parameters))

    def past(self, seconds: int) -> str:
        return self.books.dialect.later(str(-seconds))

    @rule(
        attempts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        key=st.sampled_from([None, KEYED]),
    )
    def enqueue(self, attempts: list[int], key: str | None) -> None:
        for most in attempts:
            self.insert(most, key, strict=False)

    def insert(
        self,
        attempts: int,
        key: str | None,
        strict: bool,
        batch: int | None = None,
        rate_key: str | None = None,
    ) -> int:
        limit = None if key is None else 1
        values = {"job_type": "t", "max_attempts": attempts, "payload": "{}", "strict": strict,
                  "concurrency_key": key, "concurrency_limit": limit, "batch_id": batch,
                  "rate_key": rate_key, "run_at": None, "delay": 0.0}  # fmt: skip
        id_, _ = changes.insert_by_operator(self.books, values)
        self.runs[id_] = ModelRun(attempts, strict=strict, batch=batch)
        return id_

    def transaction(self, work: Any) -> Any:
        return self.books.transaction(lambda connection: work(connection, self.books.dialect))

    @property
    def key_holders(self) -> list[int]:
        return [id_ for id_, run in self.runs.items() if run.holds_key]

    @rule()
    def enqueue_unique(self) -> None:
        """Enqueue a run whose key is unique while it is pending, unless there is one."""
        values = {"job_type": "t", "queue": "default", "priority": 0, "max_attempts": 2,
                  "concurrency_limit": None, "concurrency_key": None, "payload": "{}", "delay": 0.0,
                  "run_at": None, "idempotency_key": "u", "unique_while": "pending",
                  "batch_id": None, "strict": False, "rate_key": None, "label": None}  # fmt: skip
        with Session(self.engine) as session:
            run, became, _ = insert_run(session, values)
            id_ = run.id
            session.commit()
        assert [id_] == self.key_holders or (became == "new" and not self.key_holders)
        self.runs.setdefault(id_, ModelRun(2, unique=True))

    @rule(limit=st.integers(1, 4), idle=st.booleans(), gives=st.booleans())
    def claim(self, limit: int, idle: bool, gives: bool) -> None:
        if gives:
            orders.give(self.books)
        self.claimed(limit, idle)

    def claimed(self, limit: int, idle: bool) -> Sequence[Claim]:
        """Claim, and give back at once what does not come first in its order, as a worker does."""
        token = next(self.tokens)
        claimed = record_and_claim(
            self.books, [], ClaimRequest(limit, token, ("t",), idle=idle)
        ).claims
        assert len(claimed) <= limit
        if any(claim.attempt > 1 or claim.max_attempts == 1 for claim in claimed):
            assert idle
            assert len(claimed) == 1
        for claim in claimed:
            self.runs[claim.id].claim(token)
            assert claim.attempt == self.runs[claim.id].attempts
        first = orders.held_first(self.books, token)
        assert first == {claim.id for claim in claimed if self.model.comes_first(claim.id)}
        too_early = self.without_slot(claimed)
        back = [claim for claim in claimed if claim.id not in first or claim in too_early]
        outcomes = [Outcome(each.id, token, "released", each.attempt, "t") for each in back]
        assert record_and_claim(self.books, outcomes, None).recorded == {each.id for each in back}
        for claim in back:
            self.runs[claim.id].finalize("released")
        self.held += claimed
        return claimed

    def without_slot(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Those of *claims* that must not begin, since their rate has no start for them."""
        return []

    def holds(self, claim: Claim) -> bool:
        run = self.runs.get(claim.id)
        return run is not None and run.token == claim.token

    @rule(kinds=st.lists(st.sampled_from([*KINDS, "succeeded", "dead"]), min_size=1, max_size=4))
    def work(self, kinds: list[Any]) -> None:
        """Claim runs, and end their attempts."""
        orders.give(self.books)
        for claim, kind in zip(self.claimed(len(kinds), idle=True), kinds, strict=False):
            self.end(claim, kind, 0.0)

    @rule(kind=st.sampled_from(["succeeded", "dead", "cancelled"]))
    def work_off(self, kind: Any) -> None:
        """Claim and end all that is due."""
        orders.give(self.books)
        while claimed := self.claimed(4, idle=True):
            for claim in claimed:
                self.end(claim, kind, 0.0)
            orders.give(self.books)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), kind=st.sampled_from(KINDS), delay=st.sampled_from([0.0, 60.0]))
    def finalize(self, data: st.DataObject, kind: Any, delay: float) -> None:
        """Any claim ever made says what came of it; only its run's holder is heard."""
        self.end(data.draw(st.sampled_from(self.held)), kind, delay)

    def end(self, claim: Claim, kind: Any, delay: float) -> None:
        run = self.runs.get(claim.id)
        if run is not None and kind == "failed" and run.attempts >= run.max_attempts:
            kind = "dead"
        outcome = Outcome(
            claim.id, claim.token, kind, claim.attempt, "t", "it broke", "Broken", delay=delay
        )
        holds = self.holds(claim)
        assert self.record(outcome) == (frozenset({claim.id}) if holds else frozenset())
        if run is not None and holds:
            run.finalize(kind)

    def record(self, outcome: Outcome) -> frozenset[int]:
        return record_and_claim(self.books, [outcome], None).recorded

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.held))
        run = self.runs.get(claim.id)
        holds = self.holds(claim)
        renewal = renew(self.books, [claim], 120)
        assert renewal.held == (frozenset({claim.id}) if holds else frozenset())
        assert watch(self.books, [claim]) == renewal._replace(is_heartbeat=False)
        assert progress(self.books, claim, 0.5, "half") == holds
        assert bool(renewal.cancelled) == bool(run and holds and run.cancel_requested)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_token(self, data: st.DataObject) -> None:
        """Give back all that is held under a token, as if the answer of its claim was lost."""
        token = data.draw(st.sampled_from(self.held)).token
        held = [run for run in self.runs.values() if run.token == token]
        assert release_token(self.books, token)
        for run in held:
            run.finalize("released")

    @rule()
    def expire_and_reclaim(self) -> None:
        """All leases run out, and a tick takes the runs back."""
        self.sql(f"UPDATE job_runs SET locked_until = {self.past(1)} WHERE status = 'running'")
        outcomes = [
            Outcome(e.id, e.token, _fate(e), e.attempt, "t", "lost", "WorkerLost", reclaimed=True)
            for e in look_for_expired(self.books)
        ]
        running = {id_ for id_, run in self.runs.items() if run.status == "running"}
        assert {outcome.id for outcome in outcomes} == running
        assert record_and_claim(self.books, outcomes, None).recorded == running
        for outcome in outcomes:
            self.runs[outcome.id].finalize(outcome.kind)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def reclaim_a_living_lease(self, data: st.DataObject) -> None:
        """A reclaim that was planned before a renewal does nothing after it."""
        claim = data.draw(st.sampled_from(self.held))
        renew(self.books, [claim], 120)
        late = Outcome(claim.id, claim.token, "failed", 1, "t", "x", "X", reclaimed=True)
        assert record_and_claim(self.books, [late], None).recorded == frozenset()

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
        before = len(self.runs)
        marked = {row.id for row in self.sql("SELECT id FROM job_runs WHERE order_mark = 'over'")}
        for table, ended in (
            ("job_runs", "finished_at"),
            ("job_batches", "finished_at"),
            ("job_effects", "done_at"),
        ):
            self.sql(f"UPDATE {table} SET {ended} = {self.past(1)} WHERE {ended} IS NOT NULL")
        pruned = sum(prune(self.books, Settings(retention=0, retention_dead=0)))
        self.model.prune(marked)
        assert pruned == before - len(self.runs)
        for key, (_, id_, state) in list(self.marks.items()):
            run = self.runs.get(id_)
            if state == "done" and (run is None or run.status in ("succeeded", "skipped")):
                del self.marks[key]

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
        rows = {row.id: row for row in self.sql("SELECT * FROM job_runs")}
        assert rows.keys() == self.runs.keys()
        self.used |= self.runs.keys()
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
        rows = self.sql("SELECT run_id, attempt FROM job_failures ORDER BY attempt")
        kept = sorted((row.run_id, row.attempt) for row in rows)
        wanted = [(id_, n) for id_, run in self.runs.items() for n in run.failed_attempts]
        assert kept == sorted(wanted)

    @invariant()
    def one_run_at_most_has_the_unique_key(self) -> None:
        sql = "SELECT count(*) FROM job_runs WHERE idempotency_key = 'u' AND finished_at IS NULL"
        assert self.sql(sql)[0][0] == len(self.key_holders) <= 1

    @invariant()
    def no_key_is_held_twice(self) -> None:
        sql = f"SELECT concurrency_key FROM job_runs WHERE {RUNNING}"
        keys = [row[0] for row in self.sql(sql) if row[0] is not None]
        assert len(keys) == len(set(keys))

    @invariant()
    def batches_are_the_model(self) -> None:
        rows = {row.id: row for row in self.sql("SELECT * FROM job_batches")}
        assert rows.keys() == self.batches.keys()
        for id_, batch in self.batches.items():
            row, counts = rows[id_], batch.counts
            assert row.then_run_id == batch.then_run
            assert (row.closed_at is not None) == batch.closed
            assert (row.finished_at is not None) == (counts is not None)
            if counts is not None:
                assert row.total == counts.total()
                assert {kind: getattr(row, kind) for kind in TERMINAL} == {
                    kind: counts[kind] for kind in TERMINAL
                }

    @invariant()
    def marks_are_the_model(self) -> None:
        rows = self.sql("SELECT key, locked_by, run_id, state FROM job_effects")
        assert {row.key: tuple(row)[1:] for row in rows} == self.marks


class SlotMachine(StoreMachine):
    """Slots of definitions become runs, whatever happens to these."""

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
        slots = [Slot(at, skipped if at == first else 0, first) for at in times]
        plan = SlotPlan(first, times[-1] + MINUTE, tuple(slots))
        self.plans.append({id_: plan})
        overlapping = any(self.live_of(id_))
        recorded = record_slots(self.books, {id_: plan})
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
        assert record_slots(self.books, data.draw(st.sampled_from(self.plans))) == []


class OrderMachine(StoreMachine):
    """Runs in strict order: each begins when no earlier one is to end before."""

    def fill(self) -> None:
        self.enqueue_ordered(4)
        super().fill()

    @rule(number=st.integers(1, 3))
    def enqueue_ordered(self, number: int) -> None:
        for _ in range(number):
            self.insert(2, ORDERED, strict=True)

    @rule(is_late=st.booleans())
    def enqueue_late(self, is_late: bool) -> None:
        """A transaction that has taken an id commits after another with a higher one."""
        gaps = sorted(set(range(min(self.runs, default=1), max(self.runs, default=1))) - self.used)
        id_ = self.insert(2, ORDERED, strict=True)
        if is_late and gaps:
            self.sql("UPDATE job_runs SET id = :gap WHERE id = :id", gap=gaps[-1], id=id_)
            self.runs[gaps[-1]] = self.runs.pop(id_)
        elif not is_late:
            self.sql("DELETE FROM job_runs WHERE id = :id", id=id_)
            del self.runs[id_]

    @property
    def ordered(self) -> list[int]:
        return [id_ for id_, run in self.runs.items() if run.strict and run.batch is None]

    @precondition(lambda self: self.ordered)
    @rule(data=st.data())
    def delete_by_hand(self, data: st.DataObject) -> None:
        """Somebody deletes a run, perhaps the one that has the turn; a tick mends that."""
        id_ = data.draw(st.sampled_from(self.ordered))
        self.sql("DELETE FROM job_failures WHERE run_id = :id", id=id_)
        self.sql("DELETE FROM job_runs WHERE id = :id", id=id_)
        del self.runs[id_]
        while orders.mend(self.books):
            assert orders.give(self.books)

    @rule()
    def claim_all(self) -> None:
        """Once nothing more is found, each run that is due waits for another one of its key."""
        for _ in range(100):
            orders.give(self.books)
            if not self.claimed(4, idle=True):
                break
        else:
            pytest.fail("a run is claimed and given back again and again")
        now = self.books.dialect.now
        due = f"""
            SELECT id, concurrency_key FROM job_runs
            WHERE {RUNNABLE} AND run_at <= {now} AND rate_mark IS NULL
        """
        working = self.sql(f"SELECT concurrency_key FROM job_runs WHERE {RUNNING}")
        keys = {row.concurrency_key for row in working} - {None}
        assert all(
            row.concurrency_key in keys or not self.model.comes_first(row.id)
            for row in self.sql(due)
        )


class BatchMachine(StoreMachine):
    """Batches: they end once and are pruned as their runs say."""

    def fill(self) -> None:
        for _ in range(2):
            batch = self.make_batch()
            self.insert(1, None, False, batch)
            self.insert(2, None, False, batch)
        super().fill()

    @rule()
    def open_batch(self) -> None:
        self.make_batch()

    def make_batch(self) -> int:
        new = batches.NewBatch(f"b{next(self.numbers)}", "t", "{}", THEN)
        id_, is_open = self.transaction(lambda c, d: batches.open_batch(c, d, new))
        assert is_open
        assert self.transaction(lambda c, d: batches.open_batch(c, d, new)) == (id_, True)
        self.batches[id_] = ModelBatch()
        return int(id_)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), attempts=st.integers(1, 2), key=st.sampled_from([None, ORDERED]))
    def join_batch(self, data: st.DataObject, attempts: int, key: str | None) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.batches)))
        is_open = self.transaction(lambda c, d: batches.hold_open(c, id_))
        assert is_open == (not self.batches[id_].closed)
        if is_open:
            self.insert(attempts, key, key == ORDERED, id_)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """Whoever fills a batch closes it; it ends at once if all of its runs have."""
        id_ = data.draw(st.sampled_from(sorted(self.batches)))
        assert self.transaction(lambda c, d: batches.close(c, d, id_))
        self.batches[id_].closed = True
        self.end_one(id_)

    @rule(kind=st.sampled_from(["succeeded", "dead"]))
    def close_all(self, kind: str) -> None:
        """Whoever fills batches is ready, and what is due in them is worked off."""
        for id_, batch in self.batches.items():
            assert self.transaction(lambda c, d, id_=id_: batches.close(c, d, id_))
            batch.closed = True
        self.work_off(kind)
        self.end_batches()

    def end_one(self, id_: int) -> None:
        """Somebody looks at one batch."""
        ends = self.model.may_end(id_)
        ended = self.transaction(lambda c, d: end_batch(c, d, id_))
        assert (ended is not None) == ends
        if ends:
            self.model.end(id_, ended.then_run_id)

    @rule()
    def end_batches(self) -> None:
        """A look at all batches ends those that can be."""
        ending = [id_ for id_ in self.batches if self.model.may_end(id_)]
        assert end_batches(self.books) == len(ending)
        for id_ in ending:
            (row,) = self.sql("SELECT then_run_id FROM job_batches WHERE id = :id", id=id_)
            self.model.end(id_, row.then_run_id)


class EffectMachine(StoreMachine):
    """Effects: each is done by one that holds its run."""

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.sampled_from(["e", "f"]), redoes=st.booleans())
    def begin_effect(self, data: st.DataObject, key: str, redoes: bool) -> None:
        """Any claim ever made begins an effect; only a run's holder may, and only one at a time."""
        claim = data.draw(st.sampled_from(self.held))
        owner, id_, state = self.marks.get(key, (None, 0, None))
        mark = once_effects.begin(self.books, key, claim.token, claim.id, 60)
        if state == "done":
            assert mark.state == "done"
        elif not self.holds(claim):
            assert mark.state == "lost"
        elif owner is None:
            assert mark.state == "mine"
            self.marks[key] = claim.token, claim.id, "begun"
        else:
            assert (mark.state, mark.owner) == (
                "busy" if self.is_alive(owner, id_) else "in_doubt",
                owner,
            )
            if mark.state == "in_doubt" and redoes:
                given = self.books, key, owner, claim.token, claim.id, 60
                assert once_effects.take_over(*given)
                assert once_effects.take_over(*given) == (owner == claim.token)
                self.marks[key] = claim.token, claim.id, "begun"

    def is_alive(self, token: str, id_: int) -> bool:
        now = self.books.dialect.now
        held = f"SELECT id FROM job_runs WHERE id = :id AND locked_by = :token AND {RUNNING}"
        return bool(self.sql(f"{held} AND locked_until > {now}", id=id_, token=token))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.sampled_from(["e", "f"]))
    def finish_effect(self, data: st.DataObject, key: str) -> None:
        """Only whose mark it is can say that an effect is done."""
        claim = data.draw(st.sampled_from(self.held))
        owner, id_, _ = self.marks.get(key, (None, 0, None))
        assert once_effects.done(self.books, key, claim.token, 1) == (owner == claim.token)
        if owner == claim.token:
            self.marks[key] = claim.token, id_, "done"


class RateMachine(StoreMachine):
    """Runs that begin at a rate. What the clock does is done to the rows, an hour at a time."""

    def fill(self) -> None:
        self.ahead = 0
        """How many hours after now the ``tat`` of the key is."""
        self.holds_rate = False
        self.begun: dict[tuple[int, str], datetime] = {}
        """When those were claimed that have taken a start, which none gives back."""
        self.opened: set[int] = set()
        self.enqueue_rated(4)
        super().fill()

    @rule(number=st.integers(1, 3))
    def enqueue_rated(self, number: int) -> None:
        for _ in range(number):
            self.insert(2, None, strict=False, rate_key=RATED)

    @property
    def free(self) -> int:
        return max(0, RATE.burst - max(0, self.ahead))

    def rated(self, where: str) -> set[int]:
        rows = self.sql(f"SELECT id FROM job_runs WHERE rate_key IS NOT NULL AND {where}")
        return {row.id for row in rows}

    @property
    def tat(self) -> datetime | None:
        rows = self.sql("SELECT tat FROM job_rates")
        return stored_time(rows[0].tat) if rows else None

    @rule()
    def open_starts(self) -> None:
        due = f"{RUNNABLE} AND run_at <= {self.books.dialect.now} AND attempts < max_attempts"
        ready = len(self.rated(f"{due} AND rate_mark IS NULL"))
        waiting = self.rated(f"{due} AND rate_mark = 'waits'")
        found = rates.open_starts(self.books, {"t": RATE}, ClaimRequest(1, "", ("t",)))
        opened = waiting - self.rated("rate_mark = 'waits'")
        assert found.opened == len(opened) == min(len(waiting), max(0, self.free - ready))
        assert (found.wait is not None) == bool(waiting and not self.free)
        self.opened |= opened

    @rule(number=st.integers(1, 4), released=st.booleans())
    def begin_at_rate(self, number: int, released: bool) -> None:
        """Take what starts there are, and perhaps release the runs: their starts stay taken."""
        self.open_starts()
        for _ in range(number):
            for claim in self.claimed(1, idle=True):
                if released and self.holds(claim):
                    self.end(claim, "released", 0.0)

    def without_slot(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        rated = self.rated("status = 'running'")
        refused = rates.spend(self.books, {"t": RATE}, claims) if claims else {}
        limited = [claim for claim in claims if claim.id in rated]
        got = [claim for claim in limited if claim.id not in refused]
        assert got == limited[: self.free]
        for claim in got:
            (row,) = self.sql("SELECT started_at FROM job_runs WHERE id = :id", id=claim.id)
            self.begun[claim.identity] = stored_time(row.started_at)
            self.ahead = max(0, self.ahead) + 1
        self.opened -= {claim.id for claim in claims}
        return [claim for claim in limited if claim not in got]

    def record(self, outcome: Outcome) -> frozenset[int]:
        if not self.holds_rate:
            return super().record(outcome)
        asked = outcome._replace(holds_rate=True)
        return rates.record_and_hold(self.books, asked, RATE).recorded

    @precondition(lambda self: self.held)
    @rule(data=st.data(), hours=st.integers(0, 2))
    def hold_back(self, data: st.DataObject, hours: int) -> None:
        """Any claim ever made asks for it; only its run's holder is heard."""
        claim = data.draw(st.sampled_from(self.held))
        is_heard = self.holds(claim) and claim.id in self.rated("status = 'running'")
        self.holds_rate = True
        self.end(claim, "failed", hours * 3600.0)
        self.holds_rate = False
        if is_heard:
            self.ahead = max(self.ahead, hours + RATE.burst - 1)

    @rule(hours=st.integers(1, 3))
    def time_passes(self, hours: int) -> None:
        past = hours * RATE.period
        if (tat := self.tat) is not None:
            moved = self.books.dialect.instant(tat - past)
            self.sql(
                f"UPDATE job_rates SET tat = {self.books.dialect.typed(':tat', 'timestamptz')},"
                " last_at = NULL",
                tat=moved,
            )
        self.ahead -= hours
        self.begun = {which: at - past for which, at in self.begun.items()}

    @invariant()
    def the_key_is_the_model(self) -> None:
        if self.ahead > 0:
            (row,) = self.sql(f"SELECT {self.books.dialect.now} AS now, tat FROM job_rates")
            ahead = stored_time(row.tat) - stored_time(row.now)
            assert timedelta() <= self.ahead * RATE.period - ahead < timedelta(minutes=10)

    @invariant()
    def no_window_has_too_many(self) -> None:
        refuse_too_early(sorted(self.begun.values()), RATE.period.total_seconds(), RATE.burst)

    @invariant()
    def only_those_whose_slot_has_come_may_be_claimed(self) -> None:
        assert self.rated(f"{RUNNABLE} AND rate_mark IS NULL") <= self.opened


class WholeMachine(SlotMachine, OrderMachine, BatchMachine, EffectMachine, RateMachine):
    """All rules at once."""


def _fate(expired: Any) -> Any:
    return "failed" if expired.attempt < expired.max_attempts else "dead"


FOCUSED = (SlotMachine, OrderMachine, BatchMachine, EffectMachine, RateMachine)


@pytest.mark.parametrize(
    ("rules", "on_sqlite", "on_postgresql"),
    [
        *((rules, 20, 8) for rules in FOCUSED),
        *(
            pytest.param(rules, 150, 80, marks=pytest.mark.slow)
            for rules in (*FOCUSED, WholeMachine)
        ),
    ],
)
def test_the_store_does_as_its_model(
    rules: type[StoreMachine], database_url: str, on_sqlite: int, on_postgresql: int
) -> None:
    examples = on_sqlite if database_url.startswith("sqlite") else on_postgresql
    compare(rules, database_url, examples)


def compare(rules: type[StoreMachine], url: str, examples: int) -> None:
    engine = create_engine(url)
    create_tables(engine)
    machine = type("Machine", (rules,), {"engine": engine})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        engine.dispose()
