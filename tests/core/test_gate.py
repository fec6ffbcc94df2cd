"""In a strict order, the runs of a key run one after the other, by their ids."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from flask_cronjobs.core import gate
from flask_cronjobs.core.claim import Answer
from flask_cronjobs.core.claim_statement import claim_statement
from flask_cronjobs.core.gate import KEYS_READ
from flask_cronjobs.core.leases import end_spent
from flask_cronjobs.insights.run_actions import CANCEL, RETRY
from tests.kit import Kit, in_threads, outcome
from tests.marks import on_postgresql
from tests.postgres import local_server
from tests.rows import ago


def ordered(kit: Kit, key: str = "key", **values: Any) -> int:
    order = {"strict": True, "concurrency_key": key, "concurrency_limit": 1}
    return kit.run(**{**order, **values})


def gates(kit: Kit, *ids: int) -> list[str | None]:
    return [kit.get(run_id).gate for run_id in ids]


def claim(kit: Kit, limit: int = 100) -> Answer:
    """Claim, and open what is parked, as a worker does."""
    answer: Answer = kit.claims.record_and_claim([], kit.request(limit, beyond=20))
    gate.open_behind(kit.books, answer.parked)
    return answer


def ids_of(answer: Answer) -> list[int]:
    return [claim.id for claim in answer.claims]


def test_claim_parks_what_it_meets_behind_the_first_and_the_end_opens_the_next(kit: Kit) -> None:
    ids = [ordered(kit) for _ in range(3)]
    answer = claim(kit)
    assert (ids_of(answer), answer.parked) == (ids[:1], frozenset(ids[1:]))
    assert gates(kit, *ids) == [None, "order", "order"]
    assert kit.claim_ids() == []
    assert kit.finish(answer.claims[0])
    assert gate.open_behind(kit.books, ids[:1]) == 1
    assert gates(kit, *ids) == [None, None, "order"]
    assert kit.claim_ids() == ids[1:2]


def test_the_first_to_come_is_that_of_the_lowest_id_not_of_the_highest_priority(kit: Kit) -> None:
    ids = [ordered(kit, priority=priority) for priority in range(3)]
    assert ids_of(claim(kit, 1)) == ids[:1]


def test_claim_that_parks_keeps_what_a_run_has_left_behind(kit: Kit) -> None:
    ordered(kit)
    second = ordered(kit, status="failed", attempts=1, progress=0.5, started_at=ago(60))
    before = kit.get(second)
    claim(kit)
    after = kit.get(second)
    assert after.gate == "order"
    for name in ("status", "attempts", "progress", "started_at", "run_at", "locked_by"):
        assert getattr(after, name) == getattr(before, name)


def test_run_parked_behind_one_that_has_just_ended_is_opened(kit: Kit) -> None:
    """The transaction that commits last sees the other's write. Here, this is the claim's."""
    second = [ordered(kit) for _ in range(2)][1]
    (running,) = kit.claim()
    kit.sql("UPDATE job_runs SET gate = NULL WHERE id = :id", id=second)
    # The snapshot of the claim is older than the end of the first run.
    answer = kit.claims.record_and_claim([], kit.request())
    assert answer.parked == {second}
    assert kit.finish(running)
    assert gate.open_behind(kit.books, answer.parked) == 1
    assert kit.claim_ids() == [second]


@on_postgresql
@pytest.mark.parametrize("strict", [True, False], ids=["order", "keys"])
def test_end_and_claim_at_once_lose_no_wake_up(kit: Kit, strict: bool) -> None:
    """A claim that still sees the first run running parks the next; the first ends meanwhile."""
    first, second = (ordered(kit, strict=strict) for _ in range(2))
    (running,) = kit.claim(limit=1)
    second_worker = kit.another()
    d = kit.books.dialect
    with kit.engine.begin() as claiming:
        request = kit.request()
        rows = claiming.execute(claim_statement(d), request.parameters(d)).all()
        assert [row.parked for row in rows] == [str(second)]
        # Neither transaction sees the other's write, so the end opens nothing.
        assert second_worker.finish(running)
        assert gate.open_behind(second_worker.books, [first]) == 0
    assert gates(kit, second) == ["order" if strict else "keys"]
    assert kit.claim_ids() == []
    # The claim checks again after its commit.
    assert gate.open_behind(kit.books, [second]) == 1
    assert kit.claim_ids() == [second]
    second_worker.books.close()


def test_run_without_an_attempt_left_opens_the_next(kit: Kit) -> None:
    first, second = ordered(kit, attempts=3, max_attempts=3, status="failed"), ordered(kit)
    assert claim(kit).claims == ()
    end_spent(kit.books)
    assert kit.get(first).status == "dead"
    assert kit.claim_ids() == [second]


def test_operator_who_cancels_the_first_opens_the_next(kit: Kit) -> None:
    first, second = ordered(kit, run_at=ago(hours=-1)), ordered(kit)
    assert claim(kit).parked == {second}
    kit.act(CANCEL, first)
    assert gates(kit, first, second) == [None, None]
    assert kit.claim_ids() == [second]


def test_retried_run_comes_first_again_and_others_are_parked_anew(kit: Kit) -> None:
    first, second, third = (ordered(kit) for _ in range(3))
    (running,) = claim(kit).claims
    assert kit.finish(running, "dead")
    gate.open_behind(kit.books, [first])
    kit.act(RETRY, first)
    assert ids_of(claim(kit)) == [first]
    assert gates(kit, first, second, third) == [None, "order", "order"]


def test_cancelled_run_that_is_parked_keeps_no_gate(kit: Kit) -> None:
    _, second = ordered(kit), ordered(kit)
    claim(kit)
    kit.act(CANCEL, second)
    assert (kit.get(second).status, kit.get(second).gate) == ("cancelled", None)


def test_runs_of_the_key_without_an_order_are_not_parked(kit: Kit) -> None:
    ordered(kit, run_at=ago(hours=-1))
    ordered(kit)
    free = kit.run(concurrency_key="key", concurrency_limit=1)
    assert ids_of(claim(kit)) == [free]


def test_outcome_and_claim_in_one_go_to_the_next_that_nobody_has_parked(kit: Kit) -> None:
    ordered(kit)
    (running,) = kit.claim()
    second = ordered(kit)
    answer = kit.claims.record_and_claim([outcome(running, "succeeded")], kit.request())
    assert ids_of(answer) == [second]


def test_runs_that_were_left_parked_are_opened_however_many_keys_there_are(kit: Kit) -> None:
    values = "'task', 'key ' || id, 1, true, 'order', now()"
    if kit.engine.dialect.name == "sqlite":
        values = values.replace("now()", "'2026-01-01'")
    kit.sql(
        "INSERT INTO job_runs (job_type, concurrency_key, concurrency_limit, strict, gate, run_at)"
        f" SELECT {values} FROM {_numbers(kit, KEYS_READ + 10)}"
    )
    assert kit.claim_ids() == []
    assert gate.open_all_left_parked(kit.books) == KEYS_READ + 10
    assert len(kit.claim_ids(2 * KEYS_READ)) == KEYS_READ + 10
    assert gate.open_all_left_parked(kit.books) == 0


def _numbers(kit: Kit, number: int) -> str:
    if kit.engine.dialect.name == "postgresql":
        return f"generate_series(1, {number}) AS numbers(id)"
    counted = f"SELECT 1 AS id UNION ALL SELECT id + 1 FROM n WHERE id < {number}"
    return f"(WITH RECURSIVE n AS ({counted}) SELECT id FROM n)"


@pytest.fixture
def linguistic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """The job tables on a server that orders keys as a language does: a, B."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # The server may run as another user.
        localedef = ["localedef", "--no-archive", "-i", "en_US", "-f", "UTF-8"]
        if shutil.which(localedef[0]) is None:
            pytest.skip("localedef is not installed")
        subprocess.run([*localedef, f"{folder}/en_US.utf8"], check=True)
        monkeypatch.setenv("LOCPATH", folder)
        with local_server() as server, closing(Kit.on(server.create_database())) as kit:
            kit.sql("CREATE COLLATION linguistic (provider = libc, locale = 'en_US.utf8')")
            kit.sql("ALTER TABLE job_runs ALTER concurrency_key TYPE text COLLATE linguistic")
            yield kit


