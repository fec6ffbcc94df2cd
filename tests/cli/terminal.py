"""Run commands on a pseudo-terminal, and read what a person would see."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: How long an expected event may take on a busy machine, in seconds.
PATIENCE = 60.0
#: Variables that would describe another terminal.
OVERRIDES = {"NO_COLOR", "COLUMNS", "LINES"}
#: A control sequence of a terminal.
CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[78DM])")


class Terminal:
    """A command on its own terminal.

    :ivar output: what it has written so far, with its control sequences.
    """

    def __init__(
        self,
        *args: str,
        env: Mapping[str, str],
        cwd: Path = ROOT,
        size: tuple[int, int] = (24, 80),
    ) -> None:
        self._reader, writer = os.openpty()
        self.size = size
        fcntl.ioctl(self._reader, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        plain = {name: value for name, value in os.environ.items() if name not in OVERRIDES}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flask", *args],
            cwd=cwd,
            env={**plain, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **env},
            stdin=writer,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
        )
        os.close(writer)
        self.output = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def read(self, seconds: float = 0.1) -> bool:
        """Read what comes within some time; return False at the end."""
        if not select.select([self._reader], [], [], seconds)[0]:
            return True
        try:
            chunk = os.read(self._reader, 65536)
        except OSError:  # No process has the other side open any longer.
            return False
        self.output += chunk.decode(errors="replace")
        return bool(chunk)

    def wait_for(self, condition: Callable[[str], object]) -> None:
        """Read until *condition* holds of the output."""
        until = time.monotonic() + PATIENCE
        while not condition(self.output):
            if not self.read() or time.monotonic() > until:
                raise AssertionError(f"It did not come:\n{self.output!r}")

    def end(self) -> int:
        """Read to the end of the command, and return its exit status."""
        until = time.monotonic() + PATIENCE
        while self.read():
            assert time.monotonic() < until, self.output
        os.close(self._reader)
        return self.process.wait(PATIENCE)

    @property
    def lines(self) -> list[str]:
        """Return what it has written, without control sequences."""
        return CONTROL.sub("", self.output).replace("\r\n", "\n").splitlines()
