"""The monitor watches the held runs: leases, cancels, deadlines, and runs that do not end.

A handler is first interrupted, by an exception inside it. If it does not end within the grace, its
process is ended, after its outcome is recorded and the other held runs are released. If a handler
never lets go of the interpreter's lock, the watchdog ends the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NoReturn

from ...errors import Cancelled, Interruption, LeaseLost, ShuttingDown, TimedOut
from ...log import logger
from ...state import State
from ...store import Claims, Renewal
from ...types import Claim, Outcome
from .interrupts import HandlerInterrupter
from .outcomes import failure
from .runner import Runner, Working
from .watchdog import Watchdog

#: How many heartbeats there are in a lease, and in the age at which a tick is unhealthy.
BEATS = 4
#: How often to look for cancels and lost leases while a run is long, in seconds.
WATCH_EVERY = 1.0
#: How long a handler may take to end after it was told that its worker shuts down, in seconds.
SHUTDOWN_INTERRUPT_GRACE = 5.0
#: How long an interrupted handler may take at least to unwind, in seconds.
UNWIND = 1.0
#: How much later the watchdog ends a process than a run should have ended, in seconds.
MARGIN = 2.0
#: The exit status of a process that was ended because its handler did not end.
ENDED = 1


class RunMonitor:
    """Watches one runner. Its methods belong to the keeper's thread.

    :param may_kill: whether this process may be ended.
    :ivar stop_at: when the worker was asked to stop, by `time.monotonic`. Written by
        `Keeper.stop`.
    """

    def __init__(
        self,
        state: State,
        runner: Runner,
        interrupter: HandlerInterrupter,
        watchdog: Watchdog,
        may_kill: bool,
    ) -> None:
        self.stop_at: float | None = None
        self._state = state
        self._runner = runner
        self._interrupter = interrupter
        self._watchdog = watchdog
        self._may_kill = may_kill
        self._beat_at = self._look_at = time.monotonic()
        self._interrupted: tuple[Claim, Interruption, float] | None = None
        self._warned: Claim | None = None

    def pause(self) -> float:
        """Return how long the keeper may sleep before the next duty, in seconds."""
        return 0.05 if self.stop_at is not None else WATCH_EVERY / 4

    def look(self, claims: Claims, held: Mapping[int, Claim]) -> Renewal | None:
        """Renew the leases if a heartbeat is due, or only look while a run is long.

        :returns: None if neither was due.
        """
        if not held:
            self._beat_at = time.monotonic()
            return None
        now = time.monotonic()
        if self.beating:
            renewal = claims.renew(held.values(), self._state.settings.lease)
            self._beat_at = self._look_at = now
            if renewal.locked:  # Try again soon, not at the next beat.
                self._beat_at = now - self._beat_every + min(WATCH_EVERY, self._beat_every)
            return renewal
        if self._working_for() > WATCH_EVERY and now - self._look_at >= WATCH_EVERY:
            self._look_at = now
            return claims.watch(held.values())
        return None

    def beat_now(self) -> None:
        """Let the next `look` be a heartbeat."""
        self._beat_at = float("-inf")

    @property
    def beating(self) -> bool:
        """Whether a heartbeat is due: for the leases, and for the tick's own health."""
        return time.monotonic() - self._beat_at >= self._beat_every

    @property
    def _beat_every(self) -> float:
        settings = self._state.settings
        return min(settings.lease, settings.health_tick_age) / BEATS

    def cancel(self, claim: Claim) -> None:
        """Interrupt *claim*'s handler: an operator cancelled it."""
        self._interrupt(claim, Cancelled("cancelled by an operator while it ran"))

    def lose(self, claim: Claim) -> None:
        """Interrupt *claim*'s handler: its lease is lost."""
        self._interrupt(claim, LeaseLost("the lease was lost to another worker"))

    def arm_watchdog(self) -> None:
        """Arm the watchdog for its length, or until the run at work should have ended.

        Call this before a handler may begin: one that takes the interpreter's lock at once leaves
        no moment to do it afterwards.
        """
        working = self._runner.working
        if working is None:
            self._watchdog.arm()
            return
        left = working.since + working.timeout - time.monotonic()
        self._watchdog.arm(max(0.0, left + self._state.settings.shutdown_grace) + MARGIN)
        if self._runner.working is not working:
            self._watchdog.extend()  # The run ended before the watchdog was shortened for it.

    def stuck(self, holding: bool) -> Outcome | None:
        """Return the outcome of a run that does not end, if there is one.

        It is to be recorded before the process is ended.

        :param holding: whether the worker holds runs, begun or not.
        """
        working = self._runner.working
        if holding:
            self.arm_watchdog()
        elif working is None:
            self._watchdog.disarm()
        if working is None:
            return None
        now = time.monotonic()
        grace = self._state.settings.shutdown_grace
        if self.stop_at is not None and now >= self.stop_at + grace:
            self._interrupt(working.claim, ShuttingDown("the worker was told to stop"))
        self._interrupter.repeat()
        reason = self._reason(working, now, grace)
        if reason is None:
            return None
        if not (self._may_kill and self._interrupter.enabled):
            self._warn(working.claim)
            return None
        return failure(self._state, working.claim, reason, now - working.since)

    def give_up(self, error: BaseException) -> None:
        """Without bookkeeping: interrupt the handler; if it does not end, end the process.

        The held runs come back by lease, and nobody may work on them by then.
        """
        while (working := self._runner.working) is not None:
            self.lose(working.claim)
            if self.stuck(holding=True) is not None:
                logger.error("%s The handler at work did not end; its process was ended.", error)
                os._exit(ENDED)
            time.sleep(0.05)

    def end_process(self, stuck: Outcome) -> NoReturn:
        """End this process, with the handler in it."""
        logger.error(
            "task %s, run %d: its handler did not end, so its process %d was ended",
            stuck.job_type, stuck.id, os.getpid(),
        )  # fmt: skip
        os._exit(ENDED)

    def _reason(self, working: Working, now: float, grace: float) -> BaseException | None:
        """Return why the run at work should have ended by now; None if it should not."""
        if self._interrupted is not None and self._interrupted[0] is working.claim:
            _, error, since = self._interrupted
            if isinstance(error, ShuttingDown):
                grace = min(grace, SHUTDOWN_INTERRUPT_GRACE)
            if now >= since + max(grace, UNWIND):
                return error
        grace = max(grace, UNWIND)
        if now >= working.since + working.timeout + grace:
            return TimedOut(
                f"the handler ran longer than its timeout of {working.timeout:g} s and did not end "
                f"within the grace of {grace:g} s, so its process was ended"
            )
        return None

    def _interrupt(self, claim: Claim, error: Interruption) -> None:
        working = self._runner.working
        if working is None or working.claim is not claim:
            self._interrupter.interrupt(claim, error)
        elif self._interrupted is None or self._interrupted[0] is not claim:
            self._interrupted = (claim, error, time.monotonic())
            self._interrupter.interrupt(claim, error)

    def _warn(self, claim: Claim) -> None:
        if self._warned is not claim:
            self._warned = claim
            logger.warning(
                "task %s, run %d: its handler does not end, and this process is not the tick's own "
                "to end; run ticks by `flask jobs tick` to have timeouts enforced",
                claim.job_type,
                claim.id,
            )

    def _working_for(self) -> float:
        working = self._runner.working
        return 0.0 if working is None else time.monotonic() - working.since
