"""Named places where a kill could hurt, at which tests may have this process killed.

``CRONJOBS_CRASH_AT=name`` or ``name:N`` kills the process with SIGKILL when it reaches the point
for the first or the Nth time. Outside tests the variable is
unset, and `reach` an empty function.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "CRONJOBS_CRASH_AT"

POINTS = (
    "after-claim",
    "before-handler",
    "before-effect",
    "after-effect",
    "after-handler",
    "before-finalize",
    "after-finalize",
    "between-watermark-and-insert",
    "after-slots",
)


def _killing_at(armed: str) -> Callable[[str], None]:
    name, _, count = armed.partition(":")
    if name not in POINTS:
        raise ValueError(f"{VARIABLE} names {name!r}. There are: {', '.join(POINTS)}.")
    left = int(count or 1)

    def kill_there(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill_there


def _pass(point: str) -> None:
    """Nothing: no crash point is armed."""


#: Called with a point's name where the code passes it.
reach: Callable[[str], None] = _pass

_armed: str | None = os.environ.get(VARIABLE)
if _armed:
    reach = _killing_at(_armed)
