"""Interruptions of a handler from outside, which reach only that handler."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from queue import Queue
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any, cast

import pytest

from flask_cronjobs import Cancelled, LeaseLost, TimedOut
from flask_cronjobs.config import Settings
from flask_cronjobs.core.current import CurrentRun
from flask_cronjobs.core.worker import interrupts as interrupts_module
from flask_cronjobs.core.worker import monitor as monitor_module
from flask_cronjobs.core.worker import process_signals
from flask_cronjobs.core.worker.held_runs import Leases, Working
from flask_cronjobs.core.worker.interrupts import HandlerInterrupter
from flask_cronjobs.core.worker.monitor import MARGIN_SECONDS, RunMonitor, Watchdog
from flask_cronjobs.core.worker.monitor import WATCHDOG_LEASES as LEASES
from flask_cronjobs.core.worker.process_signals import StopFlag
from flask_cronjobs.types import Claim
from tests.clock import Clock
from tests.leases import EndlessLeases

LONG = 60.0
#: A signal that comes just after the handler has ended is handled here.
DISARMING = cast("FrameType", SimpleNamespace(f_code=HandlerInterrupter.disarm.__code__))


def a_claim(run_id: int = 1) -> Claim:
    return Claim(run_id, "host:1:token", "task", {}, 1, 10, datetime.now(timezone.utc))


def at_work(claim: Claim, timeout: float) -> Working:
    return Working(claim, cast("CurrentRun", SimpleNamespace()), timeout)


@pytest.fixture
def claim() -> Claim:
    return a_claim()


@pytest.fixture
def interrupter() -> Iterator[HandlerInterrupter]:
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        yield interrupter


@pytest.fixture
def armed(interrupter: HandlerInterrupter, claim: Claim) -> HandlerInterrupter:
    """Return an interrupter that watches a handler of *claim* with a long timeout."""
    interrupter.arm(at_work(claim, LONG))
    return interrupter


def sleep_after(step: Callable[[], None]) -> None:
    step()
    time.sleep(LONG)


def ends_in_time(interrupter: HandlerInterrupter, timeout: float = 0.05) -> None:
    """Check that the next handler is interrupted at its timeout."""
    began = time.monotonic()
    with pytest.raises(TimedOut, match=f"longer than its timeout of {timeout:g} s"):
        sleep_after(lambda: interrupter.arm(at_work(a_claim(2), timeout)))
    assert timeout <= time.monotonic() - began < LONG


def pending() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_timeout_is_raised_inside_a_blocking_call(interrupter: HandlerInterrupter) -> None:
    ends_in_time(interrupter, 0.01)


def test_interruption_from_another_thread_ends_a_blocking_call(
    armed: HandlerInterrupter, claim: Claim
) -> None:
    thread = threading.Thread(target=armed.interrupt, args=(claim, Cancelled("stop")))
    with pytest.raises(Cancelled, match="stop"):
        sleep_after(thread.start)
    thread.join()


def test_interruption_whose_signal_was_lost_is_heard_when_it_rings_again(
    armed: HandlerInterrupter, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a signal comes just before the system call blocks, nothing is raised yet."""
    with monkeypatch.context() as patch:
        patch.setattr(signal, "pthread_kill", lambda *args: None)
        armed.interrupt(claim, Cancelled("stop"))
    with pytest.raises(Cancelled):
        sleep_after(armed.repeat)
    armed.repeat()  # It was handled, so nothing more is raised.
    time.sleep(0)


def test_timeout_rings_until_it_is_heard(interrupter: HandlerInterrupter) -> None:
    alarms: list[bool] = []
    interrupter.arm(at_work(a_claim(), 0.5))
    ring = signal.getsignal(signal.SIGALRM)
    assert callable(ring)
    # The first signal goes to a handler that does not pass it on.
    signal.signal(
        signal.SIGALRM,
        lambda number, frame: ring(number, frame) if alarms else alarms.append(True),
    )
    with pytest.raises(TimedOut):
        time.sleep(LONG)
    assert pending() == 0


def test_nothing_is_raised_after_disarming_nor_for_another_run(
    armed: HandlerInterrupter, claim: Claim
) -> None:
    armed.interrupt(a_claim(2), Cancelled("meant for another"))
    time.sleep(0.01)
    armed.disarm()
    assert pending() == 0, "a run that was not short leaves no timer"
    armed.interrupt(claim, Cancelled("too late"))
    time.sleep(0.01)
    assert pending() == 0


