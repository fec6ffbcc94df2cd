"""The watchdog: shortened for the run at work, and extended when that run has ended."""

from __future__ import annotations

import faulthandler
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flask_cronjobs.config import Settings
from flask_cronjobs.engine.worker import interrupts as watchdog_module
from flask_cronjobs.engine.worker.interrupts import WATCHDOG_LEASES as LEASES
from flask_cronjobs.engine.worker.interrupts import Watchdog
from flask_cronjobs.engine.worker.monitor import MARGIN, RunMonitor
from tests.clock import Clock

LEASE = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watchdog_module, "time", made)
    return made


@pytest.fixture
def lit(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long what burns was lit for, in seconds; empty when it is put out."""
    lit: list[float] = []

    def light(seconds: float, **options: Any) -> None:
        lit[:] = [seconds]

    monkeypatch.setattr(faulthandler, "dump_traceback_later", light)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lit.clear)
    return lit


def test_fuse_cut_for_a_run_is_whole_again_when_the_run_has_ended(
    clock: Clock, lit: list[float]
) -> None:
    with Watchdog(LEASE, enabled=True) as watchdog:
        watchdog.arm()
        assert lit == [LEASE * LEASES]
        clock.now += 1
        watchdog.arm(5.0)
        assert lit == [5.0]
        watchdog.extend()
        assert lit == [LEASE * LEASES]
        lit.clear()
        watchdog.extend()
        assert lit == [], "the watchdog is armed again by each quick run"
        watchdog.arm()
    assert lit == []


def context_of(settings: Settings) -> SimpleNamespace:
    watchdog = Watchdog(LEASE, enabled=True)
    return SimpleNamespace(
        state=SimpleNamespace(settings=settings), interrupter=None, watchdog=watchdog
    )


def test_fuse_cut_just_when_its_run_ends_is_whole_again(clock: Clock, lit: list[float]) -> None:
    """The runner looked before the watchdog was shortened; so the keeper looks again after it."""
    working = SimpleNamespace(since=clock.now, timeout=1.0)

    class Ending:
        context: Any
        seen: Any = iter([(working,), (), ()])

        @property
        def at_work(self) -> Any:
            return next(self.seen)

    runner = Ending()
    runner.context = context_of(Settings(lease=LEASE, shutdown_grace=0.0))
    RunMonitor(cast(Any, runner), may_kill=True).arm_watchdog()
    assert lit == [LEASE * LEASES]


def test_fuse_of_a_run_burns_until_some_time_after_its_timeout_and_grace(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, lit: list[float]
) -> None:
    monkeypatch.setattr("flask_cronjobs.engine.worker.monitor.time", clock)
    runner = SimpleNamespace(
        context=context_of(Settings(lease=LEASE, shutdown_grace=4.0)),
        at_work=[SimpleNamespace(since=clock.now - 3, timeout=10.0)],
    )
    RunMonitor(cast(Any, runner), may_kill=True).arm_watchdog()
    assert lit == [7.0 + 4.0 + MARGIN]


def test_fuse_of_a_process_that_is_not_ours_is_never_lit(clock: Clock, lit: list[float]) -> None:
    watchdog = Watchdog(LEASE, enabled=False)
    watchdog.arm(5.0)
    watchdog.extend()
    assert lit == []
