"""The store beside its model: the rules of all histories, and the comparisons."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from typing import Any

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
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from flask_cronjobs.config import Settings
from flask_cronjobs.core import gate
from flask_cronjobs.core.claim import ClaimRequest, record_and_claim, release_token
from flask_cronjobs.core.insert import insert_or_find
from flask_cronjobs.core.leases import look_for_expired, progress, renew, watch
from flask_cronjobs.core.new_run import NewRun
from flask_cronjobs.core.prune import prune
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.errors import StateConflict
from flask_cronjobs.insights import run_payloads
from flask_cronjobs.insights.operations import Operation
from flask_cronjobs.insights.run_actions import CANCEL, DISCARD, RETRY, Action, change_runs
from flask_cronjobs.models.conditions import RUNNING
from flask_cronjobs.types import Claim, Outcome, stored_json
from tests.state_machine.model import TERMINAL, Model, ModelRun

KINDS = ["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
#: The times that move when the clock steps.
CLOCKED = (
    ("job_runs", "run_at"),
    ("job_runs", "locked_until"),
    ("job_runs", "finished_at"),
    ("job_steps", "due_at"),
)
#: Two keys: one with one share, and one with a strict order.
KEYED, ORDERED = "k", "o"
#: A key with a rate.
RATED = "r"
#: The tables, in an order in which they can be emptied.
TABLES = (
    *("job_rates", "job_failures", "job_effects", "job_batches", "job_steps", "job_runs"),
    "job_definitions",
)


class StoreMachine(RuleBasedStateMachine):
    """Rules call the store and the model, and invariants compare them after each rule.

    `features` adds rules about one subject each: if all rules were in one machine, related ones
    would seldom meet.
    """

    engine: Engine

    @initialize()
    def begin(self) -> None:
        self.books = Bookkeeping(self.engine)
        for table in TABLES:
            self.sql(f"DELETE FROM {table}")
        self.model = Model()
        self.runs, self.batches = self.model.runs, self.model.batches
        self.marks: dict[str, tuple[str, int, str]] = {}
        """The owner, the run and the state of each effect."""
        self.used: set[int] = set()
        """The ids that runs have or had; rolled back transactions took others."""
        self.held: list[Claim] = []
        """Every claim ever made; claims that were lost still try to write."""
        self.parked: frozenset[int] = frozenset()
        """The runs that the latest claim parked."""
        self.left: bool = False
        """Whether a worker died before opening the next runs, or rows were deleted by hand."""
        self.numbers = itertools.count()
        self.tokens = (f"host:{number}:fresh" for number in self.numbers)
        self.started: dict[int, tuple[int, Any]] = {}
        """How often each run had been claimed at the last check, and when it had begun."""
        self.fill()

    def fill(self) -> None:
        """Make rows for the rules, since many histories choose no rule that makes any."""
        for _ in range(3):
            self.insert(2)

    def teardown(self) -> None:
        if hasattr(self, "books"):
            self.books.close()

    def sql(self, statement: str, **parameters: object) -> list[Any]:
        return list(self.books.rows(text(statement), parameters))

    def act(self, action: Action, id_: int) -> None:
        """Let an operator apply *action* to a run, if the run allows it."""
        change_runs(self.books, action, [id_], Operation("changed", "runs", "ada"))

    def past(self, seconds: int) -> str:
        return self.books.dialect.later(str(-seconds))

    @rule(
        attempts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        key=st.sampled_from([None, KEYED]),
    )
    def enqueue(self, attempts: list[int], key: str | None) -> None:
        for most in attempts:
            self.insert(most, concurrency=key)

    def insert(self, attempts: int, rated: bool = False, **given: Any) -> int:
        """Insert a run as an operator does, without an idempotency key; return its id.

        :param given: values of `ModelRun`.
        """
        run = ModelRun(attempts, rate="waits" if rated else None, **given)
        id_, holder = run_payloads.insert_by_operator(self.books, self.values_of(run))
        assert holder is None
        self.runs[id_] = run
        return id_

    def values_of(self, run: ModelRun) -> NewRun:
        """Return the values of a new run."""
        return NewRun(
            job_type="t",
            payload=json.dumps(run.payload),
            max_attempts=run.max_attempts,
            strict=run.strict,
            concurrency_key=run.concurrency,
            concurrency_limit=None if run.concurrency is None else 1,
            rate_key=None if run.rate is None else RATED,
            idempotency_key=run.key,
            unique_while=run.unique_while,
            batch_id=run.batch,
            delay=run.due,
        )

    def transaction(self, work: Any) -> Any:
        return self.books.transaction(lambda connection: work(connection, self.books.dialect))

    @rule()
    def enqueue_unique(self) -> None:
        """Enqueue a run with a key that is unique while it is pending, unless one is pending."""
        self.enqueue_with_key(ModelRun(2, key="u", unique_while="pending"))

    def enqueue_with_key(self, given: ModelRun, replace: Any = False) -> None:
        """Enqueue a run as an app does; it may find or replace the run that has its key."""
        values = self.values_of(given)
        became, holder = self.model.enqueue(given, replace)
        with Session(self.engine) as session:
            try:
                run, happened, _ = insert_or_find(session, values, replace)
            except StateConflict:
                assert became == "refused"
                return
            id_ = run.id
            session.commit()
        assert happened == became
        if became == "new":
            self.runs[id_] = given
        else:
            assert id_ == holder

    @rule(limit=st.integers(1, 4), idle=st.booleans(), dies=st.booleans(), beside=st.booleans())
    def claim(self, limit: int, idle: bool, dies: bool, beside: bool) -> None:
        self.claimed(limit, idle, beside, opens=not dies)
        self.left |= dies

    def opens(self, ids: Collection[int]) -> None:
        """Open the next runs after those that have ended or are parked, as a worker does."""
        gate.open_behind(self.books, ids)

    def claimed(
        self, limit: int, idle: bool, beside: bool = False, opens: bool = True
    ) -> Sequence[Claim]:
        """Claim, and give back at once what is not first in its order, as a worker does."""
        token = next(self.tokens)
        request = ClaimRequest(limit, token, ("t",), idle=idle, side_by_side=beside)
        answer = record_and_claim(self.books, [], request)
        claimed, self.parked = answer.claims, answer.parked
        if opens:
            self.opens(self.parked)
        self.check_claims(claimed, request)
        for claim in claimed:
            run = self.runs[claim.id]
            assert not self.model.is_busy(run.concurrency)
            run.claim(token)
            assert (claim.attempt, claim.read()) == (run.attempts, run.payload)
        for id_ in self.parked:  # The end of another run will open it.
            is_busy = self.model.is_busy(self.runs[id_].concurrency)
            assert is_busy or not self.model.comes_first(id_)
        first = gate.held_first(self.books, token)
        assert first == {claim.id for claim in claimed if self.model.comes_first(claim.id)}
        too_early = self.without_slot(claimed)
        back = [claim for claim in claimed if claim.id not in first or claim in too_early]
        outcomes = [Outcome(claim.id, token, "released", claim.attempt, "t") for claim in back]
        assert record_and_claim(self.books, outcomes, None).recorded == {claim.id for claim in back}
        for claim in back:
            self.runs[claim.id].finalize("released")
        if opens:
            self.opens({claim.id for claim in back})
        self.held += claimed
        return claimed

    def check_claims(self, claimed: Sequence[Claim], request: ClaimRequest) -> None:
        """Check that a claim takes no more than it may, and takes something if it can."""
        assert len(claimed) <= request.limit
        for claim in claimed:
            alone = claim.must_run_alone if request.side_by_side else claim.attempt > 1
            if alone or claim.max_attempts == 1 or self.waits_alone(claim, request):
                assert request.idle
                assert len(claimed) == 1
        if request.idle and not (claimed or self.parked or self.left):
            due = [run for run in self.runs.values() if run.is_due and not run.strict]
            assert all(self.model.is_busy(run.concurrency) for run in due)

    def waits_alone(self, claim: Claim, request: ClaimRequest) -> bool:
        """Return whether a claimed run ignores earlier ones: it has a start of its rate."""
        return self.runs[claim.id].rate is not None and not request.side_by_side

    def without_slot(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Return those of *claims* that must not begin, since their rate has no start."""
        return []

    def holds(self, claim: Claim) -> bool:
        run = self.runs.get(claim.id)
        return run is not None and run.token == claim.token

    @rule(kinds=st.lists(st.sampled_from([*KINDS, "succeeded", "dead"]), min_size=1, max_size=4))
    def work(self, kinds: list[Any]) -> None:
        """Claim runs, and end their attempts."""
        for claim, kind in zip(self.claimed(len(kinds), idle=True), kinds, strict=False):
            self.end(claim, kind, 0.0)

    @rule(kind=st.sampled_from(["succeeded", "dead", "cancelled"]))
    def work_off(self, kind: Any) -> None:
        """Claim and end everything that is due."""
        while (claimed := self.claimed(4, idle=True)) or self.parked:
            for claim in claimed:
                self.end(claim, kind, 0.0)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), kind=st.sampled_from(KINDS), delay=st.sampled_from([0.0, 60.0]))
    def finalize(self, data: st.DataObject, kind: Any, delay: float) -> None:
        """Any claim ever made tries to record an outcome; only a run's holder may."""
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
        self.opens([claim.id])
        if run is not None and holds:
            run.finalize(kind, delay)

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
        assert watch(self.books, [claim]) == renewal
        assert progress(self.books, claim, 0.5, "half") == holds
        assert bool(renewal.cancelled) == bool(run and holds and run.cancel_requested)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_token(self, data: st.DataObject) -> None:
        """Give back everything that a token holds, as if the answer of its claim was lost."""
        token = data.draw(st.sampled_from(self.held)).token
        runs = [run for run in self.runs.values() if run.token == token]
        assert release_token(self.books, token)
        for run in runs:
            run.finalize("released")

    @rule()
    def expire_and_reclaim(self) -> None:
        """Let all leases expire, and let a tick reclaim the runs."""
        self.sql(f"UPDATE job_runs SET locked_until = {self.past(1)} WHERE status = 'running'")
        outcomes = [
            Outcome(e.id, e.token, _fate(e), e.attempt, "t", "lost", "WorkerLost", reclaimed=True)
            for e in look_for_expired(self.books)
        ]
        running = {id_ for id_, run in self.runs.items() if run.status == "running"}
        assert {outcome.id for outcome in outcomes} == running
        assert record_and_claim(self.books, outcomes, None).recorded == running
        self.opens(running)
        for outcome in outcomes:
            self.runs[outcome.id].finalize(outcome.kind)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def reclaim_a_living_lease(self, data: st.DataObject) -> None:
        """A reclaim that was planned before a renewal changes nothing after it."""
        claim = data.draw(st.sampled_from(self.held))
        renew(self.books, [claim], 120)
        late = Outcome(claim.id, claim.token, "failed", 1, "t", "x", "X", reclaimed=True)
        assert record_and_claim(self.books, [late], None).recorded == frozenset()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        self.act(CANCEL, id_)
        self.runs[id_].cancel()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        self.act(DISCARD, id_)
        self.runs[id_].discard()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.runs)))
        self.act(RETRY, id_)
        run = self.runs[id_]
        run.retry(self.model.holder(run.key, but=id_) is not None)

    @rule()
    def prune(self) -> None:
        before = len(self.runs)
        for table, ended in (
            ("job_runs", "finished_at"),
            ("job_batches", "finished_at"),
            ("job_effects", "done_at"),
        ):
            self.sql(f"UPDATE {table} SET {ended} = {self.past(1)} WHERE {ended} IS NOT NULL")
        pruned = sum(prune(self.books, Settings(retention=0, retention_dead=0)))
        self.model.prune()
        assert pruned == before - len(self.runs)
        for key, (_, id_, state) in list(self.marks.items()):
            run = self.runs.get(id_)
            if state == "done" and (run is None or run.status in ("succeeded", "skipped")):
                del self.marks[key]

    @rule(seconds=st.sampled_from([-90, 90]))
    def step_clock(self, seconds: int) -> None:
        """Let the database's clock jump: all times in the rows move the other way."""
        for table, column in CLOCKED:
            move_times(self.books, table, column, seconds)
        for run in self.runs.values():
            run.clock_steps(seconds)

    @invariant()
    def the_rows_are_the_model(self) -> None:
        is_due = f"CASE WHEN run_at <= {self.books.dialect.clock} THEN 1 ELSE 0 END AS is_due"
        rows = {row.id: row for row in self.sql(f"SELECT *, {is_due} FROM job_runs")}
        assert rows.keys() == self.runs.keys()
        self.used |= self.runs.keys()
        for id_, run in self.runs.items():
            row = rows[id_]
            for name, expected in self.columns_of(run).items():
                assert getattr(row, name) == expected, (id_, name)
            assert stored_json(row.payload) == run.payload
            assert (row.gate == "rate") == (run.rate == "waits")
            assert row.attempts <= row.max_attempts
            assert (row.finished_at is not None) == (run.status in TERMINAL)
            assert (row.cancel_requested_at is not None) == run.cancel_requested
            assert bool(row.is_due) == (run.due <= 0)
            self.look_at_begin(id_, run.claims, row.started_at)

    def columns_of(self, run: ModelRun) -> dict[str, object]:
        """Return the row's columns that must have the same values."""
        return {
            "status": run.status,
            "attempts": run.attempts,
            "max_attempts": run.max_attempts,
            "forgiven": run.forgiven,
            "snoozes": run.snoozes,
            "locked_by": run.token,
            "concurrency_key": run.concurrency,
            "idempotency_key": run.key,
            "unique_while": run.unique_while,
            "rate_key": None if run.rate is None else RATED,
        }

    def look_at_begin(self, id_: int, claims: int, started_at: object) -> None:
        """Check that only claims set when a run began."""
        assert (started_at is not None) == (claims > 0)
        before, since = self.started.get(id_, (0, None))
        assert claims > before or started_at == since
        self.started[id_] = claims, started_at

    @invariant()
    def each_failed_attempt_has_one_row(self) -> None:
        rows = self.sql("SELECT run_id, attempt FROM job_failures ORDER BY attempt")
        stored = sorted((row.run_id, row.attempt) for row in rows)
        expected = [(id_, n) for id_, run in self.runs.items() for n in run.failed_attempts]
        assert stored == sorted(expected)

    @invariant()
    def one_run_at_most_has_an_idempotency_key(self) -> None:
        holders = [run.key for run in self.runs.values() if run.holds_key]
        assert len(holders) == len(set(holders))

    @invariant()
    def steps_are_the_model(self) -> None:
        rows = self.sql("SELECT run_id, name, kind, attempt, finished_at FROM job_steps")
        stored = {
            (row.run_id, row.name): (row.kind, row.attempt is not None, row.finished_at is not None)
            for row in rows
        }
        assert stored == {
            (id_, name): (step.kind, step.placed, step.ended)
            for id_, run in self.runs.items()
            for name, step in run.steps.items()
        }

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


def move_times(books: Bookkeeping, table: str, column: str, seconds: float) -> None:
    """Make all times in a column earlier, which moves the clock ahead for them."""
    moved = (
        f"{column} - make_interval(secs => {seconds})"
        if books.dialect.name == "postgresql"
        else f"strftime('%Y-%m-%d %H:%M:%f000', {column}, '{-seconds:+.0f} seconds')"
    )
    books.rows(text(f"UPDATE {table} SET {column} = {moved} WHERE {column} IS NOT NULL"))


def _fate(expired: Any) -> Any:
    return "failed" if expired.attempt < expired.max_attempts else "dead"


def compare(rules: type[RuleBasedStateMachine], examples: int, **given: Any) -> None:
    """Go through *examples* histories of a machine.

    :param given: attributes of it.
    """
    run_state_machine_as_test(
        type("Machine", (rules,), given),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
