"""Failpoints: named places where tests can kill this process.

``CRONJOBS_CRASH_AT=name`` or ``name:N`` kills the process with SIGKILL when it reaches the
failpoint for the first or the Nth time. Without the variable, `reach` does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "CRONJOBS_CRASH_AT"


def _killing_at(setting: str) -> Callable[[str], None]:
    name, _, count = setting.partition(":")
    left = int(count or 1)

    def kill_there(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill_there


def _do_nothing(point: str) -> None:
    """Do nothing: no failpoint is set."""


_setting: str | None = os.environ.get(VARIABLE)

#: Called with a failpoint's name where the code reaches it.
reach: Callable[[str], None] = _killing_at(_setting) if _setting else _do_nothing
