"""Random histories of a strict order: what is claimed comes next, whatever happened before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flask_cronjobs.jobs import orders
from flask_cronjobs.jobs.runs.changes import Operator
from flask_cronjobs.types import Claim
from tests.kit import Kit
from tests.rows import ago

pytestmark = pytest.mark.slow

KEYS = ("a", "b")
#: How an attempt may end; ``lost`` is by a reclaim.
ENDS = ("succeeded", "failed", "dead", "cancelled", "released", "snoozed", "lost")
_which = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.sampled_from(KEYS), st.sampled_from(["skip", "stop"])),
        st.tuples(st.just("work"), st.sampled_from(ENDS), st.booleans()),
        st.tuples(st.just("finish"), st.sampled_from(ENDS), _which),
        st.tuples(st.sampled_from(["retry", "cancel", "discard", "late"]), _which, st.none()),
        st.tuples(st.just("give"), st.none(), st.none()),
    ),
    min_size=5,
    max_size=40,
)


class History:
    """Runs of two keys, by the store's own calls; what is claimed is checked."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.held: list[Claim] = []
        self.gaps: list[tuple[int, str, str]] = []
        kit.sql("DELETE FROM job_failures")
        kit.sql("DELETE FROM job_runs")

    def enqueue(self, key: str, on_dead: str, run_id: int | None = None) -> int:
        values: dict[str, Any] = {} if run_id is None else {"id": run_id}
        return self.kit.run(
            concurrency_key=key, concurrency_limit=1, on_dead=on_dead, order_mark="new",
            max_attempts=100, **values,
        )  # fmt: skip

    def step(self, what: str, first: Any, second: Any) -> None:
        if what == "enqueue":
            self.enqueue(first, second)
        elif what == "work":
            if second:
                self.give()
            self.claim()
            self.finish(first, len(self.held) - 1)
        elif what == "finish":
            self.finish(first, second)
        elif what == "give":
            self.give()
            self.claim()
        elif what == "late":
            self.commit_late(first)
        else:
            self.operate(what, first)

    def give(self) -> None:
        orders.give(self.kit.books)

    def claim(self) -> None:
        before = self.kit.all_rows()
        for claim in self.kit.claim(1):
            self.held.append(claim)
            for row in before:
                earlier = row.concurrency_key == claim.concurrency_key and row.id < claim.id
                stops = row.status == "dead" and row.on_dead == "stop"
                if earlier and (row.finished_at is None or stops):
                    # Only what came or was retried since turns were given is not known yet.
                    assert row.order_mark in ("new", "over"), (
                        claim,
                        row.id,
                        row.status,
                        row.order_mark,
                    )

    def finish(self, kind: str, place: int) -> None:
        if not 0 <= place < len(self.held):
            return
        claim = self.held.pop(place)
        if kind == "lost":
            self.kit.expire(claim)
            self.kit.finish(claim, "failed", reclaimed=True)
        else:
            self.kit.finish(claim, kind, delay=0.0)  # type: ignore[arg-type]
        self.kit.sql("UPDATE job_runs SET run_at = :now WHERE finished_at IS NULL", now=ago(60))

    def operate(self, verb: str, place: int) -> None:
        rows = self.kit.all_rows()
        if place >= len(rows) or rows[place].status == "running":
            return
        operator, run_id = Operator(self.kit.books), rows[place].id
        if verb == "retry":
            operator.retry([run_id])
        elif verb == "cancel":
            operator.cancel([run_id], "why")
        else:
            operator.discard([run_id], "why")

    def commit_late(self, place: int) -> None:
        """Insert a run with the id of one whose transaction had not committed before."""
        rows = self.kit.all_rows()
        highest = max((row.id for row in rows), default=0)
        free = sorted(set(range(max(1, highest - 5), highest)) - {row.id for row in rows})
        if free:
            self.enqueue(KEYS[place % 2], "skip", free[place % len(free)])
        else:
            made = self.enqueue(KEYS[place % 2], "skip")  # Leaves a gap.
            self.kit.sql("DELETE FROM job_runs WHERE id = :id", id=made)

    def drain(self) -> dict[str, list[int]]:
        """End what is held, then all that may run, with success; the runs of each key in order."""
        while self.held:
            self.finish("succeeded", 0)
        done: dict[str, list[int]] = {key: [] for key in KEYS}
        self.give()
        while claims := self.kit.claim(1):
            assert claims[0].concurrency_key is not None
            done[claims[0].concurrency_key].append(claims[0].id)
            self.kit.finish(claims[0])
            self.give()
        return done


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_runs_of_a_key_begin_in_order_and_none_is_left(kit: Kit, steps: list[Any]) -> None:
    history = History(kit)
    for step in steps:
        history.step(*step)
    done = history.drain()
    rows = kit.all_rows()
    for key in KEYS:
        assert done[key] == sorted(done[key])
        of_key = [row for row in rows if row.concurrency_key == key]
        stopping = [row.id for row in of_key if row.status == "dead" and row.on_dead == "stop"]
        left = [row.id for row in of_key if row.finished_at is None]
        assert all(stopping and run > min(stopping) for run in left), "only a dead run stops others"
        assert all(row.order_mark in (None, "waits") for row in of_key), "no mark is left"
