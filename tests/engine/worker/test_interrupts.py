"""Interrupting a handler from outside, and only the handler that is meant."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime, timezone

import pytest

from flask_cronjobs import Cancelled, TimedOut
from flask_cronjobs.engine.worker import interrupts as interrupts_module
from flask_cronjobs.engine.worker.interrupts import HandlerInterrupter
from flask_cronjobs.types import Claim
from tests.leases import EndlessLeases

LONG = 60.0


def a_claim(run_id: int = 1) -> Claim:
    return Claim(run_id, "host:1:token", "task", {}, 1, 10, datetime.now(timezone.utc))


def sleep_after(step: Callable[[], None]) -> None:
    step()
    time.sleep(LONG)


def test_timeout_is_raised_inside_a_blocking_call() -> None:
    late = pytest.raises(TimedOut, match=r"longer than its timeout of 0\.01 s")
    with HandlerInterrupter(EndlessLeases()) as interrupter, late:
        sleep_after(lambda: interrupter.arm(a_claim(), 0.01))


def test_interruption_from_another_thread_ends_a_blocking_call() -> None:
    claim = a_claim()
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(claim, LONG)
        thread = threading.Thread(target=interrupter.interrupt, args=(claim, Cancelled("stop")))
        with pytest.raises(Cancelled, match="stop"):
            sleep_after(thread.start)
        thread.join()


def test_interruption_whose_signal_was_lost_is_heard_when_it_rings_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the signal comes just before the system call blocks: nothing is raised yet."""
    claim = a_claim()
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(claim, LONG)
        with monkeypatch.context() as patch:
            patch.setattr(signal, "pthread_kill", lambda *args: None)
            interrupter.interrupt(claim, Cancelled("stop"))
        with pytest.raises(Cancelled):
            sleep_after(interrupter.repeat)
        interrupter.repeat()  # It was heard: nothing more is raised.
        time.sleep(0)


def test_timeout_rings_until_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bool] = []
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(a_claim(), 0.5)
        ring = signal.getsignal(signal.SIGALRM)
        assert callable(ring)
        # The first signal goes to a handler that does not pass it on.
        signal.signal(
            signal.SIGALRM,
            lambda number, frame: ring(number, frame) if heard else heard.append(True),
        )
        with pytest.raises(TimedOut):
            time.sleep(LONG)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_nothing_is_raised_after_disarming() -> None:
    claim = a_claim()
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(claim, LONG)
        interrupter.disarm()
        interrupter.interrupt(claim, Cancelled("too late"))
        time.sleep(0.01)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def run_shortly(interrupter: HandlerInterrupter, timeout: float) -> None:
    interrupter.arm(a_claim(), timeout)
    interrupter.disarm()


def pending() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.mark.parametrize("timeout_before", [0.02, 0.05, LONG])
def test_timer_that_a_short_run_left_does_not_hold_up_the_next_timeout(
    timeout_before: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts_module, "SHORT", LONG)  # However slow the machine is.
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        run_shortly(interrupter, timeout_before)
        assert pending() > 0 or timeout_before < LONG
        began = time.monotonic()
        with pytest.raises(TimedOut):
            sleep_after(lambda: interrupter.arm(a_claim(2), 0.05))
        assert 0.05 <= time.monotonic() - began < LONG


def test_timer_that_fires_between_runs_stops() -> None:
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        run_shortly(interrupter, 0.01)
        time.sleep(0.05)
        assert pending() == 0
        with pytest.raises(TimedOut):
            sleep_after(lambda: interrupter.arm(a_claim(2), 0.05))


def test_run_that_was_not_short_leaves_no_timer() -> None:
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(a_claim(), LONG)
        time.sleep(0.01)
        interrupter.disarm()
        assert pending() == 0


def test_timer_that_a_handler_has_stopped_is_soon_set_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupts_module, "RELIED_ON", 0.0)
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(a_claim(), LONG)
        signal.alarm(0)
        interrupter.disarm()
        with pytest.raises(TimedOut):
            sleep_after(lambda: interrupter.arm(a_claim(2), 0.05))


def test_run_after_async_ones_has_its_timeout() -> None:
    class Silent:
        def on_signal(self, frame: object) -> None: ...

        def raise_later_again(self, error: BaseException) -> None: ...

    with HandlerInterrupter(EndlessLeases()) as interrupter:
        run_shortly(interrupter, 0.1)
        with interrupter.receiving_signals(Silent()):
            pass
        with pytest.raises(TimedOut):
            sleep_after(lambda: interrupter.arm(a_claim(2), 0.1))


def test_another_run_s_interruption_is_not_raised() -> None:
    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(a_claim(1), LONG)
        interrupter.interrupt(a_claim(2), Cancelled("meant for another"))
        time.sleep(0.01)
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
            interrupter.arm(a_claim(), 0.001)
            interrupter.disarm()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert enabled == [False]


def test_interruption_that_hits_a_finalizer_is_raised_after_it() -> None:
    """Python ignores what is raised in one, and what it had to clean up would stay."""
    finished: list[bool] = []

    class Slow:
        def __del__(self) -> None:
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                time.sleep(0.01)
            finished.append(True)

    def drop_and_go_on() -> None:
        slow = Slow()
        del slow
        time.sleep(LONG)

    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(a_claim(), 0.05)
        with pytest.raises(TimedOut):
            drop_and_go_on()
        interrupter.disarm()
    assert finished == [True]


def test_interruption_that_a_weakref_callback_swallowed_is_raised_again() -> None:
    class Thing:
        pass

    def slow(reference: object) -> None:
        time.sleep(0.3)

    def drop_and_go_on() -> None:
        thing = Thing()
        reference = weakref.ref(thing, slow)
        del thing
        time.sleep(LONG)
        assert reference() is None

    with HandlerInterrupter(EndlessLeases()) as interrupter:
        interrupter.arm(a_claim(), 0.05)
        with pytest.raises(TimedOut):
            drop_and_go_on()
        interrupter.disarm()
