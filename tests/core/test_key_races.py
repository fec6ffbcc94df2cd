"""Enqueues of one key beside a worker that claims and ends its runs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from flask_cronjobs.core import insert_many
from flask_cronjobs.core.insert import insert_or_find
from flask_cronjobs.core.insert_many import insert_runs
from flask_cronjobs.models import JobRun
from flask_cronjobs.types import Claim, OutcomeKind
from tests.core.test_insert import new
from tests.kit import Kit
from tests.marks import on_postgresql

NUMBER = 30
#: The most enqueues per thread, if the machine is too busy for a race.
MOST = 3000


pytestmark = pytest.mark.usefixtures("writers")


def race(
    kit: Kit,
    threads: int,
    enqueue: Callable[[int], Any],
    kinds: Sequence[OutcomeKind],
    enough: Callable[[list[Any]], bool] = bool,
) -> tuple[list[Any], list[Claim]]:
    """Claim and end runs by *kinds*, while threads *enqueue*, `NUMBER` times each.

    :param enough: whether the returned runs show that there was a race. The threads continue until
        it is true.

    :returns: the runs that *enqueue* returned, and the claims.
    """
    returned, claims, chance = list[Any](), list[Claim](), random.Random(7)

    def enqueue_all() -> None:
        for number in range(MOST):
            if number >= NUMBER and enough(returned):
                return
            returned.append(enqueue(number))

    with ThreadPoolExecutor(threads) as pool:
        enqueuers = [pool.submit(enqueue_all) for _ in range(threads)]
        at_work, claimed = True, tuple[Claim, ...]()
        while at_work or claimed:
            at_work = not all(enqueuer.done() for enqueuer in enqueuers)
            claimed = kit.claim(limit=1)
            claims += claimed
            for claim in claimed:
                assert kit.finish(claim, chance.choice(kinds), delay=0.0)
    for enqueuer in enqueuers:
        enqueuer.result()
    return returned, claims


def test_key_has_one_pending_run_at_a_time(kit: Kit) -> None:
    def enqueue(number: int) -> int:
        with Session(kit.engine) as session:
            run = insert_or_find(session, new("key", unique_while="pending")).run
            run_id = run.id
            pending = select(func.count()).where(JobRun.finished_at.is_(None))
            assert session.scalars(pending).one() <= 1
            session.commit()
        return run_id

    kinds: list[OutcomeKind] = ["succeeded", "succeeded", "cancelled", "failed", "released"]
    returned, _ = race(kit, 3, enqueue, kinds, enough=lambda returned: len(set(returned)) > 1)
    rows = kit.all_rows()
    assert set(returned) == {row.id for row in rows}
    assert {row.status for row in rows} <= {"succeeded", "cancelled"}
    assert 1 < len(rows) < len(returned)


def test_many_keys_at_once_have_one_pending_run_each(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert_many, "INSERTED_AT_ONCE", 3)
    keys = [f"key-{number}" for number in range(7)]

    def enqueue(number: int) -> list[int]:
        rows = [new(key, unique_while="pending") for key in keys]
        random.Random(number).shuffle(rows)
        with Session(kit.engine) as session:
            runs = insert_runs(session, rows)
            session.commit()
        return [run.id for run in runs]

    returned, _ = race(kit, 3, enqueue, ["succeeded", "failed"])
    assert all(len(set(ids)) == len(keys) for ids in returned)
    assert {id_ for ids in returned for id_ in ids} == {row.id for row in kit.all_rows()}


def test_run_that_is_replaced_was_seen_by_no_attempt(kit: Kit) -> None:
    """Each claim sees the row's final values, and the last payload is executed."""

    def enqueue(number: int) -> int:
        with Session(kit.engine) as session:
            waiting = new("key", {"number": number}, unique_while="waiting")
            run = insert_or_find(session, waiting, replace=True).run
            run_id = run.id
            session.commit()
        return run_id

    returned, claims = race(kit, 1, enqueue, ["succeeded", "failed", "snoozed"])
    rows = {row.id: row for row in kit.all_rows()}
    for claim in claims:
        assert claim.read() == rows[claim.id].payload
    assert {"number": NUMBER - 1} in [claim.read() for claim in claims if claim.attempt == 1]
    assert returned == sorted(returned)


@on_postgresql
def test_replacing_waits_for_a_claim_and_makes_a_run_of_its_own(kit: Kit) -> None:
    with Session(kit.engine) as session:
        first = insert_or_find(session, new("key", {"a": 1}, unique_while="waiting")).run.id
        session.commit()
    replaced: list[Any] = []

    def replace() -> None:
        with Session(kit.engine) as session:
            newer = new("key", {"a": 2}, unique_while="waiting")
            run, became, _ = insert_or_find(session, newer, replace=True)
            replaced.append((run.id != first, became))
            session.commit()

    thread = threading.Thread(target=replace)
    with kit.engine.begin() as claiming:
        claiming.exec_driver_sql(
            "UPDATE job_runs SET status = 'running', attempts = 1, started_at = now(), "
            "locked_by = 'host:1:token', locked_until = now() + interval '1 minute'"
        )
        thread.start()
        thread.join(0.3)
        assert replaced == []
    thread.join()
    assert replaced == [(True, "new")]
    assert kit.get(first).payload == {"a": 1}


@on_postgresql
def test_claim_skips_a_run_that_is_being_replaced(kit: Kit) -> None:
    with Session(kit.engine) as session:
        insert_or_find(session, new("key", unique_while="waiting"))
        session.commit()
        insert_or_find(session, new("key", {"a": 2}, unique_while="waiting"), replace=True)
        assert kit.claim() == ()
        session.commit()
    assert kit.claim_one().read() == {"a": 2}


class TestKeyOfARunThatWasClaimedAndGivenBack:
    """A claim counts as the beginning: an attempt may have seen the payload."""

    KEY: ClassVar[dict[str, Any]] = {"idempotency_key": "key", "unique_while": "waiting"}

    @pytest.mark.parametrize("said", [{"unbegun": True}, {}, {"seconds": 0.1}])
    def test_it_has_given_its_key_up(self, kit: Kit, said: dict[str, Any]) -> None:
        first = kit.run(**self.KEY)
        assert kit.finish(kit.claim_one(), "released", **said)
        assert kit.get(first).started_at is not None
        with Session(kit.engine) as session:
            run, became, _ = insert_or_find(session, new(**self.KEY), replace=True)
            session.commit()
            assert (became, run.id != first) == ("new", True)

    def test_it_waits_for_no_open_enqueue(self, kit: Kit) -> None:
        """The worker that gives the run back has leases to renew."""
        claim = (kit.run(**self.KEY), kit.claim_one())[1]
        with Session(kit.engine) as session:
            insert_or_find(session, new(**self.KEY))
            if kit.books.dialect.one_writer:
                session.commit()
            assert kit.finish(claim, "released", unbegun=True)
            session.commit()
