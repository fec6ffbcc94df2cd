"""Failpoints: named places at which tests can kill this process."""

from __future__ import annotations

import os
import signal

#: The environment variable with the name of the failpoint at which to kill the process.
VARIABLE = "CRONJOBS_CRASH_AT"
_armed = os.environ.get(VARIABLE)


def reach(point: str) -> None:
    """Kill this process with SIGKILL, if *point* is the failpoint that the variable names."""
    if _armed is not None and point == _armed:
        os.kill(os.getpid(), signal.SIGKILL)
