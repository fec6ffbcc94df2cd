"""Find out what blocks an event loop: a step of a task that does not come to its next await."""

from __future__ import annotations

import inspect
import sys
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
        self._seen = False
        self._step: FrameType | None = None
        self._since = 0.0

    def seconds(self, frame: FrameType | None, now: float) -> float:
        """Return for how long the step of *frame* has been seen.

        :param frame: where the thread is.
        :param now: by `time.monotonic`.
        """
        step = _step(frame)
        if not self._seen or step is not self._step:
            self._seen, self._step, self._since = True, step, now
        return now - self._since

    def forget(self) -> None:
        """Forget the step: the loop has gone on."""
        self._seen, self._step = False, None


def frame_of_thread(ident: int) -> FrameType | None:
    """Return where a thread of this process is."""
    return sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]


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
