"""An oracle for claims: order, limits, keys, shares, strict order and pauses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from random import Random
from typing import Any

import pytest
from sqlalchemy import insert

from flask_cronjobs.core import gate
from flask_cronjobs.core.claim import ClaimRequest
from flask_cronjobs.core.claim_statement import WINDOW
from flask_cronjobs.models import JobPause, JobRun
from flask_cronjobs.types import WORKER_LOST, Claim
from tests.kit import Kit
from tests.rows import TERMINAL, ago

#: How an attempt may end; ``lost`` is a reclaim, and ``expired`` is the state before it.
ENDS = ("succeeded", "failed", "dead", "cancelled", "released", "snoozed", "lost", "expired")

#: When runs are due, in minutes ago; runs of the same age are due at the same moment.
AGES = {minutes: ago(minutes=minutes) for minutes in (9, 5, 2, -60)}

#: SQLite stores whole milliseconds; its clock and the lease are each rounded to one.
CLOCK_STEP = timedelta(milliseconds=2)

_LATER: dict[str, Any] = {"job_type": "task", "run_at": ago(days=-9)}
_KEY: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
#: Runs that come before all others; a claim may take none or few of them.
BACKLOGS: list[dict[str, Any]] = [
    {"priority": 9, "run_at": ago(days=9), **which}
    for which in (
        {"job_type": "unknown"},
        {"job_type": "task", "queue": "bulk"},
        _LATER,
        {"job_type": "unknown", **_KEY},
        _LATER | _KEY,
    )
]


def make_row(chance: Random, gates: Iterator[str | None]) -> dict[str, Any]:
    """Return the columns of a run, as an enqueue, an attempt or an operator may leave them."""
    most = chance.choice([1, 2, 5, 5, 5, 5])
    tried = chance.choice([0, 0, 0, 0, 1, most])
    key = chance.choice([None, None, None, "a", "b", "strict"])
    ended = chance.random() < 0.15
    values: dict[str, Any] = {
        "job_type": chance.choice(["task"] * 6 + ["other", "unknown"]),
        "queue": chance.choice(["default"] * 6 + ["mail", "bulk"]),
        "priority": chance.choice([0, 0, 0, -1, 5]),
        "run_at": AGES[chance.choice([9, 9, 5, 2, 2, -60])],
        "max_attempts": most,
        "attempts": tried,
        "status": chance.choice(TERMINAL if ended else ["failed", "queued"][not tried :]),
        "error_type": chance.choice(["ValueError", WORKER_LOST]) if tried else None,
        "finished_at": ago(minutes=1) if ended else None,
        "concurrency_key": key,
        "concurrency_limit": {None: None, "strict": 1}.get(key, chance.randint(1, 3)),
        "strict": key == "strict",
    }
    return values | {"gate": next(gates) if key == "strict" and not ended else None}


def make_request(chance: Random) -> dict[str, Any]:
    return {
        "limit": chance.choice([1, 2, 3, 100]),
        "tasks": chance.choice([("task", "other")] * 5 + [("task",), ()]),
        "queues": chance.choice([()] * 5 + [("mail",), ("mail", "default", "bulk")]),
        "elsewhere": chance.choice([frozenset[str](), frozenset({"bulk"})]),
        "idle": chance.random() < 0.7,
        "side_by_side": chance.random() < 0.4,
        # Otherwise it would check only the first `limit` of the few runs.
        "beyond": 20,
    }


@dataclass
class Oracle:
    """The rows, and what a claim of them should take."""

    rows: dict[int, JobRun]
    pauses: list[tuple[str, str]]

    def claim(self, request: ClaimRequest) -> list[tuple[int, int | None]]:
        """Return the ids and shares of the runs that a claim should take, in order."""
        ready: list[JobRun] = []
        shares: dict[int, int | None] = {}
        places = Counter[str]()
        for row in sorted(self.rows.values(), key=_place):
            if not self._may_be_claimed(row, request):
                continue
            if row.concurrency_key is not None:
                places[row.concurrency_key] += 1
                place = places[row.concurrency_key]
                shares[row.id] = share = self.free_share(row, place)
                if max(share, place) > (row.concurrency_limit or 0):
                    continue
            ready.append(row)
        ready = ready[: request.limit]
        company = [row for row in ready if goes_in_company(row, request.side_by_side)]
        if ready and ready[0] not in company and not (request.side_by_side and not request.idle):
            ready = ready[:1] if request.idle else []
        else:
            ready = company
        return [(row.id, shares.get(row.id)) for row in ready]

    def _may_be_claimed(self, row: JobRun, request: ClaimRequest) -> bool:
        return (
            row.status in ("queued", "failed")
            and row.run_at <= ago()
            and row.attempts < row.max_attempts
            and row.gate is None
            and not (row.strict and any(self._comes_before(row)))
            and row.job_type in request.tasks
            and (row.queue in request.queues if request.queues else True)
            and row.queue not in request.elsewhere
            and ("task", row.job_type) not in self.pauses
            and ("queue", row.queue) not in self.pauses
        )

    def _comes_before(self, row: JobRun) -> Iterator[bool]:
        """Return whether a run of the key comes before *row* in its strict order."""
        for other in self.rows.values():
            in_key = other.strict and other.concurrency_key == row.concurrency_key
            yield in_key and other.finished_at is None and other.id < row.id

    def free_share(self, row: JobRun, place: int) -> int:
        """Return the free share of the key at *place*."""
        taken_shares = {
            other.concurrency_share
            for other in self.rows.values()
            if other.status == "running" and other.concurrency_key == row.concurrency_key
        }
        return [share for share in range(1, 100) if share not in taken_shares][place - 1]


def _place(row: JobRun) -> tuple[int, datetime, int]:
    return (-row.priority, row.run_at, row.id)


def goes_in_company(row: JobRun, side_by_side: bool) -> bool:
    """Return whether a run may be claimed together with others; a last attempt may not."""
    retry = row.attempts > 0 and not (side_by_side and row.error_type != WORKER_LOST)
    ahead = row.rate_key is not None and not side_by_side
    return row.max_attempts - row.attempts > 1 and not retry and not ahead


def end(kit: Kit, claim: Claim, kind: Any) -> None:
    """End an attempt; a run that is to be retried waits for an hour, unless it was lost."""
    if kind in ("lost", "expired"):
        kit.expire(claim)
    if kind == "lost":
        last = claim.attempt == claim.max_attempts
        kit.finish(claim, "dead" if last else "failed", reclaimed=True, error_type=WORKER_LOST)
    elif kind != "expired":
        kit.finish(claim, kind, delay=3600.0)


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 75), marks=pytest.mark.slow)])
def test_claim_takes_what_the_oracle_says(kit: Kit, seeds: range) -> None:
    for seed in seeds:
        expect_history(kit, Random(seed))  # With -l, the traceback of a failure shows the seed.


@pytest.mark.parametrize("backlog", BACKLOGS, ids=range(len(BACKLOGS)))
@pytest.mark.parametrize(
    "seeds", [range(100, 102), pytest.param(range(102, 110), marks=pytest.mark.slow)]
)
def test_claim_behind_a_backlog_takes_what_the_oracle_says(
    kit: Kit, backlog: dict[str, Any], seeds: range
) -> None:
    """The backlog comes before all other runs, and is longer than what a claim reads in order."""
    for seed in seeds:
        expect_history(kit, Random(seed), [backlog] * (2 * WINDOW + 11))


def expect_history(kit: Kit, chance: Random, backlog: Sequence[dict[str, Any]] = ()) -> None:
    """Make rows, and let requests and ends alternate."""
    for table in ("job_failures", "job_runs", "job_pauses"):
        kit.sql(f"DELETE FROM {table}")
    gates = chain([None], iter(lambda: chance.choice([None, "order"]), ""))
    paused = [("task", "other"), ("queue", "mail"), ("queue", "task"), ("task", "mail")]
    pauses = chance.sample(paused, chance.choice([0, 0, 1, 2]))
    with kit.engine.begin() as connection:
        for _ in range(chance.randint(5, 20)):
            connection.execute(
                insert(JobRun).values(scheduled_for=ago(), **make_row(chance, gates))
            )
        if backlog:
            connection.execute(insert(JobRun), backlog)
        for kind, name in pauses:
            connection.execute(insert(JobPause).values(kind=kind, name=name))
    claims: list[Claim] = []
    for _ in range(8):
        claims += expect_claim(kit, kit.request(**make_request(chance)), pauses)
        for _ in range(min(len(claims), chance.randrange(3))):
            kind = chance.choice(ENDS)
            end(kit, claims[0] if kind == "expired" else claims.pop(0), kind)
        expect_no_share_of_what_does_not_run(kit)


def expect_claim(kit: Kit, request: ClaimRequest, pauses: list[tuple[str, str]]) -> list[Claim]:
    """Claim, compare with the oracle, and return the claims."""
    gate.open_all_left_parked(kit.books)
    may_find = kit.looks.look_at_queue()
    oracle = Oracle({row.id: row for row in kit.all_rows()}, pauses)
    expect_next(kit, request, oracle)
    expected = oracle.claim(request)
    assert may_find or not expected
    before_claim = kit.definitions.now()
    answer = kit.claims.record_and_claim([], request)
    after_claim = kit.definitions.now()
    claims = answer.claims
    expect_parked_behind_others(kit, answer.parked)
    assert [claim.id for claim in claims] == [run_id for run_id, _ in expected]
    for claim, (run_id, share) in zip(claims, expected, strict=True):
        before, row = oracle.rows[run_id], kit.get(run_id)
        assert (row.status, row.locked_by) == ("running", request.token)
        assert row.locked_until is not None
        lease_began = row.locked_until - timedelta(seconds=request.lease)
        for moment in (row.started_at, lease_began):
            assert moment is not None
            assert before_claim - CLOCK_STEP <= moment <= after_claim + CLOCK_STEP
        assert row.attempts == claim.attempt == before.attempts + 1
        assert row.concurrency_share == share
        last = claim.attempt == before.max_attempts
        assert claim.must_run_alone == (last or before.error_type == WORKER_LOST)
    return list(claims)


def expect_parked_behind_others(kit: Kit, parked: Collection[int]) -> None:
    """Check that a claim parks only runs that the end of another run opens."""
    rows = kit.all_rows() if parked else []
    for row in rows:
        if row.id not in parked:
            continue
        key = [same_key for same_key in rows if same_key.concurrency_key == row.concurrency_key]
        if row.gate == "keys":
            assert sum(run.status == "running" for run in key) >= (row.concurrency_limit or 0)
        else:
            assert row.gate == "order"
            assert any(run.strict and not run.finished_at and run.id < row.id for run in key)
    assert gate.open_behind(kit.books, parked) == 0


def expect_next(kit: Kit, request: ClaimRequest, oracle: Oracle) -> None:
    """Check which run an idle worker that runs handlers side by side would claim next."""
    alone = request._replace(limit=1, idle=True, side_by_side=True)
    rows = [oracle.rows[run_id] for run_id, _ in oracle.claim(alone)]
    expected = [(row.job_type, not goes_in_company(row, side_by_side=True)) for row in rows]
    next_run = kit.looks.next_run(alone)
    assert ([next_run] if next_run else []) == expected


def expect_no_share_of_what_does_not_run(kit: Kit) -> None:
    shares: dict[str, list[int | None]] = defaultdict(list)
    for row in kit.all_rows():
        assert row.status == "running" or row.concurrency_share is None
        if row.status == "running" and row.concurrency_key is not None:
            shares[row.concurrency_key].append(row.concurrency_share)
    assert all(len(set(shares_of_key)) == len(shares_of_key) for shares_of_key in shares.values())
