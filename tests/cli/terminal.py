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
#: How long anything that is bound to come may take on a busy machine, in seconds.
PATIENCE = 60.0
#: What says of a terminal otherwise than it is.
OVERRIDES = {"NO_COLOR", "COLUMNS", "LINES"}
#: A control sequence of a terminal.
CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[78DM])")


class Screen:
    """What a terminal shows, as far as our commands and plain lines need it.

    :ivar scrolled: the lines that have left the screen at its upper edge.
    :ivar margins: the first and the last row of the region that scrolls, from 0.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows: list[str] = [""] * rows
        self.columns = columns
        self.scrolled: list[str] = []
        self.margins: tuple[int, int] = (0, rows - 1)
        self._row = self._column = 0
        self._saved = (0, 0)
        self._wraps = True

    def feed(self, text: str) -> None:
        """Show *text*."""
        for part in re.split(f"({CONTROL.pattern}|[\r\n])", text):
            if part[:1] in ("\x1b", "\r", "\n"):
                self._control(part)
            else:
                for char in part:
                    self._put(char)

    @property
    def lines(self) -> list[str]:
        """All lines, also those that have left it, without the empty ones at the end."""
        return (
            "\n".join([*self.scrolled, *(row.rstrip() for row in self.rows)]).rstrip().split("\n")
        )

    def _put(self, char: str) -> None:
        if self._column == self.columns and not self._wraps:
            return
        if self._column == self.columns:
            self._column = 0
            self._down()
        row = self.rows[self._row].ljust(self.columns)
        self.rows[self._row] = row[: self._column] + char + row[self._column + 1 :]
        self._column += 1

    def _down(self) -> None:
        first, last = self.margins
        if self._row == last:
            self.scrolled.append(self.rows.pop(first).rstrip())
            self.rows.insert(last, "")
        else:
            self._row = min(self._row + 1, len(self.rows) - 1)

    def _control(self, part: str) -> None:
        numbers = [int(number) for number in re.findall(r"\d+", part[2:])]
        if part == "\r":
            self._column = 0
        elif part in ("\n", "\x1bD"):
            self._down()
        elif part == "\x1b7":
            self._saved = self._row, self._column
        elif part == "\x1b8":
            self._row, self._column = self._saved
        elif part.endswith("H"):
            row, column = numbers or (1, 1)
            self._row, self._column = row - 1, column - 1
        elif part.endswith("A"):
            self._row = max(0, self._row - 1)
        elif part.endswith("K"):
            kept = self.rows[self._row]
            self.rows[self._row] = "" if numbers == [2] else kept[: self._column]
        elif part.endswith("J"):
            self.rows[self._row] = self.rows[self._row][: self._column]
            self.rows[self._row + 1 :] = [""] * (len(self.rows) - self._row - 1)
        elif part.endswith("r"):
            first, last = numbers or (1, len(self.rows))
            self.margins, self._row, self._column = (first - 1, last - 1), 0, 0
        elif numbers == [7]:
            self._wraps = part.endswith("h")
        else:
            assert part.endswith(("m", "h", "l")), f"What does {part!r} mean?"


class Terminal:
    """A command on a terminal of its own.

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
        except OSError:  # Nobody has the other side open any more.
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
    def screen(self) -> Screen:
        """The screen after all that it has written so far."""
        screen = Screen(*self.size)
        screen.feed(self.output)
        return screen

    @property
    def lines(self) -> list[str]:
        """What it has written, without control sequences."""
        return CONTROL.sub("", self.output).replace("\r\n", "\n").splitlines()
