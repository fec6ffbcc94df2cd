"""Rules about one subject each, in addition to those of all histories."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy.orm import Session

from flask_cronjobs.core import definitions, gate
from flask_cronjobs.core.slots import record_slots
from flask_cronjobs.core.tasks.options import RunPolicy
from flask_cronjobs.features.batches import batch_rows as batches
from flask_cronjobs.features.batches.ending import end_batch, end_batches
from flask_cronjobs.features.once import once_effects
from flask_cronjobs.features.steps import step_rows as steps
from flask_cronjobs.features.steps.step_rows import StepRow
from flask_cronjobs.models.conditions import RUNNING, UNCLAIMED
from flask_cronjobs.schedule.catchup import Slot, SlotPlan
from flask_cronjobs.types import Claim
from tests.kit import spec
from tests.state_machine.model import ModelBatch, ModelRun
from tests.state_machine.store_machine import KEYED, ORDERED, StoreMachine

SLOT = datetime(2026, 1, 5, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
#: The time limits of the runs of slots, in seconds.
LONG_AGO = -1e9
#: The policy of the run of ``then``.
THEN = RunPolicy(job_type="t", max_attempts=2).policy


class SlotMachine(StoreMachine):
    """Slots of definitions become runs, whatever happens to the definitions."""

    def fill(self) -> None:
        self.slots: dict[int, list[datetime]] = {}
        self.names: dict[int, str] = {}
        self.plans: list[dict[int, SlotPlan]] = []
        super().fill()

    @rule()
    def define(self) -> None:
        name = f"d{len(self.slots)}"
        stated = spec(name, job_type="t", max_attempts=2)
        assert definitions.declare(self.books, [(stated, SLOT)], "database") == 1
        assert definitions.declare(self.books, [(stated, SLOT)], "database") == 0
        row = definitions.find(self.books, name)
        assert row is not None
        self.slots[row.id] = []
        self.names[row.id] = name

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), number=st.integers(1, 3), skipped=st.integers(0, 2))
    def record_slots(self, data: st.DataObject, number: int, skipped: int) -> None:
        """Record slots from the watermark on."""
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
            status = "skipped" if slot.skipped else "queued"
            key = f"definition:{self.names[id_]}"
            run = ModelRun(2, status, due=LONG_AGO, concurrency=key)
            self.runs[slot.run_id] = run
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
    """Runs in strict order: each begins only after all earlier ones have ended."""

    def fill(self) -> None:
        self.enqueue_ordered(4)
        super().fill()

    @rule(number=st.integers(1, 3))
    def enqueue_ordered(self, number: int) -> None:
        for _ in range(number):
            self.insert(2, concurrency=ORDERED, strict=True)

    @rule(is_late=st.booleans())
    def enqueue_late(self, is_late: bool) -> None:
        """A transaction that has taken an id commits after another with a higher id."""
        gaps = sorted(set(range(min(self.runs, default=1), max(self.runs, default=1))) - self.used)
        id_ = self.insert(2, concurrency=ORDERED, strict=True)
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
        """A run is deleted by hand, perhaps the first one; a tick opens the next one."""
        id_ = data.draw(st.sampled_from(self.ordered))
        for table in ("job_failures", "job_steps"):
            self.sql(f"DELETE FROM {table} WHERE run_id = :id", id=id_)
        self.sql("DELETE FROM job_runs WHERE id = :id", id=id_)
        del self.runs[id_]
        self.left = True

    @rule()
    def claim_all(self) -> None:
        """When nothing more can be claimed, each due run waits for another run of its key."""
        if self.left:
            gate.open_all_left_parked(self.books)
            self.left = False
        for _ in range(100):
            if not self.claimed(4, idle=True) and not self.parked:
                break
        else:
            pytest.fail("a run is claimed and given back again and again")
        now = self.books.dialect.now
        due = f"""
            SELECT id, concurrency_key FROM job_runs
            WHERE {UNCLAIMED} AND run_at <= {now} AND COALESCE(gate, '') <> 'rate'
        """
        working = self.sql(f"SELECT concurrency_key FROM job_runs WHERE {RUNNING}")
        keys = {row.concurrency_key for row in working} - {None}
        assert all(
            row.concurrency_key in keys or not self.model.comes_first(row.id)
            for row in self.sql(due)
        )


class BatchMachine(StoreMachine):
    """Batches end once, and are pruned as their runs require."""

    def fill(self) -> None:
        for _ in range(2):
            batch = self.make_batch()
            self.insert(1, batch=batch)
            self.insert(2, batch=batch)
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
            self.insert(attempts, concurrency=key, strict=key == ORDERED, batch=id_)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """A client that fills a batch closes it; it ends at once if all of its runs have ended."""
        id_ = data.draw(st.sampled_from(sorted(self.batches)))
        assert self.transaction(lambda c, d: batches.close(c, d, id_))
        self.batches[id_].closed = True
        self.end_one(id_)

    @rule(kind=st.sampled_from(["succeeded", "dead"]))
    def close_all(self, kind: str) -> None:
        """All batches are closed, and their due runs are executed."""
        for id_, batch in self.batches.items():
            assert self.transaction(lambda c, d, id_=id_: batches.close(c, d, id_))
            batch.closed = True
        self.work_off(kind)
        self.end_batches()

    def end_one(self, id_: int) -> None:
        """A worker checks one batch."""
        ends = self.model.may_end(id_)
        ended = self.transaction(lambda c, d: end_batch(c, d, id_))
        assert (ended is not None) == ends
        if ends:
            self.model.end(id_, ended.then_run_id)

    @rule()
    def end_batches(self) -> None:
        """A check of all batches ends those that can end."""
        ending = [id_ for id_ in self.batches if self.model.may_end(id_)]
        assert end_batches(self.books) == len(ending)
        for id_ in ending:
            (row,) = self.sql("SELECT then_run_id FROM job_batches WHERE id = :id", id=id_)
            self.model.end(id_, row.then_run_id)


class EffectMachine(StoreMachine):
    """Only a claim that holds its run performs effects."""

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.sampled_from(["e", "f"]), redoes=st.booleans())
    def begin_effect(self, data: st.DataObject, key: str, redoes: bool) -> None:
        """Any claim ever made tries to begin an effect; only a run's holder may, one at a time."""
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
                values = self.books, key, owner, claim.token, claim.id, 60
                assert once_effects.take_over(*values)
                assert once_effects.take_over(*values) == (owner == claim.token)
                self.marks[key] = claim.token, claim.id, "begun"

    def is_alive(self, token: str, id_: int) -> bool:
        now = self.books.dialect.now
        query = f"SELECT id FROM job_runs WHERE id = :id AND locked_by = :token AND {RUNNING}"
        return bool(self.sql(f"{query} AND locked_until > {now}", id=id_, token=token))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.sampled_from(["e", "f"]))
    def finish_effect(self, data: st.DataObject, key: str) -> None:
        """Only the owner of a mark can finish an effect."""
        claim = data.draw(st.sampled_from(self.held))
        owner, id_, _ = self.marks.get(key, (None, 0, None))
        assert once_effects.done(self.books, key, claim.token, 1) == (owner == claim.token)
        if owner == claim.token:
            self.marks[key] = claim.token, id_, "done"


