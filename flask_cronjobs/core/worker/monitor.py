"""How the keeper interrupts running handlers, and finds those that do not end.

A handler is first interrupted by an exception inside it; `interrupts` lists the reasons. If it does
not end within the grace, its process is ended, after its outcome is recorded and the other held
runs are released. If a handler never releases the interpreter's lock, the watchdog ends the
process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from contextlib import suppress
from typing import NoReturn

from ...errors import Cancelled, Interruption, LeaseLost, ShuttingDown, TimedOut
from ...log import logger
from ...types import Claim, Outcome
from ..background import and_gevent
from .held_runs import Working
from .outcomes import failure, with_output
from .process_signals import StopFlag
from .runner import Runner

#: Seconds that a handler may take to end after it was interrupted because its worker stops.
INTERRUPTED_GRACE_SECONDS = 5.0
#: Seconds that an interrupted handler gets to unwind, however short the grace is.
UNWIND_SECONDS = 1.0
#: Seconds that the watchdog waits beyond the time at which a run should have ended.
MARGIN_SECONDS = 2.0
#: The exit status of a process that was ended because its handler did not end.
EXIT_STATUS = 1
#: The number of leases for which the watchdog waits. A process that was frozen past its lease must
#: be able to notice that the lease is lost, and log it, before its own watchdog ends it.
WATCHDOG_LEASES = 3
#: Seconds after which the watchdog is armed again.
REARM_SECONDS = 1.0


class Watchdog:
    """Ends a process whose handler cannot be interrupted; armed while a worker holds runs.

    It uses the timer of faulthandler, which does not need the interpreter's lock. So it also ends a
    process whose handler never releases that lock, and in which no other thread of ours can run.

    `arm` and `disarm` belong to the keeper's thread; `extend` may be called from any thread.

    :param lease: the length of a lease, in seconds.
    :param enabled: whether this process may be ended.
    :ivar is_shortened: whether the timer was started for less than its whole length.
    """

    def __init__(self, lease: float, enabled: bool) -> None:
        self._length = lease * WATCHDOG_LEASES
        self._enabled = enabled
        self._armed_at = float("-inf")
        self.is_shortened: bool = False

    def arm(self, at_most: float = float("inf")) -> None:
        """Start the timer, or start it again if it was started at least `REARM_SECONDS` ago.

        :param at_most: the longest time in seconds for which the timer may run.
        """
        if time.monotonic() - self._armed_at < REARM_SECONDS:
            return
        self._start(min(at_most, self._length))
        self.is_shortened = at_most < self._length

    def extend(self) -> None:
        """Give the timer its whole length again if it was shortened."""
        if self.is_shortened:
            self.is_shortened = False
            self._start(self._length)

    def disarm(self) -> None:
        """Stop the timer."""
        if self._armed_at > float("-inf"):
            faulthandler.cancel_dump_traceback_later()
            self._armed_at = float("-inf")

    def _start(self, seconds: float) -> None:
        if not self._enabled or sys.__stderr__ is None:
            return
        with suppress(ValueError, OSError, RuntimeError, AttributeError):
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
            self._armed_at = time.monotonic()


class RunMonitor:
    """Watches one runner. Its methods belong to the keeper's thread.

    :param own_process: whether the process is the worker's own, and may be ended.
    """

    def __init__(self, runner: Runner, flag: StopFlag, own_process: bool) -> None:
        self._flag = flag
        self._state = runner.context.state
        self._runner = runner
        self._interrupter = runner.context.interrupter
        self._watchdog = runner.context.watchdog
        self._own_process = own_process

    def cancel(self, claim: Claim) -> None:
        """Interrupt *claim*'s handler: an operator cancelled the run."""
        self._interrupt(claim, Cancelled("cancelled by an operator while it ran"))

    def lose(self, claim: Claim) -> None:
        """Interrupt *claim*'s handler: its run was reclaimed, or will be, since the keeper died."""
        self._interrupt(
            claim, LeaseLost(and_gevent("the lease was lost, so another worker may take the run"))
        )

    def arm_watchdog(self) -> None:
        """Arm the watchdog for its length, or until the current run should have ended.

        Call this before a handler may begin, since a handler may take the interpreter's lock at
        once and never release it.
        """
        at_work = self._runner.at_work
        if not at_work:
            self._watchdog.arm()
            return
        first = min(at_work, key=lambda working: working.since + working.timeout)
        left = first.since + first.timeout - time.monotonic()
        self._watchdog.arm(max(0.0, left + self._state.settings.shutdown_grace) + MARGIN_SECONDS)
        if all(first is not working for working in self._runner.at_work):
            self._watchdog.extend()  # The run ended before the watchdog was shortened for it.

    def keep_watchdog(self, holding: bool) -> None:
        """Keep the watchdog armed while the worker holds runs.

        :param holding: whether the worker holds a run, begun or not.
        """
        if holding:
            self.arm_watchdog()
        elif not self._runner.at_work:
            self._watchdog.disarm()

    def interrupt_due(self) -> None:
        """Interrupt handlers that outlast a shutdown's grace; repeat signals that had no effect."""
        grace = self._state.settings.shutdown_grace
        if self._flag.at is not None and time.monotonic() >= self._flag.at + grace:
            self._end_all("the worker was told to stop")
        self._interrupter.repeat()

    def stuck(self) -> Outcome | None:
        """Return the outcome of a run that does not end; None if there is none.

        The caller records it and ends the process. If the process must not be ended, a warning is
        logged instead.
        """
        now = time.monotonic()
        if self._runner.loop is not None:
            self._runner.loop.look(now)
        for working in self._runner.at_work:
            reason = self._reason(working, now)
            if reason is not None and self._own_process and self._interrupter.enabled:
                claim = working.run.claim
                outcome = failure(self._state, claim, reason, now - working.since)
                return with_output(outcome, working.run)
            if reason is not None:
                self._warn(working)
        return None

    def end_others(self, stuck: Outcome) -> None:
        """Interrupt all handlers except the *stuck* one, and let them unwind for a moment."""
        self._end_all("the process must end, since another handler is stuck", but=stuck.identity)
        until = time.monotonic() + UNWIND_SECONDS
        while len(self._runner.at_work) > 1 and time.monotonic() < until:
            time.sleep(0.02)

    def end_without_keeper(self, error: BaseException) -> None:
        """Interrupt all running handlers; if one does not end, end the process.

        Nothing is recorded, so the held runs are reclaimed when their leases end. By then, no
        handler here may still work on them.
        """
        while at_work := self._runner.at_work:
            for working in at_work:
                self.lose(working.claim)
            self.keep_watchdog(holding=True)
            self.interrupt_due()
            if self.stuck() is not None:
                logger.error("%s The running handler did not end, so its process was ended.", error)
                os._exit(EXIT_STATUS)
            time.sleep(0.05)

    def end_process(self, stuck: Outcome) -> NoReturn:
        """End this process, with the handler in it."""
        logger.error(
            "task %s, run %d: its handler did not end, so its process %d was ended",
            stuck.job_type, stuck.id, os.getpid(),
        )  # fmt: skip
        os._exit(EXIT_STATUS)

    def _reason(self, working: Working, now: float) -> BaseException | None:
        """Return why the handler should have ended by now; None if it may still run.

        The reason is its first interruption, or else its timeout, if the grace has passed since.
        """
        error, asked_at = working.asked or (None, float("inf"))
        grace = self._state.settings.shutdown_grace
        if isinstance(error, ShuttingDown):
            grace = min(grace, INTERRUPTED_GRACE_SECONDS)
        grace = max(grace, UNWIND_SECONDS)
        if now >= max(asked_at, working.could_end) + grace:
            return error
        if now >= max(working.since + working.timeout, working.could_end) + grace:
            return TimedOut(
                f"the handler ran longer than its timeout of {working.timeout:g} s and did not end "
                f"within the grace of {grace:g} s, so its process was ended"
            )
        return None

    def _end_all(self, why: str, but: tuple[int, str] | None = None) -> None:
        """Interrupt all running handlers except that of the claim *but*, since the worker ends."""
        for working in self._runner.at_work:
            if working.claim.identity != but:
                self._interrupt(working.claim, ShuttingDown(why))

    def _interrupt(self, claim: Claim, error: Interruption) -> None:
        for working in self._runner.at_work:
            if working.claim is claim:
                if working.asked is not None:
                    return
                working.asked = (error, time.monotonic())
        self._runner.interrupt(claim, error)

    def _warn(self, working: Working) -> None:
        if not working.warned:
            working.warned = True
            logger.warning(
                "task %s, run %d: its handler does not end, and its process is not ended, since it "
                "does other work, too. To enforce timeouts, run ticks with `flask jobs tick`, and "
                "let an executor use processes, not threads.",
                working.claim.job_type,
                working.claim.id,
            )
