"""The keeper's watch over what is held: leases, cancels, deadlines, and the last resort.

A handler is interrupted first, by an exception inside it. One that will not end within the grace
afterwards is ended with its process, after its outcome is recorded and its neighbors are handed
back. And should a handler never let go of the interpreter's lock, the fuse ends the process.
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
from .interrupts import Alarm
from .outcomes import failure
from .runner import Runner, Working
from .watchdog import Fuse

#: Leases are renewed this many times in their length; and in the age that an unhealthy tick has.
BEATS = 4
#: How often the watch looks for cancels and lost leases while a run is long, in seconds.
WATCH = 1.0
#: How long a handler may take to give up after it was told that its worker shuts down, in seconds.
SHUTDOWN_INTERRUPT_GRACE = 5.0
#: What a handler that was interrupted has at least to unwind, in seconds, however short the grace.
UNWIND = 1.0
#: How long the fuse burns on after a run should have ended, in seconds.
MARGIN = 2.0
#: The exit status of a process that was ended for a handler that would not.
ENDED = 1


class Warden:
    """Watches one runner.

    :param may_kill: whether the process is ours to end.
    """

    def __init__(
        self, state: State, runner: Runner, alarm: Alarm, fuse: Fuse, may_kill: bool
    ) -> None:
        self.stop_at: float | None = None
        """When the worker was asked to stop, by `time.monotonic`."""
        self._state = state
        self._runner = runner
        self._alarm = alarm
        self._fuse = fuse
        self._may_kill = may_kill
        self._beat_at = self._look_at = time.monotonic()
        self._interrupted: tuple[Claim, Interruption, float] | None = None
        self._warned: Claim | None = None

    def pause(self) -> float:
        """How long the keeper may sleep before the next duty, in seconds."""
        return 0.05 if self.stop_at is not None else WATCH / 4

    def look(self, claims: Claims, held: Mapping[int, Claim]) -> Renewal | None:
        """The heartbeat if it is due, or a look while a run is long; None if neither is."""
        if not held:
            self._beat_at = time.monotonic()
            return None
        now = time.monotonic()
        if self.beating:
            renewal = claims.renew(held.values(), self._state.settings.lease)
            self._beat_at = self._look_at = now
            return renewal
        if self._working_for() > WATCH and now - self._look_at >= WATCH:
            self._look_at = now
            return claims.watch(held.values())
        return None

    def beat_now(self) -> None:
        """Let the next `look` be a heartbeat."""
        self._beat_at = float("-inf")

    @property
    def beating(self) -> bool:
        """Whether a heartbeat is due: for the leases, and for the tick's own health."""
        settings = self._state.settings
        shortest = min(settings.lease, settings.health_tick_age)
        return time.monotonic() - self._beat_at >= shortest / BEATS

    def cancel(self, claim: Claim) -> None:
        """Interrupt *claim*'s handler: an operator cancelled it."""
        self._interrupt(claim, Cancelled("cancelled by an operator while it ran"))

    def lose(self, claim: Claim) -> None:
        """Interrupt *claim*'s handler: its lease is lost."""
        self._interrupt(claim, LeaseLost("the lease was lost to another worker"))

    def light_fuse(self) -> None:
        """Light the fuse, to burn for some leases, or until the run at work should have ended.

        To be called before a handler may begin, since one that takes the interpreter's lock at once
        leaves nobody a moment to do it.
        """
        working = self._runner.working
        if working is None:
            self._fuse.light()
            return
        left = working.since + working.timeout - time.monotonic()
        self._fuse.light(max(0.0, left + self._state.settings.shutdown_grace) + MARGIN)
        if self._runner.working is not working:
            self._fuse.lengthen()  # The run ended meanwhile, when the fuse was not cut yet.

    def doomed(self, holding: bool) -> Outcome | None:
        """The outcome of a run that will not end, to be recorded before its process is ended.

        :param holding: whether the worker holds runs, begun or not.
        """
        working = self._runner.working
        if holding:
            self.light_fuse()
        elif working is None:
            self._fuse.put_out()
        if working is None:
            return None
        now = time.monotonic()
        grace = self._state.settings.shutdown_grace
        if self.stop_at is not None and now >= self.stop_at + grace:
            self._interrupt(working.claim, ShuttingDown("the worker was told to stop"))
        self._alarm.ring_again()
        reason = self._reason(working, now, grace)
        if reason is None:
            return None
        if not (self._may_kill and self._alarm.enabled):
            self._warn(working.claim)
            return None
        task = self._state.registry.tasks.get(working.claim.job_type)
        return failure(task, self._state, working.claim, reason, now - working.since)

    def give_up(self, error: BaseException) -> None:
        """Without bookkeeping: interrupt the handler at work; if it will not end, end the process.

        What is held comes back by lease, and nobody is to work on it by then.
        """
        while (working := self._runner.working) is not None:
            self.lose(working.claim)
            if self.doomed(holding=True) is not None:
                logger.error("%s The handler at work would not end; its process was ended.", error)
                os._exit(ENDED)
            time.sleep(0.05)

    def end_process(self, doomed: Outcome) -> NoReturn:
        """The last resort: end this process with the handler in it."""
        logger.error(
            "task %s, run %d: its handler would not end, so its process %d was ended",
            doomed.job_type, doomed.id, os.getpid(),
        )  # fmt: skip
        os._exit(ENDED)

    def _reason(self, working: Working, now: float, grace: float) -> BaseException | None:
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
            self._alarm.interrupt(claim, error)
        elif self._interrupted is None or self._interrupted[0] is not claim:
            self._interrupted = (claim, error, time.monotonic())
            self._alarm.interrupt(claim, error)

    def _warn(self, claim: Claim) -> None:
        if self._warned is not claim:
            self._warned = claim
            logger.warning(
                "task %s, run %d: its handler will not end, and this process is not the tick's own "
                "to end; run ticks by `flask jobs tick` to have timeouts enforced",
                claim.job_type,
                claim.id,
            )

    def _working_for(self) -> float:
        working = self._runner.working
        return 0.0 if working is None else time.monotonic() - working.since
