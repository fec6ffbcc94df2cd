"""Two workers on one database, whose statements are taken one by one, beside a model.

A worker is frozen past its lease, killed or stopped; answers to its commits are lost, and the other
worker acts between any two of its statements. After each statement, the tables may have changed
only as that worker was entitled to change them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import OperationalError

from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.claim import Answer
from flask_cronjobs.core.leases import renew
from flask_cronjobs.core.reclaim import reclaim
from flask_cronjobs.core.worker.claims import WorkerClaims
from flask_cronjobs.core.worker.outcomes import released
from flask_cronjobs.core.worker.work_options import WorkOptions
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.errors import DatabaseTrouble
from flask_cronjobs.insights.operations import Operation
from flask_cronjobs.insights.run_actions import CANCEL, change_runs
from flask_cronjobs.models.conditions import HOLDS_KEY
from flask_cronjobs.signals import unheard
from flask_cronjobs.task import Task
from flask_cronjobs.types import Claim, Outcome, stored_json, stored_time
from tests.kit import outcome
from tests.state_machine.model import LIVE, Model, ModelRun
from tests.state_machine.store_machine import move_times

T = TypeVar("T")
HOUR = timedelta(hours=1)
ATTEMPTS = 3
#: The number of claims after which everything must have ended.
PATIENCE = 60
#: The identity of a claim: its run and its token.
Identity = tuple[int, str]
#: Strategies for the number of a task, and for the end of an attempt.
NAMES = st.runner().flatmap(lambda machine: st.sampled_from(machine.names))
KINDS = st.runner().flatmap(lambda machine: st.sampled_from(machine.kinds))


class Killed(BaseException):
    """The process of a worker is killed between two of its statements."""


class Fate(NamedTuple):
    """What happens to a worker at one of its next statements.

    :ivar at: which statement; 0 is the next one.
    :ivar what: ``lost``: its answer is lost. ``killed``: the worker is killed once it is committed.
        Before the statement, ``works``: the other worker works; ``enqueues``: an app enqueues;
        ``reclaims``: a tick reclaims its runs, since the worker was frozen for longer than its
        lease.
    """

    at: int
    what: str


FATES = st.none() | st.builds(
    Fate, st.integers(0, 5), st.sampled_from(["lost", "killed", "works", "enqueues", "reclaims"])
)


class Wire(Bookkeeping):
    """A worker's connection, which calls the machine before and after each statement."""

    def __init__(self, state: State, before: Callable[[], None], after: Callable[[], None]) -> None:
        super().__init__(state.engine, patience=5)
        self._before, self._after = before, after

    def _bounded(self, work: Callable[[Connection], T]) -> T:
        self._before()
        value = super()._bounded(work)
        self._after()
        return value


class ModelWorker:
    """A worker's process: what it has claimed, begun, and not yet recorded.

    :ivar sending: the outcomes that it may record now.
    :ivar unsure: the identities of outcomes whose answers were lost.
    """

    def __init__(self, state: State, name: str, machine: TwoWorkers) -> None:
        self.name = name
        self.wire = Wire(state, partial(machine.before, self), partial(machine.after, self))
        self.claims = WorkerClaims(self.wire, state, WorkOptions(name))
        self.held: dict[Identity, Claim] = {}
        self.begun: set[Identity] = set()
        self.outcomes: dict[Identity, Outcome] = {}
        self.sending: dict[Identity, Outcome] = {}
        self.unsure: set[Identity] = set()
        self.fate: Fate | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def idle(self) -> bool:
        """Return whether all its claims have an outcome."""
        return self.held.keys() <= self.outcomes.keys()

    @property
    def at_work(self) -> list[Identity]:
        """Return the claims whose handlers are running."""
        return [claim for claim in self.held if claim in self.begun and claim not in self.outcomes]


