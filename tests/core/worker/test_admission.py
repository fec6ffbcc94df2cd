"""Which kind of runs a worker claims next, and how many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flask_cronjobs.config import Settings
from flask_cronjobs.core.worker.admission import (
    AHEAD_SECONDS,
    LONG_SECONDS,
    MAX_CLAIMED_RUNS,
    NOTHING,
    Admission,
    Prefetch,
    Wanted,
)
from flask_cronjobs.core.worker.held_runs import HeldRuns
from flask_cronjobs.features.side_by_side.async_run import LoopWatch
from flask_cronjobs.features.side_by_side.kinds import KIND_SECONDS, AsyncKinds
from flask_cronjobs.types import Claim, Outcome
from tests.clock import Clock

ROOM = 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("flask_cronjobs.features.side_by_side.kinds.time", clock)
    return clock


def an_admission(
    plain: Iterable[str] = (), rated: Iterable[str] = (), **side_by_side: int
) -> AsyncKinds:
    tasks = dict.fromkeys([*plain, *side_by_side])
    registry = SimpleNamespace(tasks=tasks, rates=dict.fromkeys(rated))
    state = SimpleNamespace(settings=Settings(async_at_once=ROOM), registry=registry)
    watch = LoopWatch()
    watch.note_progress(float("inf"))
    return AsyncKinds(cast(Any, state), side_by_side, watch)


def a_claim(task: str, number: int = 1, alone: bool = False) -> Claim:
    return Claim(number, "host:1:t", task, {}, 9 if alone else 1, 9, datetime.now(timezone.utc))


def holding(*claims: Claim, waiting: int = 0) -> HeldRuns:
    runs = SimpleNamespace(outcomes=[], idle=not claims, unfinished=list(claims), waiting=waiting)
    return cast(HeldRuns, runs)


IDLE = holding()


def asked(admission: Admission, held_runs: HeldRuns, busy: bool) -> Wanted:
    return admission.wanted(held_runs, held_runs.idle, busy)


def in_a_turn(admission: AsyncKinds, task: str) -> None:
    request = asked(admission, IDLE, busy=False)
    assert request.tasks is None
    admission.received(request, [a_claim(task)])


def test_app_without_async_handlers_claims_all_tasks_as_the_mean_says() -> None:
    admission = Prefetch()
    assert asked(admission, IDLE, busy=False) == Wanted(1)
    admission.note([Outcome(1, "t", "succeeded", 1, "plain", seconds=0.001)])
    assert asked(admission, IDLE, busy=False).limit == 50
    assert asked(admission, IDLE, busy=True) == NOTHING


@pytest.mark.usefixtures("clock")
def test_app_with_async_handlers_alone_fills_its_room() -> None:
    admission = an_admission(waits=ROOM)
    assert asked(admission, IDLE, busy=False) == Wanted(ROOM, None, True)
    in_a_turn(admission, "waits")
    at_work = [a_claim("waits", number) for number in range(4)]
    assert asked(admission, holding(*at_work), busy=True) == Wanted(ROOM - 4, ("waits",), True)


@pytest.mark.usefixtures("clock")
def test_runs_that_begin_soon_are_claimed_ahead_if_the_others_are_short() -> None:
    admission = an_admission(waits=ROOM)
    in_a_turn(admission, "waits")
    full = holding(*(a_claim("waits", number) for number in range(ROOM)))
    assert asked(admission, full, busy=False).limit == 0
    admission.note([Outcome(1, "t", "succeeded", 1, "waits", seconds=0.1)])
    assert asked(admission, full, busy=False).limit == 5
    assert asked(admission, full, busy=True).limit == 0
    for _ in range(20):
        admission.note([Outcome(1, "t", "succeeded", 1, "waits", seconds=9.0)])
    assert asked(admission, full, busy=False).limit == 0


@pytest.mark.usefixtures("clock")
def test_runs_at_a_rate_are_not_claimed_ahead() -> None:
    admission = an_admission(rated=["waits"], waits=ROOM)
    in_a_turn(admission, "waits")
    admission.note([Outcome(1, "t", "succeeded", 1, "waits", seconds=0.1)])
    full = holding(*(a_claim("waits", number) for number in range(ROOM)))
    assert asked(admission, full, busy=False).limit == 0


@pytest.mark.usefixtures("clock")
def test_no_more_of_a_task_is_claimed_than_may_be_at_work() -> None:
    admission = an_admission(waits=ROOM, few=2)
    in_a_turn(admission, "few")
    request = asked(admission, holding(a_claim("few")), busy=False)
    assert (request.limit, set(request.tasks or ())) == (1, {"waits", "few"})
    request = asked(admission, holding(a_claim("few", 1), a_claim("few", 2)), busy=False)
    assert request == Wanted(ROOM - 2, ("waits",), True)


@pytest.mark.usefixtures("clock")
def test_nothing_is_claimed_beside_a_run_that_is_alone() -> None:
    admission = an_admission(waits=ROOM)
    in_a_turn(admission, "waits")
    assert asked(admission, holding(a_claim("waits", alone=True)), busy=False).limit == 0


def test_idle_worker_with_both_kinds_lets_the_first_run_decide(clock: Clock) -> None:
    admission = an_admission(["plain"], waits=ROOM)
    assert asked(admission, IDLE, busy=False) == Wanted(1)
    in_a_turn(admission, "plain")
    assert asked(admission, IDLE, busy=False) == Wanted(1, ("plain",))
    admission.note([Outcome(1, "t", "succeeded", 1, "plain", seconds=0.001)])
    assert asked(admission, holding(a_claim("plain")), busy=False) == Wanted(50, ("plain",))
    clock.now += KIND_SECONDS
    assert asked(admission, holding(a_claim("plain")), busy=False) == NOTHING
    in_a_turn(admission, "waits")
    assert asked(admission, holding(a_claim("waits")), busy=False) == Wanted(9, ("waits",), True)


@pytest.mark.usefixtures("clock")
def test_idle_worker_that_finds_none_of_a_kind_claims_any() -> None:
    admission = an_admission(["plain"], waits=ROOM)
    for task in ("plain", "waits"):
        in_a_turn(admission, task)
        request = asked(admission, IDLE, busy=False)
        assert request.tasks == ((task,) if task == "plain" else request.tasks)
        assert request.tasks is not None
        admission.received(request, [])
        assert asked(admission, IDLE, busy=False).tasks is None


def looks(admission: AsyncKinds, first: tuple[str, bool] | None) -> bool:
    """Return whether *admission* asks which run is first in the queue; the answer is *first*."""
    starts: list[object] = []

    def look() -> tuple[str, bool] | None:
        starts.append(first)
        return first

    admission.look(False, look)
    return bool(starts)


def test_async_runs_go_on_unless_the_first_in_the_queue_needs_an_idle_worker(clock: Clock) -> None:
    admission = an_admission(["plain"], waits=ROOM)
    in_a_turn(admission, "waits")
    at_work = holding(a_claim("waits"))
    assert not looks(admission, None)
    for first in (None, ("waits", False)):
        clock.now += KIND_SECONDS
        assert looks(admission, first)
        assert not looks(admission, first)
        assert asked(admission, at_work, busy=False).limit > 0
    clock.now += KIND_SECONDS
    assert looks(admission, ("plain", False))
    assert asked(admission, at_work, busy=False) == NOTHING
    assert asked(admission, IDLE, busy=False) == Wanted(1)


# How many runs a worker claims ahead: about fifty milliseconds' worth


def after(*durations: Sequence[float]) -> Prefetch:
    """Return a prefetch that has noted these durations."""
    prefetch = Prefetch()
    for seconds in durations:
        prefetch.note([Outcome(1, "t", "succeeded", 1, "plain", seconds=span) for span in seconds])
    return prefetch


@pytest.mark.parametrize(
    "durations", [[], [[]], [[LONG_SECONDS * 2]]], ids=["none", "nothing", "long"]
)
def test_one_run_is_claimed_and_nothing_behind_it(durations: list[list[float]]) -> None:
    assert asked(after(*durations), IDLE, busy=False).limit == 1
    assert asked(after(*durations), holding(a_claim("plain")), busy=False).limit == 0


@pytest.mark.parametrize(
    ("durations", "limit"),
    [
        ([[0.0]], MAX_CLAIMED_RUNS),
        ([[1e-9]], MAX_CLAIMED_RUNS),
        ([[0.0001]], 500),
        ([[0.001]], 50),
        ([[0.01]], 5),
        ([[0.05]], 1),
        ([[0.001, 0.003]], 25),
        ([[0.0001] * 500, [1.0]], 1),
        ([[1.0], *[[0.001]] * 40], 50),
    ],
)
def test_as_many_are_claimed_as_the_recent_mean_says(
    durations: list[list[float]], limit: int
) -> None:
    assert asked(after(*durations), IDLE, busy=False).limit == pytest.approx(limit, abs=1)


def test_many_runs_count_more_than_the_few_before() -> None:
    slow_at_first = after([0.01], [0.0001] * 5)
    assert asked(slow_at_first, IDLE, busy=False).limit > AHEAD_SECONDS / 0.005