class KeyMachine(StoreMachine):
    """Idempotency keys: which run has one, for how long, and which run an enqueue replaces."""

    def fill(self) -> None:
        self.enqueue_keyed("v", "waiting", True, None, 0.0)
        super().fill()

    @rule(
        key=st.sampled_from("uv"),
        unique_while=st.sampled_from([None, "pending", "waiting"]),
        replace=st.sampled_from([False, True, "payload", "run_at"]),
        concurrency=st.sampled_from([None, KEYED]),
        delay=st.sampled_from([0.0, 60.0]),
    )
    def enqueue_keyed(
        self, key: str, unique_while: Any, replace: Any, concurrency: str | None, delay: float
    ) -> None:
        self.enqueue_any(key, unique_while, replace, concurrency=concurrency, due=delay)

    def enqueue_any(self, key: str, unique_while: Any, replace: Any, **given: Any) -> None:
        """Enqueue a run with a key and a payload; if replacing, its key is for waiting runs."""
        lasts = "waiting" if replace else unique_while
        payload = {"version": next(self.numbers)}
        self.enqueue_with_key(
            ModelRun(2, payload=payload, key=key, unique_while=lasts, **given), replace
        )

    @rule(replace=st.sampled_from([False, True]), released=st.sampled_from([0, 1, 2]))
    def enqueue_while_it_is_held(self, replace: bool, released: int) -> None:
        """Enqueue before a claim, while it holds, and once its run was given back."""
        self.enqueue_any("v", "waiting", replace)
        claimed = self.claimed(4, idle=True)
        self.enqueue_any("v", "waiting", replace)
        for claim in claimed[:released]:
            if self.holds(claim):
                self.end(claim, "released", 0.0)
        self.enqueue_any("v", "waiting", replace)


