"""`WorkerClaims`: the statements that a worker sends, and its answer to lost answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, make_url, text, update

from flask_cronjobs import CronJobs
from flask_cronjobs.core import claim as claiming
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.claim import Answer
from flask_cronjobs.core.tick import TickOptions, tick
from flask_cronjobs.core.worker import claims as claims_module
from flask_cronjobs.core.worker.claims import BlockedRuns, WorkerClaims
from flask_cronjobs.core.worker.outcomes import released
from flask_cronjobs.core.worker.work_options import WorkOptions
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.statements import cut
from flask_cronjobs.errors import DatabaseTrouble
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import Claim, Outcome
from tests.kit import outcome, statements
from tests.marks import on_postgresql
from tests.process.support import wait_until
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def books(state: State) -> Iterator[Bookkeeping]:
    with Bookkeeping(state.engine, patience=0) as books:
        yield books


@pytest.fixture
def claims(jobs: CronJobs, state: State, books: Bookkeeping) -> WorkerClaims:
    """The claims of a worker that is idle, since it found nothing to claim."""
    jobs.task(name="it")(lambda: None)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    assert claims.claim([], 1, idle=True).exhausted
    return claims


@pytest.fixture
def sent(db: SQLAlchemy, claims: WorkerClaims) -> list[str]:
    """The statements that are sent from now on."""
    return statements(db.engine)


def test_idle_worker_looks_and_claims_nothing(claims: WorkerClaims, sent: list[str]) -> None:
    answer = claims.claim([], 1, idle=True, look_first=True)
    assert (answer.claims, answer.exhausted) == ((), True)
    assert [statement.split()[0] for statement in sent] == ["SELECT"]


@pytest.mark.parametrize(("look_first", "words"), [(True, ["SELECT", "WITH"]), (False, ["WITH"])])
def test_idle_worker_claims_what_it_sees_and_one_that_is_woken_does_not_look_first(
    app: Flask, db: SQLAlchemy, claims: WorkerClaims, sent: list[str],
    look_first: bool, words: list[str],
) -> None:  # fmt: skip
    run_id = Rows(db.engine).run("queued", job_type="it")
    sent.clear()
    (claim,) = claims.claim([], 1, idle=True, look_first=look_first).claims
    assert (claim.id, [statement.split()[0] for statement in sent]) == (run_id, words)


class Limit:
    """Limits starts, and refuses the runs of a task."""

    def __init__(self, next_at: float, refused: str) -> None:
        self.next_at = next_at
        self.asked: list[str] = []
        self._refused = refused

    def open(self, idle: bool, tasks: tuple[str, ...] | None = None) -> None: ...

    def spend(self, claims: Sequence[Claim]) -> list[Claim]:
        self.asked += [claim.job_type for claim in claims]
        return [claim for claim in claims if claim.job_type == self._refused]

    def record_holding(self, outcomes: Sequence[Outcome]) -> Answer:
        return Answer()


def test_run_begins_if_each_feature_gives_it_a_start(
    jobs: CronJobs, state: State, books: Bookkeeping
) -> None:
    for name in ("a", "b", "c"):
        jobs.task(name=name)(lambda: None)
        jobs.enqueue(name, commit=True)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    first, second = claims.starts = Limit(9.0, refused="a"), Limit(5.0, refused="b")
    (claim,) = claims.claim([], 3, idle=True).claims
    assert (claim.job_type, claims.next_start) == ("c", 5.0)
    assert (first.asked, second.asked) == (["a", "b", "c"], ["b", "c"])
    first, second = claims.starts = Limit(9.0, refused=""), Limit(9.0, refused="")
    again = claims.claim([outcome(claim, "succeeded")], 3, idle=True)
    assert again.recorded == {claim.id}
    assert {claim.job_type for claim in again.claims} == {"a", "b"}


def test_idle_worker_opens_what_a_dead_worker_left_parked(
    jobs: CronJobs, db: SQLAlchemy, state: State, books: Bookkeeping
) -> None:
    jobs.task(name="ordered", concurrency_key="key", order="strict")(lambda: None)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    run = jobs.enqueue("ordered", commit=True)
    db.session.execute(update(JobRun).values(gate="order"))
    db.session.commit()
    answer = claims.claim([], 2, idle=True)
    assert (answer.claims, answer.exhausted) == ((), False)
    assert [claim.id for claim in claims.claim([], 2, idle=True).claims] == [run.id]


def test_busy_worker_opens_what_comes_behind_what_it_has_recorded(
    jobs: CronJobs, state: State, books: Bookkeeping
) -> None:
    """No worker is idle, so none searches for runs that were left parked."""
    jobs.task(name="ordered", concurrency_key="key", order="strict")(lambda: None)
    jobs.task(name="it")(lambda: None)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    in_order = [jobs.enqueue("ordered", commit=True).id for _ in range(3)]
    outcomes: list[Outcome] = []
    starts: list[int] = []
    for _ in range(8):
        jobs.enqueue("it", commit=True)
        answer = claims.claim(outcomes, 9, idle=False)
        outcomes = [outcome(claim, "succeeded") for claim in answer.claims]
        starts += [claim.id for claim in answer.claims if claim.job_type == "ordered"]
    assert starts == in_order


def test_claiming_nothing_sends_nothing(claims: WorkerClaims, sent: list[str]) -> None:
    assert claims.record([]) == Answer()
    assert sent == []


@on_postgresql
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_in_the_ticks_own_process_takes_its_connection(
    jobs: CronJobs, db: SQLAlchemy, state: State, workers: int
) -> None:
    connected: list[int] = []

    @event.listens_for(db.engine, "connect")
    def note(driver: Any, record: object) -> None:
        connected.append(driver.info.backend_pid)

    connections: list[set[int]] = []

    @jobs.task
    def look() -> None:
        connections.append(set(connected))

    look.using(commit=True).enqueue_many([{}] * 3)
    connected.clear()
    options = TickOptions(workers=workers, own_process=workers > 1)
    assert tick(state, options).succeeded == 3
    # The workers of a pool are separate processes, whose statements are not seen here; the tick
    # closes its connection while they work, and opens another.
    assert len(connected) == workers
    assert connections == ([set(connected)] * 3 if workers == 1 else [])


HANG = """
CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$;
CREATE TRIGGER hang BEFORE UPDATE ON job_runs FOR EACH ROW EXECUTE FUNCTION hang();
"""
HANGING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@contextmanager
def broken_off(db: SQLAlchemy, books: Bookkeeping, send: Callable[[], Answer]) -> Iterator[None]:
    """Break the connection in *send*, while the server continues until the block ends."""
    with db.engine.begin() as connection:
        connection.execute(text(HANG))
    troubles: list[DatabaseTrouble] = []

    def begin() -> None:
        try:
            send()
        except DatabaseTrouble as trouble:
            troubles.append(trouble)

    # This connection is not from the pool, which is emptied when a connection breaks.
    url = db.engine.url.set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=begin)
        thread.start()
        wait_until(lambda: seen(db, HANGING))
        cut(books._raw)
        thread.join()
        assert len(troubles) == 1
        yield
        holder.execute("SELECT pg_advisory_unlock(7)")
    wait_until(lambda: not seen(db, HANGING))


def seen(db: SQLAlchemy, sql: str) -> Sequence[object]:
    with db.engine.connect() as connection:
        return connection.execute(text(sql)).all()


@on_postgresql
def test_runs_claimed_late_are_given_back(
    app: Flask, db: SQLAlchemy, books: Bookkeeping, claims: WorkerClaims
) -> None:
    rows = Rows(db.engine)
    run_id = rows.run("queued", job_type="it")
    with broken_off(db, books, lambda: claims.claim([], 1, idle=True)):
        assert claims.claim([], 0, idle=True) == Answer()
        assert not claims.unanswered.must_check
    wait_until(lambda: rows.get(run_id).status == "running")
    claims.unanswered.give_back(now=True)
    run = rows.get(run_id)
    assert (run.status, run.attempts, run.locked_by) == ("queued", 0, None)


@on_postgresql
def test_outcome_recorded_late_is_not_lost(
    app: Flask, db: SQLAlchemy, books: Bookkeeping, claims: WorkerClaims
) -> None:
    rows = Rows(db.engine)
    run_id = rows.run("running", job_type="it", locked_by="host:1:token")
    outcomes = [Outcome(run_id, "host:1:token", "succeeded", 1, "it")]
    with broken_off(db, books, lambda: claims.claim(outcomes, 0, idle=True)):
        answer = claims.claim(outcomes, 0, idle=True)
        assert (set(answer.recorded), set(answer.unrecorded)) == (set(), {run_id})
    wait_until(lambda: rows.get(run_id).status == "succeeded")
    assert claims.claim(outcomes, 0, idle=True).recorded == {run_id}


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Return a block in which each statement is committed, and its answer is lost."""
    send = claiming._send

    def lose(*sent: Any) -> Answer:
        send(*sent)
        raise DatabaseTrouble("the answer was lost", transient=True)

    @contextmanager
    def losing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(claiming, "_send", lose)
            with pytest.raises(DatabaseTrouble):
                yield

    return losing


