"""``flask jobs work`` as a child of the process that serves the app."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def start_worker(
    app: str | None, env: Mapping[str, str], user: int | None = None, group: int | None = None
) -> subprocess.Popen[bytes]:
    """Start the command. It stops when this process has ended, however that ended.

    :param app: what ``flask --app`` takes; None: Flask looks for it.
    :param user: as whom to run it, by number; None: as this process.
    :param group: likewise.
    """
    where = [] if app is None else ["--app", app]
    return subprocess.Popen(
        [sys.executable, "-m", "flask", *where, "jobs", "work", "--parent", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env=env,
        user=user,
        group=group,
    )
