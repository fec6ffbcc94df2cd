"""Every history of two workers and one rate key: starts, begins, releases, deaths, lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import pytest

from flask_cronjobs.core.tasks.options import Rate
from tests.rates import refuse_too_early

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
#: How long a history goes on.
LAST = START + 3 * SECOND
#: How many attempts begin in it at most.
MOST = 4


class Held(NamedTuple):
    """A run that a worker has claimed *at* a time, and the ``tat`` that its start has left."""

    at: datetime
    after: datetime | None = None


class World(NamedTuple):
    """What the row of the key says, what the workers hold, and when attempts began, in order."""

    now: datetime = START
    tat: datetime | None = None
    workers: tuple[Held | None, ...] = (None, None)
    begun: tuple[datetime, ...] = ()

    def with_worker(self, number: int, held: Held | None) -> World:
        """The world in which a worker holds that."""
        others = list(self.workers)
        others[number] = held
        return self._replace(workers=tuple(others))


def steps(world: World, rate: Rate, returns: bool) -> Iterator[World]:
    """All that may happen next.

    :param returns: whether a start is given back by whom takes its run for one that has not begun.
    """
    if world.now < LAST:
        yield world._replace(now=world.now + SECOND / 2)
    for number, held in enumerate(world.workers):
        if held is None:
            yield world.with_worker(number, Held(world.now))
            continue
        # It is killed, frozen, or releases its run: its start is lost, if it had one.
        gone = world.with_worker(number, None)
        yield gone
        if held.after is None:
            after = rate.start(world.tat, held.at)
            if after is not None:
                yield world.with_worker(number, held._replace(after=after))._replace(tat=after)
                yield gone._replace(tat=after)  # The answer is lost.
            continue
        if len(world.begun) < MOST:
            begun = world._replace(begun=tuple(sorted((*world.begun, held.at))))
            yield begun.with_worker(number, None)
            if returns and world.tat == held.after:
                yield begun.with_worker(number, None)._replace(tat=held.after - rate.period)


def histories(rate: Rate, returns: bool) -> Iterator[World]:
    """Every world that can come about."""
    seen, left = {World()}, [World()]
    while left:
        world = left.pop()
        yield world
        for following in steps(world, rate, returns):
            if following not in seen:
                seen.add(following)
                left.append(following)


def refuse_all_too_early(burst: int, returns: bool) -> int:
    """Go through all histories; how many had as many attempts as there may be."""
    number = 0
    for world in histories(Rate(SECOND, burst), returns):
        refuse_too_early(world.begun, 1, burst)
        number += len(world.begun) == MOST
    return number


@pytest.mark.parametrize("burst", [1, 2])
def test_no_history_begins_an_attempt_too_early(burst: int) -> None:
    assert refuse_all_too_early(burst, returns=False) > 0


def test_start_of_a_run_that_has_begun_may_not_come_back() -> None:
    with pytest.raises(AssertionError, match="2 attempts in"):
        refuse_all_too_early(1, returns=True)
