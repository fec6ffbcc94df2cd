"""Every history of two workers and one run, searched for a stale finalize.

The fence of the store, a token fresh for each claim, admits none. Weakened to the run's id, to its
status or to the worker's name it does: so the search would find a hole if there were one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

WORKERS = ("a", "b")
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Execution:
    """A worker at work under a claim; `claim` numbers claims, so it is what a token is."""

    worker: str
    claim: int


@dataclass(frozen=True)
class World:
    """The run's row, and who believes to hold it.

    A worker can have two executions: one that froze and the one of a process that came after under
    the same name.
    """

    status: str = "queued"
    holder: Execution | None = None
    expired: bool = False
    attempts: int = 0
    executions: frozenset[Execution] = frozenset()
    stale: bool = False
    """Whether an outcome was accepted from an execution that did not hold the run."""


Fence = Callable[[World, Execution], bool]

FENCES: dict[str, Fence] = {
    "token": lambda world, late: world.status == "running" and world.holder == late,
    "id": lambda world, late: True,
    "status": lambda world, late: world.status == "running",
    "worker name": lambda world, late: (
        world.holder is not None and world.holder.worker == late.worker
    ),
}


def steps(world: World, fence: Fence) -> Iterator[World]:
    """Every world that can come next."""
    if world.status == "queued":
        for worker in WORKERS:
            made = Execution(worker, world.attempts + 1)
            yield replace(
                world,
                status="running",
                holder=made,
                expired=False,
                attempts=world.attempts + 1,
                executions=world.executions | {made},
            )
    if world.status == "running" and not world.expired:
        yield replace(world, expired=True)
    if world.status == "running" and world.expired:
        status = "queued" if world.attempts < MAX_ATTEMPTS else "dead"
        yield replace(world, status=status, holder=None, expired=False)
    for worker in WORKERS:
        yield replace(
            world, executions=frozenset(e for e in world.executions if e.worker != worker)
        )
    for late in world.executions:
        left = replace(world, executions=world.executions - {late})
        if fence(world, late):
            stale = world.stale or world.holder != late
            yield replace(left, status="succeeded", holder=None, expired=False, stale=stale)
        else:
            yield left


def reachable(fence: Fence) -> set[World]:
    """Every world that can be reached."""
    found = {World()}
    edge = [World()]
    while edge:
        edge = [next_ for world in edge for next_ in steps(world, fence) if next_ not in found]
        edge = list(dict.fromkeys(edge))
        found.update(edge)
    return found


def test_a_token_fresh_for_each_claim_admits_no_stale_finalize() -> None:
    worlds = reachable(FENCES["token"])
    assert not any(world.stale for world in worlds)
    assert {world.status for world in worlds} == {"queued", "running", "succeeded", "dead"}


def test_with_the_token_at_most_the_holder_can_finalize() -> None:
    for world in reachable(FENCES["token"]):
        able = [late for late in world.executions if FENCES["token"](world, late)]
        assert len(able) <= 1


@pytest.mark.parametrize("weak", ["id", "status", "worker name"])
def test_a_weaker_fence_admits_a_stale_finalize(weak: str) -> None:
    assert any(world.stale for world in reachable(FENCES[weak]))