class StepMachine(StoreMachine):
    """Only a claim that holds its run performs durable steps, and they forgive attempts."""

    @precondition(lambda self: self.held)
    @rule(data=st.data(), name=st.sampled_from(["s1", "s2"]))
    def do_step(self, data: st.DataObject, name: str) -> None:
        """Any claim ever made reaches a step; only a run's holder can commit it."""
        self.come_to(data.draw(st.sampled_from(self.held)), name, "step")

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        name=st.sampled_from(["z", "w1", "w2"]),
        delay=st.sampled_from([60.0, 3600.0]),
        dies=st.booleans(),
    )
    def pause(self, data: st.DataObject, name: str, delay: float, dies: bool) -> None:
        """An attempt sleeps or waits, and is given back unless its worker dies before."""
        claim = data.draw(st.sampled_from(self.held))
        self.pause_at(claim, name, delay, dies)

    def pause_at(self, claim: Claim, name: str, delay: float, dies: bool = False) -> None:
        waits = self.come_to(claim, name, "sleep" if name == "z" else "wait", delay)
        if waits and not dies:
            self.end(claim, "released", 0.0)

    def come_to(self, claim: Claim, name: str, kind: str, delay: float | None = None) -> bool:
        """An attempt reaches a step that it has not passed; return whether it must wait there."""
        run, holds = self.runs.get(claim.id), self.holds(claim)
        if run is None:  # The run is pruned, and a foreign key would refuse a step of it.
            return False
        if holds and name in run.steps and run.steps[name].is_passed:
            return False
        row = StepRow(name, kind, finished=kind == "step")
        with Session(self.engine) as session:
            row_id, holder = steps.write(session.connection(), claim, row, 0.0, delay)
            assert (holder is not None) == holds
            if holder is None:
                return False
            session.commit()
        step = run.comes_to(name, kind, delay)
        assert row_id is not None
        assert (row_id.finished, row_id.waits) == (step.ended, not step.ended)
        assert (holder.max_attempts, holder.forgiven) == (run.max_attempts, run.forgiven)
        assert (holder.cancel_requested_at is not None) == run.cancel_requested
        return not step.ended

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), name=st.sampled_from(["w1", "w2"]))
    def signal(self, data: st.DataObject, name: str) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        waits_for = self.runs[id_].waits_for
        assert self.transaction(lambda c, _: steps.waits_for(c, id_, name)) == (
            None if waits_for == name else waits_for
        )
        accepted = self.transaction(lambda c, _: steps.signal(c, id_, name, 1))
        assert accepted == self.runs[id_].signal(name)

    @rule(name=st.sampled_from(["z", "w1"]), ends=st.sampled_from(["signal", "time", None]))
    def wait_to_the_end(self, name: str, ends: str | None) -> None:
        """Claim a run that does a step and waits, then send the signal or let time pass."""
        for claim in self.claimed(1, idle=True):
            self.come_to(claim, "s1", "step")
            self.pause_at(claim, name, 60.0)
            run = self.runs[claim.id]
            if ends == "signal" and name == "w1":
                heard = self.transaction(lambda c, _, id_=claim.id: steps.signal(c, id_, name, 1))
                assert heard == run.signal(name)
            elif ends == "time":
                self.step_clock(90)


class MixedMachine(KeyMachine, StepMachine):
    """Keys, steps and releases of the same runs, some of which wait for a rate."""

    def fill(self) -> None:
        super().fill()
        self.enqueue_mixed("u", "waiting", True, True, KEYED)

    @rule(
        key=st.sampled_from("uv"),
        unique_while=st.sampled_from([None, "pending", "waiting"]),
        replace=st.sampled_from([False, True, "payload", "run_at"]),
        rated=st.booleans(),
        concurrency=st.sampled_from([None, KEYED, ORDERED]),
    )
    def enqueue_mixed(
        self, key: str, unique_while: Any, replace: Any, rated: bool, concurrency: str | None
    ) -> None:
        """Enqueue a run with all features, which may replace another."""
        values = {"rate": "waits" if rated else None, "strict": concurrency == ORDERED}
        self.enqueue_any(key, unique_while, replace, concurrency=concurrency, **values)
