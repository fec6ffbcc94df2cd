"""Print the output of ``tick`` and ``work``, for a person on a terminal or for a log."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from ..log import logger
from ..text import one_line
from ..types import OUTCOME_KINDS, TickReport
from .terminal import file_number, is_read, leave, paint, write

#: The format of the time in a line of a log, in UTC.
STAMP = "%Y-%m-%dT%H:%M:%SZ"
#: Seconds that a line waits for a reader. After a dropped line, the next ones do not wait.
LINE_SECONDS = 0.2
#: Seconds that a command waits at its end for a reader to continue.
END_SECONDS = 5.0


class Printer:
    """Prints a line for each run of a tick, or collects the runs for ``--json``.

    A line that is not read is dropped, so that no run waits for a pager.

    :param stamped: whether each line begins with the time.
    :ivar on_terminal: whether a person reads the lines as they come.
    """

    def __init__(self, as_json: bool, stamped: bool = False) -> None:
        self.as_json = as_json
        self.on_terminal: bool = sys.stdout.isatty() and not as_json
        self.runs: list[dict[str, object]] = []
        self.slots: list[dict[str, object]] = []
        self._stream = sys.stdout
        self._stamped = stamped and not as_json
        self._colored = self.on_terminal and not os.environ.get("NO_COLOR")
        self._dropped = 0

    def __call__(self, kind: str, value: Any) -> None:
        """Print news of the tick; see `signals.News`."""
        if kind == "outcome":
            self._outcome(value)
        elif kind == "slot":
            self._slot(value)
        elif kind == "replaced":
            self.put(f"replaced   {value}")

    def put(self, line: str) -> None:
        """Print a line, or drop it if the reader is stuck."""
        stamp = f"{time.strftime(STAMP, time.gmtime())} " if self._stamped else ""
        notice = f"({self._dropped} unread lines were dropped)\n" if self._dropped else ""
        if self._write(f"{notice}{stamp}{line}\n", 0.0 if self._dropped else LINE_SECONDS):
            self._dropped = 0
        else:
            self._dropped += 1

    def _write(self, text: str, within: float) -> bool:
        try:
            return write(self._stream, text, within)
        except OSError as error:  # The disk may be full, or the pipe closed.
            logger.error("A line could not be printed: %s", error)
            return True

    def _outcome(self, run: dict[str, Any]) -> None:
        if self.as_json:
            self.runs.append(run)
            return
        line = (
            f"{self._word(run['outcome'])}  {one_line(run['task'])}  run {run['run_id']}  "
            f"attempt {run['attempt']}  {run['ms']:.0f} ms"
        )
        if run["error"]:
            first, _, _ = run["error"].partition("\n")
            error = f"{run['error_type']}: {first[:200]}"
            line += f"  {one_line(error)}"
        self.put(line)

    def _slot(self, slot: dict[str, Any]) -> None:
        """Print a skipped slot. Other slots are printed as runs when they have run."""
        if self.as_json:
            self.slots.append(slot)
        elif slot["skipped"]:
            from ..text.humanize import plural

            skipped = plural(slot["skipped"], "slot")
            task = one_line(slot["job_type"])
            self.put(f"{self._word('skipped')}  {task}  {skipped}  {slot['reason']}")

    def summary(self, report: TickReport) -> None:
        """Print the last line, unless nothing was due."""
        if self.as_json:
            everything = {"tick": report._asdict(), "slots": self.slots, "runs": self.runs}
            self._write(f"{json.dumps(everything)}\n", END_SECONDS)
        elif not is_idle(report):
            kinds = (*OUTCOME_KINDS, "lost")
            counts = [f"{getattr(report, kind)} {kind}" for kind in kinds if getattr(report, kind)]
            self.put(f"tick: {', '.join(counts) or 'no runs'} in {report.seconds:.1f} s")

    def end(self) -> None:
        """Let the command end even if its output is not read."""
        if not is_read(self._stream, END_SECONDS):
            logger.warning("The standard output was not read, and the rest of it was dropped")
            leave(self._stream)

    def _word(self, kind: str) -> str:
        word = f"{kind:<9}"
        return paint(kind, word) if self._colored else word


class Stamped(logging.Formatter):
    """Begins each line with the time, as `Printer` does."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", STAMP)
        self.converter: Callable[[float | None], time.struct_time] = time.gmtime


def is_log(stream: TextIO) -> bool:
    """Return whether *stream* is a file, whose lines are kept for later."""
    number = file_number(stream)
    return number is not None and stat.S_ISREG(os.fstat(number).st_mode)


def is_idle(report: TickReport) -> bool:
    """Return whether a tick did nothing worth printing."""
    return not (report.attempts or report.skipped or report.reclaimed or report.lost)