@pytest.mark.parametrize("timeout_before", [0.2, 0.3, LONG])
def test_timer_that_a_short_run_left_does_not_hold_up_the_next_timeout(
    interrupter: HandlerInterrupter, timeout_before: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This holds however slow the machine is.
    monkeypatch.setattr(interrupts_module, "SHORT_SECONDS", LONG)
    interrupter.arm(at_work(a_claim(), timeout_before))
    interrupter.disarm()
    assert pending() > 0 or timeout_before < LONG
    ends_in_time(interrupter, 0.3)


def test_timer_that_fires_between_runs_stops(interrupter: HandlerInterrupter) -> None:
    interrupter.arm(at_work(a_claim(), 0.2))
    interrupter.disarm()
    time.sleep(0.3)
    assert pending() == 0
    ends_in_time(interrupter)


@pytest.mark.parametrize("seconds", [0, 3600], ids=["stopped", "set to later"])
def test_timer_that_a_handler_has_changed_is_set_again(
    armed: HandlerInterrupter, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(interrupts_module, "SHORT_SECONDS", 0.0)  # Even on a fast machine.
    signal.alarm(seconds)
    armed.disarm()
    ends_in_time(armed)


def ignore_alarms() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def block_alarms() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})


@pytest.mark.parametrize("take", [ignore_alarms, block_alarms])
def test_signal_that_a_handler_has_taken_is_ours_again_and_reported_once(
    interrupter: HandlerInterrupter,
    take: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        process_signals, "CHECK_SECONDS", 0.0
    )  # This holds however fast the machine is.
    for task in ("greedy", "greedy", "another", "modest"):
        if task != "modest":
            take()
        interrupter.signals.put_back(task)
        ends_in_time(interrupter)
    logs = [record.getMessage() for record in caplog.records]
    assert [("greedy" in line, "SIGALRM" in line) for line in logs] == [(True, True), (False, True)]


def test_signal_is_not_put_back_when_it_is_no_more_ours() -> None:
    interrupter = HandlerInterrupter(EndlessLeases())
    with interrupter:
        pass
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        interrupter.signals.put_back("task")
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, before)


def test_alarm_heard_on_entering_disarm_comes_too_late(
    armed: HandlerInterrupter, claim: Claim
) -> None:
    armed.requested[claim.identity] = TimedOut()
    armed._on_signal(signal.SIGALRM, DISARMING)
    with pytest.raises(TimedOut):
        armed._on_signal(signal.SIGALRM, None)


def test_timeout_within_a_step_that_may_take_longer_is_raised_once(
    interrupter: HandlerInterrupter,
) -> None:
    def step() -> None:
        with interrupter.within(LONG):
            time.sleep(LONG)

    interrupter.arm(at_work(a_claim(), 0.1))
    with pytest.raises(TimedOut, match=r"its timeout of 0\.1 s"):
        step()
    time.sleep(0.01)


def test_timeout_of_a_step_comes_before_that_of_its_run_which_holds_afterwards(
    interrupter: HandlerInterrupter,
) -> None:
    def step() -> None:
        with interrupter.within(0.05):
            time.sleep(LONG)

    interrupter.arm(at_work(a_claim(), 0.3))
    for timeout, work in ((0.05, step), (0.3, lambda: time.sleep(LONG))):
        with pytest.raises(TimedOut, match=f"its timeout of {timeout:g} s"):
            work()


def test_ctrl_c_heard_on_entering_disarm_does_not_undo_the_run(armed: HandlerInterrupter) -> None:
    armed.raise_in_handler(KeyboardInterrupt(), DISARMING)
    with pytest.raises(KeyboardInterrupt):
        armed.raise_in_handler(KeyboardInterrupt(), None)


@pytest.mark.parametrize("error", [LeaseLost("from the keeper"), KeyboardInterrupt()])
def test_interruption_that_comes_while_held_is_raised_at_the_end(
    armed: HandlerInterrupter, claim: Claim, error: BaseException
) -> None:
    finished: list[str] = []

    def write_held() -> None:
        with armed.defer(), armed.defer():
            if isinstance(error, LeaseLost):
                armed.interrupt(claim, error)
            else:
                armed.raise_in_handler(error, None)
            time.sleep(0.05)
            finished.append("the write")

    with pytest.raises(type(error)):
        write_held()
    assert finished == ["the write"]
    with armed.defer():
        pass  # It is raised once.