def test_lost_claim_is_given_back_after_an_outage_longer_than_its_lease(
    app: Flask, db: SQLAlchemy, state: State, claims: WorkerClaims, losing: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run_id = Rows(db.engine).run("queued", job_type="it")
    with losing():
        claims.claim([], 1, idle=True)
    with losing():
        claims.unanswered.give_back()
    later = time.monotonic() + state.settings.lease + 1
    clock = SimpleNamespace(monotonic=lambda: later)
    monkeypatch.setattr("flask_cronjobs.core.worker.claims.time", clock)
    claims.unanswered.give_back()
    assert not claims.unanswered.must_check
    assert Rows(db.engine).get(run_id).status == "queued"


def test_claim_whose_answer_was_lost_is_looked_for_at_once_and_then_now_and_then(
    claims: WorkerClaims, losing: Any, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.core.worker.claims.LATE_SECONDS", 3600.0)
    with losing():
        claims.claim([], 1, idle=True)
    counts = [len(sent)]
    for now in (False, False, True):
        claims.unanswered.give_back(now)
        counts.append(len(sent))
    assert counts[0] < counts[1] == counts[2] < counts[3]
    claims.unanswered.give_back()
    assert len(sent) == counts[3]


def test_failure_whose_answer_was_lost_is_looked_up_before_its_run_is_claimed_again(
    app: Flask, db: SQLAlchemy, claims: WorkerClaims, losing: Any
) -> None:
    run_id = Rows(db.engine).run("queued", job_type="it", max_attempts=3)
    (claim,) = claims.claim([], 1, idle=True).claims
    failed = outcome(claim, "failed")
    with losing():
        claims.record([failed])
    answer = claims.claim([failed], 1, idle=True)
    assert (set(answer.recorded), len(answer.claims), answer.exhausted) == ({run_id}, 0, False)
    answer = claims.claim([], 1, idle=True)
    assert [(claim.id, claim.attempt) for claim in answer.claims] == [(run_id, 2)]


@pytest.mark.parametrize("is_reclaimed", [False, True], ids=["own", "reclaimed"])
def test_outcome_sent_again_is_not_taken_for_the_one_that_a_tick_recorded(
    app: Flask, state: State, db: SQLAlchemy, books: Bookkeeping, claims: WorkerClaims, losing: Any,
    is_reclaimed: bool,
) -> None:  # fmt: skip
    """While the worker could not reach the database, a tick recorded that the worker was lost."""
    run_id = Rows(db.engine).run("queued", job_type="it", max_attempts=3)
    (claim,) = claims.claim([], 1, idle=True).claims
    own = outcome(claim, "failed", error_type="ValueError")
    lost = outcome(claim, "failed", error_type="WorkerLost")
    claimed_by_tick = WorkerClaims(books, state, WorkOptions("host:2"))
    if is_reclaimed:
        with patched_send(trouble), pytest.raises(DatabaseTrouble):
            claims.record([own])
        with losing():
            claimed_by_tick.record([lost])
    else:
        with losing():
            claims.record([own])
        with patched_send(trouble), pytest.raises(DatabaseTrouble):
            claimed_by_tick.record([lost])
    assert claims.record([own]).recorded == (set() if is_reclaimed else {run_id})
    assert claimed_by_tick.record([lost]).recorded == ({run_id} if is_reclaimed else set())


def test_run_that_was_given_back_has_given_its_key_up(
    app: Flask, db: SQLAlchemy, claims: WorkerClaims, sent: list[str]
) -> None:
    """A claim counts as the beginning, since a worker that gives a run back cannot know better."""
    waiting: dict[str, Any] = {"unique_while": "waiting", "idempotency_key": "key"}
    run_id = Rows(db.engine).run("queued", job_type="it", **waiting)
    (claim,) = claims.claim([], 1, idle=True).claims
    sent.clear()
    assert claims.record([released(claim)]).recorded == {run_id}
    assert len([statement for statement in sent if "UPDATE" in statement]) == 1
    run = Rows(db.engine).get(run_id)
    assert (run.status, run.attempts, run.started_at is None) == ("queued", 0, False)


def test_outcome_that_the_server_commits_while_it_is_sent_again_is_not_lost(
    app: Flask, db: SQLAlchemy, claims: WorkerClaims, losing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = Rows(db.engine).run("queued", job_type="it")
    (claim,) = claims.claim([], 1, idle=True).claims
    succeeded = outcome(claim, "succeeded")
    send = claiming._send
    with patched_send(trouble), pytest.raises(DatabaseTrouble):
        claims.record([succeeded])

    def send_late(*sent: Any) -> Answer:
        send(*sent)
        return send(*sent)

    monkeypatch.setattr(claiming, "_send", send_late)
    assert claims.record([succeeded]).recorded == {run_id}


@contextmanager
def patched_send(send: Callable[..., Answer]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claiming, "_send", send)
        yield


def trouble(*sent: object) -> Answer:
    raise DatabaseTrouble("the connection broke", transient=True)


@on_postgresql
@pytest.mark.parametrize("behind", [None, "one", "another"])
def test_hundreds_of_locked_runs_of_a_key_cost_a_few_claims(
    jobs: CronJobs, state: State, books: Bookkeeping, database_url: str, behind: str | None
) -> None:
    """It does not matter whether the run behind has the same concurrency key, another, or none."""
    jobs.task(name="plain")(lambda: None)
    keyed = jobs.task(name="keyed", concurrency_key="{key}", concurrency=3)(lambda key: None)
    keyed.using(commit=True, priority=1).enqueue_many([{"key": "one"}] * 600)
    payload = {} if behind is None else {"key": behind}
    run = jobs.enqueue("plain" if behind is None else "keyed", payload, commit=True)
    claims = WorkerClaims(books, state, WorkOptions("host:1"))
    plain = make_url(database_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(plain) as locker:
        locker.execute("SELECT 1 FROM job_runs WHERE priority = 1 FOR UPDATE")
        claimed = [claim.id for _ in range(5) for claim in claims.claim([], 1, idle=True).claims]
    assert claimed == [run.id]


def test_worker_remembers_locked_runs_until_it_has_passed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run of the key costs a claim that finds nothing; then the worker rests much longer."""
    now = 0.0
    monkeypatch.setattr(claims_module, "time", SimpleNamespace(monotonic=lambda: now))
    blocked = BlockedRuns()
    for run_id in range(300):
        blocked.forget_old()
        assert blocked.note(Answer(blocked=frozenset({run_id})))
        now += 0.01
    assert not blocked.note(Answer())
    blocked.forget_old()
    assert len(blocked.ids) == 300
    now += 4
    blocked.forget_old()
    assert not blocked.ids
