"""Which tasks the workers of an engine lack, since their code is older than that of the ticks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..log import logger
from ..store.connection import Bookkeeping
from ..store.handed import refused
from ..types import NO_SUCH_TASK, Claim

#: For how long the runs of a task are held back after a worker has refused one, in seconds. Each
#: refusal doubles it, up to the longest.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
#: For how long a task is trusted of which a run has begun, in seconds.
TRUST = 5.0


@dataclass
class _Probe:
    """The one run of a task that was sent to find out whether the workers have it by now.

    :ivar state: what is known of it, as of `store.handed.refused`.
    :ivar until: the end of the pause, or of the trust, by `time.monotonic`.
    """

    run_id: int
    pause: float
    state: str = "waits"
    until: float = 0.0


class Refusals:
    """What the sender of one queue knows of tasks that workers have refused.

    The row of a refused run says so. If such a run is claimed again, it alone is sent, and the
    others of its task are held back: until it has begun, or for a pause if it is refused again.
    """

    def __init__(self, books: Bookkeeping, queue: str) -> None:
        self._books = books
        self._queue = queue
        self._probes: dict[str, _Probe] = {}

    @property
    def pending(self) -> bool:
        """Whether it is not known yet what becomes of a run that was sent."""
        return any(each.state == "waits" for each in self._probes.values())

    def held(self) -> set[str]:
        """Find out what became of the runs that were sent; return which tasks to hold back."""
        now = time.monotonic()
        for task, probe in self._probes.items():
            if probe.state == "waits":
                probe.state, error = refused(self._books, probe.run_id)
                self._note(task, probe, error)
        return {
            task
            for task, probe in self._probes.items()
            if probe.state == "waits" or (probe.state == "refused" and now < probe.until)
        }

    def sift(self, claims: Sequence[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Return which of *claims* to send, and which to give back."""
        tried = {
            claim.job_type: claim.id
            for claim in reversed(claims)
            if claim.error_type == NO_SUCH_TASK and not self._is_trusted(claim.job_type)
        }
        for task, run_id in tried.items():
            before = self._probes.get(task)
            self._probes[task] = _Probe(run_id, before.pause if before else FIRST_PAUSE)
        send = [claim for claim in claims if tried.get(claim.job_type, claim.id) == claim.id]
        return send, [claim for claim in claims if claim not in send]

    def _is_trusted(self, task: str) -> bool:
        probe = self._probes.get(task)
        return probe is not None and probe.state == "begun" and time.monotonic() < probe.until

    def _note(self, task: str, probe: _Probe, error: str | None) -> None:
        if probe.state == "begun":
            probe.pause, probe.until = FIRST_PAUSE, time.monotonic() + TRUST
        elif probe.state == "refused":
            probe.until = time.monotonic() + probe.pause
            logger.warning(
                "The queue %s holds runs of the task %s back for %g s. %s",
                *(self._queue, task, probe.pause, error),
            )
            probe.pause = min(2 * probe.pause, LONGEST_PAUSE)