@pytest.mark.slow
def test_parked_keys_are_read_in_the_order_of_the_database(linguistic: Kit) -> None:
    for gated, key, strict, number in (("order", "a", True, 2), ("keys", "B", False, 1)):
        values = f"'task', '{key}' || (1000 + id), 1, {strict}, '{gated}', now()"
        linguistic.sql(
            "INSERT INTO job_runs"
            " (job_type, concurrency_key, concurrency_limit, strict, gate, run_at)"
            f" SELECT {values} FROM {_numbers(linguistic, number * KEYS_READ)}"
        )
    assert gate.open_all_left_parked(linguistic.books) == 3 * KEYS_READ


@on_postgresql
def test_locked_run_is_not_opened_and_holds_up_no_other_key(kit: Kit) -> None:
    first, second = ordered(kit), ordered(kit)
    other_key, later = ordered(kit, "other"), ordered(kit, "other")
    claims = claim(kit).claims
    with kit.engine.connect() as psql:
        psql.execute(text("SELECT 1 FROM job_runs WHERE id = :id FOR UPDATE"), {"id": second})
        for running in claims:
            kit.finish(running)
        assert gate.open_behind(kit.books, [first, other_key]) == 1
        assert gates(kit, second, later) == ["order", None]
        psql.rollback()
    assert gate.open_all_left_parked(kit.books) == 1


