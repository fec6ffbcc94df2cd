"""Every history of two workers and a run of two steps, on the store itself.

A worker that has lost the run may come back at any point, at the step that it had reached. The
expected behavior is repeated in plain Python, and compared after each history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from flask_cronjobs.features.steps import step_rows as steps
from flask_cronjobs.features.steps.step_rows import StepRow
from flask_cronjobs.types import Claim, OutcomeKind
from tests.kit import Kit

STEPS = 2
MAX_ATTEMPTS = 2


@dataclass(frozen=True)
class Belief:
    """A running worker's next step, and whether it still holds the run."""

    step: int
    holds: bool = True


@dataclass(frozen=True)
class World:
    """The run's row, its steps, and the workers that run it."""

    status: str = "queued"
    attempts: int = 0
    max_attempts: int = MAX_ATTEMPTS
    forgiven: int = 0
    done: int = 0
    a: Belief | None = None
    b: Belief | None = None
    path: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def follow(self, do: str, worker: str) -> World:
        """Return the world after an action."""
        after = replace(self, path=(*self.path, (do, worker)))
        belief = self.at_work.get(worker)
        if do == "claim":
            after = replace(after, status="running", attempts=self.attempts + 1)
            return after.with_belief(worker, Belief(self.done + 1))
        if do == "expire":
            return after.given_back("failed")
        assert belief is not None
        if not belief.holds:
            return after.with_belief(worker, None)
        if do == "step":
            more = max(0, self.attempts - self.forgiven)
            belief = replace(belief, step=belief.step + 1)
            after = replace(after, max_attempts=self.max_attempts + more, done=self.done + 1)
            forgiven = max(self.forgiven, self.attempts)
            return replace(after, forgiven=forgiven).with_belief(worker, belief)
        return after.given_back(do).with_belief(worker, None)

    def given_back(self, kind: str) -> World:
        """Return the world after an outcome."""
        back = kind == "released"
        attempts, most = self.attempts - back, self.max_attempts
        forgiven = min(self.forgiven, attempts)
        most -= self.forgiven - forgiven
        if kind == "failed":
            status = "dead" if self.attempts >= self.max_attempts else "failed"
        else:
            status = "failed" if self.attempts > 1 else "queued"
        after = replace(
            self, status=status, attempts=attempts, max_attempts=most, forgiven=forgiven
        )
        for worker, belief in self.at_work.items():
            after = after.with_belief(worker, belief and replace(belief, holds=False))
        return after

    def with_belief(self, worker: str, belief: Belief | None) -> World:
        """Return the world in which a worker has another belief."""
        return replace(self, a=belief) if worker == "a" else replace(self, b=belief)

    @property
    def seen(self) -> tuple[object, ...]:
        """Return the contents of the tables."""
        return self.status, self.attempts, self.max_attempts, self.forgiven, self.done

    @property
    def at_work(self) -> dict[str, Belief | None]:
        """Return each worker's belief; None if it does not run."""
        return {"a": self.a, "b": self.b}

    def next(self) -> Iterator[World]:
        """Return every possible next world."""
        for worker, belief in self.at_work.items():
            if belief is None:
                if self.status in ("queued", "failed"):
                    yield self.follow("claim", worker)
                continue
            if belief.step <= STEPS:
                yield self.follow("step", worker)
            for kind in ("released", "failed"):
                yield self.follow(kind, worker)
        if self.status == "running":
            yield self.follow("expire", "")


class Store:
    """The real store, with the actions of `World`: one run, and the workers' claims."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.id = kit.run(max_attempts=MAX_ATTEMPTS)
        self.claims: dict[str, Claim] = {}
        self.at: dict[str, int] = {}
        self.held: Claim | None = None

    def follow(self, do: str, worker: str) -> None:
        """Perform an action."""
        if do == "claim":
            self.kit.sql("UPDATE job_runs SET run_at = created_at WHERE id = :id", id=self.id)
            self.held = self.claims[worker] = self.kit.claim_one()
            self.at[worker] = len(steps.read(self.kit.books, self.id).rows) + 1
        elif do == "step":
            self.step(worker)
        elif do == "expire":
            assert self.held is not None
            self.end(self.held, "failed")
        else:
            self.end(self.claims[worker], "failed" if do == "failed" else "released")

    def step(self, worker: str) -> None:
        """Do a step's work, and commit it if the run is still the worker's."""
        claim, name = self.claims[worker], f"step {self.at[worker]}"
        with Session(self.kit.engine) as session:
            session.execute(text("INSERT INTO work VALUES (:name)"), {"name": name})
            connection = session.connection()
            _, holder = steps.write(connection, claim, StepRow(name, "step", finished=True))
            if holder is not None:
                session.commit()
                self.at[worker] += 1

    def end(self, claim: Claim, kind: OutcomeKind) -> None:
        """Record an outcome, as a worker does that knows the row's attempts."""
        row = self.kit.get(self.id)
        if kind == "failed" and row.attempts >= row.max_attempts:
            kind = "dead"
        self.kit.finish(claim, kind, seconds=1.0)

    def seen(self) -> tuple[object, ...]:
        """Return the contents of the tables."""
        row = self.kit.get(self.id)
        recorded = [row.name for row in self.kit.sql("SELECT name FROM job_steps ORDER BY id")]
        work = [row.name for row in self.kit.sql("SELECT name FROM work ORDER BY name")]
        assert recorded == work
        return row.status, row.attempts, row.max_attempts, row.forgiven, len(recorded)

    def forget(self) -> None:
        """Empty the tables."""
        for table in ("work", "job_failures", "job_steps", "job_runs"):
            self.kit.sql(f"DELETE FROM {table}")


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The job tables, and a table for the work of steps."""
    kit = Kit.on(database_url)
    kit.sql("CREATE TABLE work (name text PRIMARY KEY)")
    yield kit
    kit.close()


@pytest.mark.slow
def test_no_history_does_a_step_twice(kit: Kit) -> None:
    worlds, edge = {World()}, [World()]
    while edge:
        edge = [new for world in edge for new in dict.fromkeys(world.next()) if new not in worlds]
        edge = list(dict.fromkeys(edge))
        worlds.update(edge)
        for world in edge:
            store = Store(kit)
            for action in world.path:
                store.follow(*action)
            assert store.seen() == world.seen, world.path
            store.forget()
    assert {world.status for world in worlds} == {"queued", "running", "failed", "dead"}
    assert max(world.done for world in worlds) == STEPS