@pytest.mark.parametrize("patched", [False, True])
def test_handler_is_interrupted_when_its_lease_ends_without_renewal(
    claim: Claim, monkeypatch: pytest.MonkeyPatch, patched: bool
) -> None:
    gevent = SimpleNamespace(is_module_patched=lambda name: patched and name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent)
    leases = Leases(0.3)
    leases.extend([claim], time.monotonic())
    with HandlerInterrupter(leases) as interrupter:
        interrupter.arm(at_work(claim, LONG))
        with pytest.raises(LeaseLost, match="could not be renewed") as raised:
            time.sleep(LONG)
        assert ("gevent" in str(raised.value)) == patched
        time.sleep(0.3)  # It is raised once, so that the handler may clean up.
        interrupter.disarm()


def test_renewed_lease_does_not_end_at_its_old_end(claim: Claim) -> None:
    leases = Leases(0.5)
    leases.extend([claim], time.monotonic())
    with HandlerInterrupter(leases) as interrupter:
        interrupter.arm(at_work(claim, LONG))
        leases.extend([claim], time.monotonic() + LONG)
        time.sleep(0.7)
        interrupter.disarm()


def test_handler_of_sigalrm_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with HandlerInterrupter(EndlessLeases()):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before


def test_alarm_outside_the_main_thread_is_silent() -> None:
    enabled: list[bool] = []

    def elsewhere() -> None:
        with HandlerInterrupter(EndlessLeases()) as interrupter:
            enabled.append(interrupter.enabled)
            interrupter.arm(at_work(a_claim(), 0.001))
            interrupter.disarm()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert enabled == [False]


finished: list[str] = []


class Slow:
    """An object whose finalizer takes long."""

    def __del__(self) -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            time.sleep(0.01)
        finished.append("finalizer")


class Plain:
    pass


def drop_slow() -> None:
    slow = Slow()
    del slow


def drop_what_has_a_callback() -> None:
    thing = Plain()
    reference = weakref.ref(thing, lambda reference: time.sleep(0.3))
    del thing
    assert reference() is None


@pytest.mark.parametrize(
    ("drop", "done"), [(drop_slow, ["finalizer"]), (drop_what_has_a_callback, [])]
)
def test_interruption_that_hits_a_finalizer_is_raised_after_it(
    interrupter: HandlerInterrupter, drop: Callable[[], None], done: list[str]
) -> None:
    """Python ignores exceptions in a finalizer, and the finalizer's cleanup would stay undone."""
    finished.clear()
    interrupter.arm(at_work(a_claim(), 0.05))
    with pytest.raises(TimedOut):
        sleep_after(drop)
    assert finished == done


def of_sqlalchemy(func: Callable[[], object], module: str = "sqlalchemy.orm") -> FunctionType:
    """Return *func* as a function of SQLAlchemy's."""
    scope = {**func.__globals__, "__name__": module}
    return FunctionType(func.__code__, scope, closure=func.__closure__)


def test_interruption_that_hits_sqlalchemy_is_raised_when_it_returns(
    interrupter: HandlerInterrupter,
) -> None:
    calls: list[str] = []

    def flush() -> None:
        time.sleep(0.2)
        calls.append("flush")

    def handler() -> None:
        of_sqlalchemy(flush)()
        calls.append("handler")

    interrupter.arm(at_work(a_claim(), 0.05))
    with pytest.raises(TimedOut):
        handler()
    assert calls == ["flush"]
    assert sys.gettrace() is None


@pytest.mark.parametrize("module", ["sqlalchemy.engine", "psycopg.connection", "app"])
def test_interruption_that_hits_the_way_to_the_pool_is_raised_when_sqlalchemy_returns(
    interrupter: HandlerInterrupter, claim: Claim, module: str
) -> None:
    """This holds even if the handler ends at once, for each module on the way to the pool."""
    done: list[str] = []

    def reset() -> None:
        interrupter.interrupt(claim, Cancelled("now"))
        done.append("reset")

    def _finalize_fairy() -> None:
        of_sqlalchemy(reset, module)()
        done.append("returned")

    def handler() -> None:
        of_sqlalchemy(_finalize_fairy, "sqlalchemy.pool.base")()
        interrupter.disarm()

    interrupter.arm(at_work(claim, LONG))
    with pytest.raises(Cancelled):
        handler()
    assert done == ["reset", "returned"]


