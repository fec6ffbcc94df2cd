"""Find out what blocks an event loop: a step of a task that does not come to its next await."""

from __future__ import annotations

import inspect
from asyncio import events
from types import CodeType, FrameType

#: How often the loop notes that it goes on, in seconds.
STEP_EVERY = 0.25

#: Every step is called by a frame of this code, which is a new one for each.
_STEP: CodeType = events.Handle._run.__code__  # pyright: ignore[reportPrivateUsage]
_LOOPS = ("asyncio", "selectors", "concurrent.futures", "uvloop")


class StepWatch:
    """Sees for how long the same step has been at work, by looks at the loop's thread."""

    def __init__(self) -> None:
        self._step: object = None
        self._since = 0.0

    def seconds(self, step: object, now: float) -> float:
        """Return for how long *step* has been seen.

        :param step: what tells it from other steps.
        :param now: by `time.monotonic`.
        """
        if step != self._step:
            self._step, self._since = step, now
        return now - self._since


class LoopWatch:
    """Sees whether an event loop goes on, and for how long a step has held it up if it does not.

    The loop calls `goes_on` every `STEP_EVERY` seconds. Signals look from its own thread, and the
    keeper from another; each keeps what it saw to itself.
    """

    def __init__(self) -> None:
        self._seen_at = 0.0
        self._steps, self._steps_seen_by_keeper = StepWatch(), StepWatch()

    def goes_on(self, now: float) -> None:
        """Note that the loop is between two steps.

        :param now: by `time.monotonic`, as in all that follows.
        """
        self._seen_at = now

    def is_late(self, now: float) -> bool:
        """Return whether the loop has not said for long that it goes on."""
        return now - self._seen_at >= 2 * STEP_EVERY

    def seconds(self, frame: FrameType | None, now: float) -> float:
        """Return for how long signals have seen the step of *frame*, since the loop went on."""
        return self._steps.seconds((self._seen_at, _step(frame)), now)

    def seconds_seen_by_keeper(self, task: object, now: float) -> float | None:
        """Return for how long the keeper has seen *task* at work, without an end of its step.

        Until it goes on, a loop executes one step of each task, so the task tells the step. The
        frames of another thread are not looked at: up to Python 3.11, they may be gone already.

        :param task: the loop's current one.
        :returns: None if the loop goes on.
        """
        if not self.is_late(now):
            return None
        return self._steps_seen_by_keeper.seconds((self._seen_at, task), now)


def in_asyncio(frame: FrameType | None) -> bool:
    """Return whether *frame* is at work for the loop itself, inside a step.

    Interrupted there, the loop could lose a task. A coroutine of asyncio that only awaits, such as
    `asyncio.wait_for`, does no harm.
    """
    innermost = True
    while frame is not None and frame.f_code is not _STEP:
        awaits = not innermost and frame.f_code.co_flags & inspect.CO_COROUTINE
        if not awaits and str(frame.f_globals.get("__name__")).startswith(_LOOPS):
            return True
        innermost, frame = False, frame.f_back
    return False


def _step(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code is not _STEP:
        frame = frame.f_back
    return frame