class TwoWorkers(RuleBasedStateMachine):
    """Histories of two workers, a tick that reclaims runs, and an app that enqueues.

    :ivar names: the tasks; runs of the first are enqueued while a worker acts.
    :ivar first: the tasks of the runs that exist at first.
    :ivar kinds: how attempts end.
    """

    state: State
    tasks: dict[str, Task[..., None]]
    names: tuple[str, ...] = ("plain",)
    first: tuple[str, ...] = ("plain", "plain", "plain")
    kinds: tuple[str, ...] = ("failed", "failed", "succeeded", "snoozed", "cancelled")

    @initialize()
    def begin_all(self) -> None:
        self.books = Bookkeeping(self.state.engine)
        for table in ("job_rates", "job_failures", "job_operations", "job_runs"):
            self.sql(f"DELETE FROM {table}")
        self.model = Model()
        self.runs = self.model.runs
        self.accepted: dict[Identity, tuple[str, str]] = {}
        """The outcome of each claim that has one, and the worker that recorded it."""
        self.expired: set[Identity] = set()
        self.claimed_at: dict[Identity, datetime] = {}
        self.seen: set[int] = set()
        """The runs whose payloads an attempt has seen."""
        self.ends: Counter[int] = Counter()
        """How often each run has ended."""
        self.number = 0
        self.tick = ModelWorker(self.state, "host:0", self)
        self.workers = [self.new_worker(), self.new_worker()]
        self.fill()

    def fill(self) -> None:
        """Make runs for the rules."""
        for name in self.first:
            self.enqueue(name, keyed=False, unique_while=None, replace=False)

    def sql(self, statement: str, **parameters: object) -> list[Row[Any]]:
        return list(self.books.rows(text(statement), parameters))

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def new_worker(self) -> ModelWorker:
        return ModelWorker(self.state, f"host:{self.next_number()}", self)

    # Events

    @rule(
        name=NAMES,
        keyed=st.booleans(),
        unique_while=st.sampled_from(["pending", "waiting"]),
        replace=st.booleans(),
    )
    def enqueue(self, name: str, keyed: bool, unique_while: Any, replace: bool) -> None:
        """An app enqueues, perhaps replacing the run that has the key."""
        options: dict[str, Any] = {}
        if keyed:
            key_options = {"replace": True} if replace else {"unique_while": unique_while}
            options = {"idempotency_key": f"{name}:u", **key_options}
        version = self.next_number()
        new_run = ModelRun(
            ATTEMPTS,
            payload={"version": version},
            key=options.get("idempotency_key"),
            unique_while=options.get("unique_while", "waiting") if keyed else None,
            rate=self.rate_of(name),
        )
        became, holder = self.model.enqueue(new_run, keyed and replace)
        if became == "replaced":
            assert holder not in self.seen, "an attempt has seen what is replaced"
        with self.state.app.app_context():
            run = self.tasks[name].using(commit=True, **options).enqueue(version=version)
            id_ = run.id
        assert (id_ == holder) == (became != "new")
        if became == "new":
            assert id_ not in self.runs
            self.runs[id_] = new_run
        self.look(None)

    def rate_of(self, name: str) -> str | None:
        """Return the `ModelRun.rate` of a new run of a task."""
        return None

    @rule(
        which=st.integers(0, 1),
        limit=st.integers(1, 3),
        beside=st.booleans(),
        begins=st.integers(0, 4),
        fate=FATES,
    )
    def work(self, which: int, limit: int, beside: bool, begins: int, fate: Fate | None) -> None:
        """A worker records its outcomes, claims, and begins some of what it holds."""
        worker = self.workers[which]
        self.send(worker, fate, limit, beside)
        if worker in self.workers:
            self.begin(worker, begins)

    @rule(which=st.integers(0, 1), fate=FATES)
    def record(self, which: int, fate: Fate | None) -> None:
        """A worker records its outcomes."""
        self.send(self.workers[which], fate, 0, beside=False)

    @rule(which=st.integers(0, 1), number=st.integers(1, 2))
    def begin_some(self, which: int, number: int) -> None:
        self.begin(self.workers[which], number)

    def begin(self, worker: ModelWorker, number: int) -> None:
        """Handlers begin, unless their leases have ended by the worker's own clock."""
        handled = worker.begun | worker.outcomes.keys()
        for identity in [identity for identity in worker.held if identity not in handled][:number]:
            claim = worker.held[identity]
            if identity in self.expired:
                worker.outcomes[identity] = released(claim)
                continue
            worker.begun.add(identity)
            self.seen.add(claim.id)
            assert claim.read() == self.runs[claim.id].payload

    @precondition(lambda self: any(worker.at_work for worker in self.workers))
    @rule(data=st.data(), kind=KINDS)
    def end(self, data: st.DataObject, kind: Any) -> None:
        """A handler ends; its outcome is recorded with others, by the next statement."""
        worker = data.draw(st.sampled_from([w for w in self.workers if w.at_work]))
        self.end_one(worker, data.draw(st.sampled_from(worker.at_work)), kind)

    def end_one(self, worker: ModelWorker, identity: Identity, kind: Any) -> None:
        claim = worker.held[identity]
        if kind == "failed" and claim.attempt >= claim.max_attempts:
            kind = "dead"
        worker.outcomes[identity] = outcome(claim, kind)

    @precondition(lambda self: any(worker.at_work for worker in self.workers))
    @rule(data=st.data(), kind=KINDS, works=st.booleans())
    def end_late(self, data: st.DataObject, kind: Any, works: bool) -> None:
        """Handlers of a frozen worker end after its runs were reclaimed, perhaps by the other."""
        late = data.draw(st.sampled_from([w for w in self.workers if w.at_work]))
        self.freeze_one(late)
        self.take_back()
        if works:
            (first,) = (w for w in self.workers if w is not late)
            self.send(first, None, 2, beside=True)
            self.begin(first, 2)
        for identity in late.at_work:
            self.end_one(late, identity, kind)
        self.send(late, None, 0, beside=False)

    @precondition(lambda self: self.holding)
    @rule(data=st.data(), fate=FATES)
    def stop(self, data: st.DataObject, fate: Fate | None) -> None:
        """A worker is stopped: it gives back its runs, and another worker replaces it."""
        worker = data.draw(st.sampled_from(self.holding))
        for identity, claim in worker.held.items():
            if identity not in worker.outcomes:
                worker.outcomes[identity] = released(claim, unbegun=identity not in worker.begun)
        while worker in self.workers and worker.outcomes:
            self.send(worker, fate, 0, beside=False)
            fate = None
        if worker in self.workers:
            self.doing(worker, fate, lambda: worker.claims.unanswered.give_back(now=True))
        if worker in self.workers:
            self.replace(worker)

    @property
    def holding(self) -> list[ModelWorker]:
        """Return the workers that hold a run."""
        return [worker for worker in self.workers if worker.held]

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.replace(data.draw(st.sampled_from(self.holding)))

    def replace(self, worker: ModelWorker) -> None:
        worker.wire.close()
        self.workers[self.workers.index(worker)] = self.new_worker()

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        """A worker is frozen, or cut off, for longer than its leases."""
        self.freeze_one(data.draw(st.sampled_from(self.holding)))

    def freeze_one(self, worker: ModelWorker) -> None:
        self.expire(f"locked_by LIKE '{worker.name}:%'")

    def expire(self, which: str) -> None:
        past = self.books.dialect.later("-1")
        rows = self.sql(
            f"UPDATE job_runs SET locked_until = {past} WHERE status = 'running' AND {which}"
            " RETURNING id, locked_by"
        )
        self.expired |= {(row.id, row.locked_by) for row in rows}

    @rule()
    def take_back(self) -> None:
        """A tick reclaims the runs whose leases have expired."""
        list(reclaim(self.state, self.tick.wire, unheard))
        running = {(id_, run.token) for id_, run in self.runs.items()}
        assert running.isdisjoint(self.expired)

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """A worker, perhaps a frozen one, sends a heartbeat."""
        worker = data.draw(st.sampled_from(self.holding))
        expected = {key for key in worker.held if self.runs[key[0]].token == key[1]}
        renewal = renew(worker.wire, list(worker.held.values()), 120)
        assert renewal.held == {id_ for id_, _ in expected}
        self.expired -= expected

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        change_runs(self.books, CANCEL, [id_], Operation("cancelled", "runs", "ada"))
        self.ends[id_] += self.runs[id_].status in ("queued", "failed")
        self.runs[id_].cancel()
        self.look(None)

    @rule(hours=st.integers(1, 3))
    def time_passes(self, hours: int) -> None:
        """Hours pass; running workers send heartbeats meanwhile."""
        self.move_times(hours * HOUR)

    def move_times(self, past: timedelta) -> None:
        """Make all times earlier."""
        move_times(self.books, "job_runs", "run_at", past.total_seconds())
        self.claimed_at = {identity: at - past for identity, at in self.claimed_at.items()}
        for run in self.runs.values():
            run.clock_steps(past.total_seconds())

    # The statements of a worker, and the acts between them

    def send(self, worker: ModelWorker, fate: Fate | None, limit: int, beside: bool) -> None:
        """Record a worker's outcomes and claim; keep the answer, if it comes."""
        outcomes = list(worker.outcomes.values())
        worker.sending = dict(worker.outcomes)
        answer = self.doing(
            worker,
            fate,
            lambda: worker.claims.claim(outcomes, limit, idle=worker.idle, side_by_side=beside),
        )
        worker.sending = {}
        if answer is None:
            worker.unsure |= {outcome.identity for outcome in outcomes}
            return
        for ended in outcomes:
            if ended.id not in answer.unrecorded:
                self.check_answer(worker, ended, answer)
                del worker.outcomes[ended.identity], worker.held[ended.identity]
        worker.held |= {claim.identity: claim for claim in answer.claims}

    def check_answer(self, worker: ModelWorker, sent: Outcome, answer: Answer) -> None:
        """Check that a worker knows its outcome's fate, unless an answer was lost."""
        kind, by = self.accepted[sent.identity]
        if sent.identity not in worker.unsure:
            assert (sent.id in answer.recorded) == (by == worker.name), (sent, kind)

    def doing(self, worker: ModelWorker, fate: Fate | None, act: Callable[[], T]) -> T | None:
        """Let a worker act under its fate; return None if it was killed or its answer was lost."""
        worker.fate = fate
        try:
            return act()
        except DatabaseTrouble:
            return None
        except Killed:
            self.replace(worker)
            return None
        finally:
            worker.fate = None

    def before(self, worker: ModelWorker) -> None:
        """Act before a worker's statement."""
        if worker.fate is None or worker.fate.at > 0:
            return
        rival = next(w for w in self.workers if w is not worker)
        fate = worker.fate.what
        if fate in ("lost", "killed"):
            return
        worker.fate = None
        if fate == "works":
            self.send(rival, None, 2, beside=True)
            self.begin(rival, 2)
        elif fate == "enqueues":
            self.enqueue(self.names[0], keyed=True, unique_while=None, replace=True)
        else:
            self.freeze_one(worker)
            self.take_back()

    def after(self, worker: ModelWorker) -> None:
        """Act after a worker's statement is committed."""
        self.look(worker)
        if worker.fate is None:
            return
        fate, worker.fate = worker.fate, worker.fate._replace(at=worker.fate.at - 1)
        if fate.at > 0:
            return
        worker.fate = None
        if fate.what == "killed":
            raise Killed
        gone = psycopg.OperationalError("server closed the connection unexpectedly")
        raise OperationalError("COMMIT", {}, gone)

    # What the tables may contain

    def look(self, by: ModelWorker | None) -> None:
        """Compare the tables with the model, after *by* has acted."""
        rows = {row.id: row for row in self.sql("SELECT * FROM job_runs")}
        assert rows.keys() == self.runs.keys()
        for id_, row in rows.items():
            run = self.runs[id_]
            if run.token is not None and row.locked_by != run.token:
                self.ended(by, id_, run)
            if row.locked_by is not None and row.locked_by != run.token:
                self.claimed(by, row)
            self.compare(run, row)

    def ended(self, by: ModelWorker | None, id_: int, run: ModelRun) -> None:
        """End the attempt of a run."""
        assert run.token is not None
        assert by is not None
        identity = id_, run.token
        assert identity not in self.accepted, "a claim has two outcomes"
        outcome = by.sending.get(identity)
        if by is self.tick:
            assert identity in self.expired, "a living lease was taken back"
            kind = "failed" if run.attempts < run.max_attempts else "dead"
        elif outcome is not None:
            kind = outcome.kind
        else:
            assert run.token.startswith(f"{by.name}:"), "somebody else's run was given back"
            assert identity not in by.begun, "a run that has begun was given back as another"
            kind = "released"
        self.accepted[identity] = kind, by.name
        run.finalize(kind, 0.0 if outcome is None else outcome.delay)
        self.ends[id_] += run.status not in LIVE

    def claimed(self, by: ModelWorker | None, row: Row[Any]) -> None:
        """Claim a run, which begins it."""
        identity = row.id, row.locked_by
        assert by is not None
        assert row.locked_by.startswith(f"{by.name}:")
        assert identity not in self.claimed_at, "a token was used twice"
        self.runs[row.id].claim(row.locked_by)
        self.claimed_at[identity] = stored_time(row.started_at)

    def compare(self, run: ModelRun, row: Row[Any]) -> None:
        assert (row.status, row.attempts, row.max_attempts, row.snoozes) == (
            run.status, run.attempts, run.max_attempts, run.snoozes,
        )  # fmt: skip
        assert row.locked_by == run.token
        assert stored_json(row.payload) == run.payload
        assert (row.started_at is not None) == (run.claims > 0), "a begun run counts as unbegun"
        assert (row.gate == "rate") <= (run.rate is not None)
        run.rate = run.rate and ("waits" if row.gate == "rate" else "ready")

    @invariant()
    def nobody_shares_a_key(self) -> None:
        holders = [run.key for run in self.runs.values() if run.holds_key]
        assert len(holders) == len(set(holders))
        rows = self.sql(f"SELECT idempotency_key FROM job_runs WHERE {HOLDS_KEY}")
        assert sorted(row.idempotency_key for row in rows) == sorted(filter(None, holders))

    @invariant()
    def each_failed_attempt_has_one_row(self) -> None:
        rows = self.sql("SELECT run_id, attempt FROM job_failures")
        expected = [(id_, n) for id_, run in self.runs.items() for n in run.failed_attempts]
        assert sorted((row.run_id, row.attempt) for row in rows) == sorted(expected)

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "books"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.work_off()
        finally:
            for worker in (*self.workers, self.tick):
                worker.wire.close()
            self.books.close()

    def work_off(self) -> None:
        """Whatever has happened, one worker ends each run once."""
        for worker in list(self.workers):
            self.replace(worker)
        self.expire("id > 0")
        self.take_back()
        (worker, _), remaining = self.workers, PATIENCE
        while any(run.status in LIVE for run in self.runs.values()):
            assert remaining > 0, "some run is never claimed"
            remaining -= 1
            self.send(worker, None, 2, beside=True)
            self.begin(worker, 2)
            for identity in worker.at_work:
                worker.outcomes[identity] = outcome(worker.held[identity], "succeeded")
            self.time_passes(1)
        assert self.ends == dict.fromkeys(self.runs, 1)