def test_interruption_that_hits_psycopg_as_it_connects_comes_after_that(
    interrupter: HandlerInterrupter,
) -> None:
    """A connection that was already open would be lost, and stay open."""
    calls: list[str] = []

    def connect() -> None:
        time.sleep(0.2)
        calls.append("connected")

    of_psycopg = cast("Callable[[], None]", of_sqlalchemy(connect, "psycopg.connection"))
    interrupter.arm(at_work(a_claim(), 0.05))
    with pytest.raises(TimedOut):
        sleep_after(of_psycopg)
    assert calls == ["connected"]


def test_interruption_that_hits_sqlalchemy_takes_no_debugger_away(
    interrupter: HandlerInterrupter,
) -> None:
    calls: list[str] = []

    def flush() -> None:
        time.sleep(0.2)
        calls.append("flush")

    def debugger(*_: object) -> None:
        pass

    before = sys.gettrace()
    interrupter.arm(at_work(a_claim(), 0.05))
    sys.settrace(debugger)
    try:
        with pytest.raises(TimedOut):
            sleep_after(cast("Callable[[], None]", of_sqlalchemy(flush)))
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)
    assert calls == ["flush"]


@pytest.mark.parametrize("raises", [ValueError, KeyboardInterrupt])
def test_interruption_that_hits_sqlalchemy_is_raised_even_if_that_raises(
    interrupter: HandlerInterrupter, raises: type[BaseException]
) -> None:
    def flush() -> None:
        time.sleep(0.2)
        raise raises

    def handler() -> None:
        with suppress(raises):
            of_sqlalchemy(flush)()

    interrupter.arm(at_work(a_claim(), 0.05))
    with pytest.raises(TimedOut):
        handler()


def wait_for_a_connection() -> None:
    Queue[object](1).get(timeout=LONG)


def listen() -> None:
    FunctionType(time_out.__code__, {**globals(), "__name__": "app"})()


def time_out() -> None:
    time.sleep(LONG)


@pytest.mark.parametrize("do", [wait_for_a_connection, listen])
def test_waits_and_listeners_in_sqlalchemy_are_interrupted(
    interrupter: HandlerInterrupter, do: Callable[[], None]
) -> None:
    interrupter.arm(at_work(a_claim(), 0.05))
    began = time.monotonic()
    with pytest.raises(TimedOut):
        of_sqlalchemy(do)()
    assert time.monotonic() - began < LONG / 2


def test_run_that_ends_before_sqlalchemy_returns_leaves_no_tracer(
    interrupter: HandlerInterrupter,
) -> None:
    traced_by: list[object] = []

    def teardown() -> None:
        time.sleep(0.1)
        interrupter.disarm()
        traced_by.append(sys.gettrace())

    interrupter.arm(at_work(a_claim(), 0.05))
    of_sqlalchemy(teardown)()
    assert [*traced_by, sys.gettrace()] == [None, None]
    assert pending() == 0


# The watchdog: shortened for the running handler, and extended after its run


LEASE = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(monitor_module, "time", clock)
    return clock


@pytest.fixture
def lit(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the fuse is set; the list is empty while it is off."""
    lit: list[float] = []

    def light(seconds: float, **options: Any) -> None:
        lit[:] = [seconds]

    monkeypatch.setattr(faulthandler, "dump_traceback_later", light)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lit.clear)
    return lit


def test_watchdog_shortened_for_a_run_is_reset_when_the_run_has_ended(
    clock: Clock, lit: list[float]
) -> None:
    watchdog = Watchdog(LEASE, enabled=True)
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
    watchdog.disarm()
    assert lit == []


def context_of(settings: Settings) -> SimpleNamespace:
    watchdog = Watchdog(LEASE, enabled=True)
    return SimpleNamespace(
        state=SimpleNamespace(settings=settings), interrupter=None, watchdog=watchdog
    )


def test_watchdog_is_set_while_runs_are_held_or_running_and_not_for_an_idle_worker(
    clock: Clock, lit: list[float]
) -> None:
    runner = SimpleNamespace(
        loop=None, at_work=(), context=context_of(Settings(lease=LEASE, shutdown_grace=0.0))
    )
    monitor = RunMonitor(cast(Any, runner), StopFlag(lambda: None), own_process=True)
    monitor.keep_watchdog(holding=True)
    assert lit == [LEASE * LEASES]
    runner.at_work = (SimpleNamespace(since=float("-inf"), timeout=1.0),)  # It should be over.
    clock.now += 1
    monitor.keep_watchdog(holding=True)
    assert lit == [MARGIN_SECONDS]
    monitor.keep_watchdog(holding=False)
    assert lit == [MARGIN_SECONDS]
    runner.at_work = ()
    monitor.keep_watchdog(holding=False)
    assert lit == []