#: Runs of three keys: in strict order, one at a time, and three at once.
KINDS = [{"strict": True}, {"strict": False}, {"strict": False, "concurrency_limit": 3}]


@pytest.mark.parametrize("claimed_at_once", [1, 5])
@pytest.mark.parametrize("values", KINDS, ids=["order", "one", "three"])
def test_many_workers_at_once_leave_nothing_behind(
    kit: Kit, values: dict[str, Any], claimed_at_once: int
) -> None:
    """Each worker claims, ends and opens; none searches. In strict order, ids come one by one."""
    finished = work_off(kit, values, claimed_at_once)
    for key in KEYS:
        of_key = [run for name, run in finished if name == key]
        assert len(of_key) == PER_KEY
        assert not values["strict"] or of_key == sorted(of_key)


@pytest.mark.parametrize("values", KINDS, ids=["order", "one", "three"])
def test_runs_that_dead_workers_did_not_open_are_opened(kit: Kit, values: dict[str, Any]) -> None:
    """One worker in three dies after its outcomes or after its claim; idle workers search."""
    finished = work_off(kit, values, claimed_at_once=3, dies=Random(7))
    assert len(finished) == len(KEYS) * PER_KEY


KEYS, PER_KEY = ("a", "b", "c"), 12


def work_off(
    kit: Kit, values: dict[str, Any], claimed_at_once: int, dies: Random | None = None
) -> list[tuple[str, int]]:
    """Let four workers execute all runs at once; return the key and id of each, as they began."""
    for _ in range(PER_KEY):
        for key in KEYS:
            ordered(kit, key, **values)
    most = values.get("concurrency_limit", 1)
    finished: list[tuple[str, int]] = []

    def opens(worker: Kit, ids: Collection[int]) -> None:
        if dies is None or dies.random() > 0.3:
            gate.open_behind(worker.books, ids)

    def work() -> None:
        worker = kit.another()
        idle = 0
        while len(finished) < len(KEYS) * PER_KEY and idle < 3000:
            answer = worker.claims.record_and_claim([], worker.request(claimed_at_once))
            opens(worker, answer.parked)
            idle = 0 if answer.claims or answer.parked else idle + 1
            if idle and dies is not None:
                gate.open_all_left_parked(worker.books)
            expect_no_more_than(worker, most)
            first = gate.held_first(worker.books, answer.claims[0].token) if answer.claims else ()
            for claim in answer.claims:
                assert claim.concurrency_key is not None
                if claim.id in first:
                    finished.append((claim.concurrency_key, claim.id))
                assert worker.finish(claim, "succeeded" if claim.id in first else "released")
            opens(worker, {claim.id for claim in answer.claims})
        worker.books.close()

    in_threads(*[work] * 4)
    return finished


def expect_no_more_than(kit: Kit, most: int) -> None:
    rows = kit.sql(
        "SELECT concurrency_key FROM job_runs WHERE status = 'running'"
        f" GROUP BY concurrency_key HAVING count(*) > {most}"
    )
    assert not rows
