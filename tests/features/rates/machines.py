"""Random histories with rates: of one store, and of two workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import Row

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.core.claim import ClaimRequest
from flask_cronjobs.core.tasks.rate import Rate
from flask_cronjobs.features.rates import rates, worker_rates
from flask_cronjobs.task import Task
from flask_cronjobs.types import Claim, Outcome, stored_time, time_or_none
from tests.rates import refuse_too_early
from tests.state_machine.features import MixedMachine
from tests.state_machine.model import ModelRun
from tests.state_machine.store_machine import KEYED, StoreMachine, move_times
from tests.state_machine.two_workers import Identity, ModelWorker, TwoWorkers

RATE = Rate(timedelta(hours=1), 3)


class RateMachine(StoreMachine):
    """Runs at a rate. The clock's changes are applied to the rows, an hour at a time."""

    def fill(self) -> None:
        self.ahead = 0
        """How many hours from now the key's ``tat`` is."""
        self.holds_rate = False
        self.begun: dict[tuple[int, str], datetime] = {}
        """When the runs that have taken a start were claimed."""
        self.enqueue_rated(4)
        super().fill()

    @rule(number=st.integers(1, 3), concurrency=st.sampled_from([None, None, KEYED]))
    def enqueue_rated(self, number: int, concurrency: str | None = None) -> None:
        for _ in range(number):
            self.insert(2, rated=True, concurrency=concurrency)

    @property
    def free(self) -> int:
        return max(0, RATE.burst - max(0, self.ahead))

    @property
    def tat(self) -> datetime | None:
        rows = self.sql("SELECT tat FROM job_rates")
        return stored_time(rows[0].tat) if rows else None

    def due_at_rate(self, mark: str) -> list[ModelRun]:
        """Return the due runs at a rate with this mark, in their order."""
        gate = "gate = 'rate'" if mark == "waits" else "gate IS NULL"
        order = f"SELECT id FROM job_runs WHERE {gate} ORDER BY run_at, id"
        runs = [self.runs[row.id] for row in self.sql(order)]
        waits = [run for run in runs if run.rate == mark and run.status in ("queued", "failed")]
        return [run for run in waits if run.due <= 0]

    def let_begin(self) -> list[ModelRun]:
        """Return the waiting runs that may be claimed: as many as there are starts.

        A run whose concurrency key is busy does not count, and keeps no other from a start.
        """
        chosen = []
        ready = self.due_at_rate("ready")
        capacity = self.free - sum(map(self.may_begin, ready))
        for run in self.due_at_rate("waits"):
            if capacity > 0:
                chosen.append(run)
                capacity -= self.may_begin(run)
        return chosen

    def may_begin(self, run: ModelRun) -> bool:
        """Return whether no run of its concurrency key comes before it or is running."""
        (id_,) = (id_ for id_, other in self.runs.items() if other is run)
        return self.model.comes_first(id_) and not self.model.is_busy(run.concurrency)

    @rule()
    def open_starts(self) -> None:
        waits, free = bool(self.due_at_rate("waits")), self.free
        chosen = self.let_begin()
        answer = rates.open_starts(self.books, {"t": RATE}, ClaimRequest(1, "", ("t",)))
        assert answer.opened == len(chosen)
        assert (answer.wait is not None) == (waits and not free)
        for run in chosen:
            run.rate = "ready"

    @rule(number=st.integers(1, 4), released=st.booleans())
    def begin_at_rate(self, number: int, released: bool) -> None:
        """Take all starts, and perhaps release the runs; their starts stay taken."""
        self.open_starts()
        for _ in range(number):
            for claim in self.claimed(1, idle=True):
                if released and self.holds(claim):
                    self.end(claim, "released", 0.0)

    def without_slot(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        refused = rates.spend(self.books, {"t": RATE}, claims) if claims else {}
        limited = [claim for claim in claims if self.runs[claim.id].rate is not None]
        granted = [claim for claim in limited if claim.id not in refused]
        assert granted == limited[: self.free]
        for claim in granted:
            (row,) = self.sql("SELECT started_at FROM job_runs WHERE id = :id", id=claim.id)
            self.begun[claim.identity] = stored_time(row.started_at)
            self.ahead = max(0, self.ahead) + 1
        return [claim for claim in limited if claim not in granted]

    def record(self, outcome: Outcome) -> frozenset[int]:
        if not self.holds_rate:
            return super().record(outcome)
        delayed = outcome._replace(holds_rate=True)
        return rates.record_and_hold(self.books, delayed, RATE).recorded

    @precondition(lambda self: self.held)
    @rule(data=st.data(), hours=st.integers(0, 2))
    def hold_back(self, data: st.DataObject, hours: int) -> None:
        """Any claim ever made tries to hold the key back; only its run's holder may."""
        claim = data.draw(st.sampled_from(self.held))
        is_heard = self.holds(claim) and self.runs[claim.id].rate is not None
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
        self.begun = {key: at - past for key, at in self.begun.items()}
        self.step_clock(hours * 3600)

    @invariant()
    def the_key_is_the_model(self) -> None:
        if self.ahead > 0:
            (row,) = self.sql(f"SELECT {self.books.dialect.now} AS now, tat FROM job_rates")
            ahead = stored_time(row.tat) - stored_time(row.now)
            assert timedelta() <= self.ahead * RATE.period - ahead < timedelta(minutes=10)

    @invariant()
    def no_window_has_too_many(self) -> None:
        refuse_too_early(sorted(self.begun.values()), RATE.period.total_seconds(), RATE.burst)


class MixedRateMachine(MixedMachine, RateMachine):
    """Keys, steps, rates and releases of the same runs."""

    @rule(name=st.sampled_from(["s1", "z", "w1"]), replace=st.booleans(), dies=st.booleans())
    def begin_at_rate_and_pause(self, name: str, replace: bool, dies: bool) -> None:
        """Take starts, reach a step with them, and enqueue with the keys of the runs."""
        self.open_starts()
        for claim in self.claimed(1, idle=True):
            if name == "s1" and self.holds(claim):
                self.come_to(claim, name, "step")
                self.end(claim, "released", 0.0)
            elif self.holds(claim):
                self.pause_at(claim, name, 60.0, dies)
            key = self.runs[claim.id].key or "u"
            self.enqueue_any(key, "waiting", replace, rate="waits")


class TwoWorkersAtARate(TwoWorkers):
    """Two workers; most of their runs have a rate of one an hour, with two at once."""

    names = ("limited", "plain")
    first = ("limited", "limited", "limited", "plain")
    #: An attempt that is ``held`` fails, and holds its rate key back.
    kinds = ("failed", "held", "succeeded", "snoozed", "cancelled")
    rate = Rate(timedelta(hours=1), 2)

    def fill(self) -> None:
        self.rated: set[Identity] = set()
        """The claims at a rate."""
        self.unspent: set[Identity] = set()
        """The claims at a rate that have not taken a start."""
        self.begun: dict[Identity, datetime] = {}
        """When the claims at a rate that have begun were made."""
        self.tat: datetime | None = None
        self.holds = False
        """Whether an outcome that was just recorded holds the key back."""
        super().fill()

    def rate_of(self, name: str) -> str | None:
        return "waits" if name == "limited" else None

    def begin(self, worker: ModelWorker, number: int) -> None:
        super().begin(worker, number)
        new = (worker.begun & self.rated) - self.begun.keys()
        self.begun |= {identity: self.claimed_at[identity] for identity in new}

    def end_one(self, worker: ModelWorker, identity: Identity, kind: Any) -> None:
        super().end_one(worker, identity, "failed" if kind == "held" else kind)
        ended = worker.outcomes[identity]
        if kind == "held" and ended.kind == "failed" and identity in self.rated:
            worker.outcomes[identity] = ended._replace(delay=3600.0, holds_rate=True)

    def move_times(self, past: timedelta) -> None:
        super().move_times(past)
        for column in ("tat", "last_at"):
            move_times(self.books, "job_rates", column, past.total_seconds())
        self.tat = self.stored_tat()
        self.begun = {identity: at - past for identity, at in self.begun.items()}

    def ended(self, by: ModelWorker | None, id_: int, run: ModelRun) -> None:
        sent = None if by is None else by.sending.get((id_, str(run.token)))
        self.holds |= sent is not None and sent.holds_rate
        super().ended(by, id_, run)

    def claimed(self, by: ModelWorker | None, row: Row[Any]) -> None:
        super().claimed(by, row)
        if row.rate_key is not None:
            self.rated.add((row.id, row.locked_by))
            self.unspent.add((row.id, row.locked_by))

    def look(self, by: ModelWorker | None) -> None:
        """Compare, and check that the key only moves forward, by starts or an outcome's delay."""
        self.holds = False
        super().look(by)
        before, self.tat = self.tat, self.stored_tat()
        if self.tat == before:
            return
        assert self.tat is not None
        assert before is None or self.tat > before, "a start was given back"
        current = {(id_, run.token) for id_, run in self.runs.items()}
        starting = {
            identity for identity in self.unspent & current
            if by is not None and identity[1].startswith(f"{by.name}:")
        }  # fmt: skip
        if self.holds:
            return
        assert starting, "a key was moved by who may not"
        at = max(self.claimed_at[identity] for identity in starting)
        most = max(before or at, at) + len(starting) * self.rate.period
        assert self.tat <= most, "a claim took more than its start"
        self.unspent -= starting

    def stored_tat(self) -> datetime | None:
        rows = self.sql("SELECT tat FROM job_rates")
        return time_or_none(rows[0].tat) if rows else None

    @invariant()
    def no_interval_has_too_many_attempts(self) -> None:
        starts = sorted(self.begun.values())
        refuse_too_early(starts, self.rate.period.total_seconds(), self.rate.burst)

    def work_off(self) -> None:
        super().work_off()
        self.no_interval_has_too_many_attempts()


ALONE, MIXED, WORKERS = RateMachine, MixedRateMachine, TwoWorkersAtARate


def declare(jobs: CronJobs, retry: Retry) -> dict[str, Task[..., None]]:
    """Declare the tasks of `WORKERS`."""

    @jobs.task(retry=retry, rate="1/hour", burst=2)
    def limited(version: int) -> None: ...

    return {"limited": limited}


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers send the same statements at any speed."""
    monkeypatch.setattr(worker_rates, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(worker_rates, "MAX_REST_SECONDS", 0.0)
    monkeypatch.setattr(worker_rates, "time", SimpleNamespace(monotonic=lambda: 0.0))
