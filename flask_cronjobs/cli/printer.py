"""What ``tick`` and ``work`` print: for a person on a terminal, or for a log."""

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
from ..types import OUTCOME_KINDS, AtWork, Outcome, RecordedSlot, RunAtWork, TickReport
from .terminal import (
    FLUSH_WITHIN,
    Lines,
    StatusLine,
    describe,
    file_number,
    leave,
    paint,
)

#: How the time of a line in a log is written, in UTC.
STAMP = "%Y-%m-%dT%H:%M:%SZ"
#: How often the line of the runs at work changes, in seconds.
WATCH_EVERY = 0.5
#: Runs that have been at work for less than this, in seconds, are not in that line.
LONG = 1.0


class Printer:
    """Hears of a tick, and prints a line for each run, or collects all for ``--json``.

    Nobody waits for the lines. On a terminal it also shows which runs are at work, in a line of
    its own.

    :param stamped: whether each line begins with the time.
    :ivar on_terminal: whether a person reads the lines as they come.
    :ivar watch_every: how often it wants to hear which runs are at work, in seconds; None: never.
    """

    def __init__(self, as_json: bool, stamped: bool = False) -> None:
        self.as_json = as_json
        self.on_terminal: bool = sys.stdout.isatty() and not as_json
        self.lines: Lines = Lines(sys.stdout)
        self.runs: list[dict[str, object]] = []
        self.slots: list[dict[str, object]] = []
        self._stamped = stamped and not as_json
        self._colored = self.on_terminal and not os.environ.get("NO_COLOR")
        self._status = StatusLine(sys.stdout, self.lines)
        self._at_work: dict[int, tuple[RunAtWork, ...]] = {}
        self._stopping = False
        watches = self.on_terminal and self._status.enabled
        self.watch_every: float | None = WATCH_EVERY if watches else None

    def __call__(self, kind: str, value: Any) -> None:
        """Print news; see `signals.News`."""
        if kind == "outcome":
            self._outcome(value)
        elif kind == "slot":
            self._slot(value)
        elif kind == "replaced":
            self.put(f"replaced   {value}")
        elif kind == "at_work":
            self._show(value)
        elif kind == "pause":
            self.lines.write()
        elif kind == "flush":
            self.flush()

    def put(self, line: str) -> None:
        """Print a line."""
        self._gather(line)
        self.lines.write()

    def _gather(self, line: str) -> None:
        """Print a line at the next pause, with others: each write takes its time."""
        self.lines.put(f"{time.strftime(STAMP, time.gmtime())} {line}" if self._stamped else line)

    def _outcome(self, outcome: Outcome) -> None:
        if self.as_json:
            self.runs.append(_run(outcome))
            return
        first, _, _ = (outcome.error or "").partition("\n")
        error = one_line(f"{outcome.error_type}: {first[:200]}")
        why = f"  {error}" if outcome.error else ""
        self._gather(
            f"{self._word(outcome.kind)}  {one_line(outcome.job_type)}  run {outcome.id}  "
            f"attempt {outcome.attempt}  "
            f"{outcome.seconds * 1000:.0f} ms{why}"
        )

    def _slot(self, slot: RecordedSlot) -> None:
        """Print a skipped slot; a run is printed when it has run."""
        if self.as_json:
            self.slots.append({**slot._asdict(), "at": slot.at.isoformat()})
        elif slot.skipped:
            from ..jobs.humanize import plural

            skipped = plural(slot.skipped, "slot")
            self.put(
                f"{self._word('skipped')}  {one_line(slot.job_type)}  {skipped}  {slot.reason}"
            )

    def _show(self, seen: AtWork) -> None:
        """Show which runs are at work, and once, which ones a stopping worker waits for."""
        self._at_work[seen.worker] = seen.runs
        runs = [run for each in self._at_work.values() for run in each if run.seconds >= LONG]
        if seen.stopping and seen.runs and not self._stopping:
            self._stopping = True
            self._status.show(None)
            self.put(f"Stopping, with {describe(seen.runs)}. Ctrl-C again ends at once.")
        if not self._stopping:
            self._status.show(describe(runs) if runs else None)

    def flush(self) -> None:
        """Wait until all is printed, but not long for somebody who does not read."""
        self._status.show(None)
        if not self.lines.write(FLUSH_WITHIN):
            logger.warning("Nobody read the standard output, and the rest of it was dropped")
            leave(sys.stdout)

    def summary(self, report: TickReport) -> None:
        """Print the last line; nothing if nothing was due."""
        if self.as_json:
            everything = {"tick": report._asdict(), "slots": self.slots, "runs": self.runs}
            self.lines.put(json.dumps(everything))
        elif not is_idle(report):
            kinds = (*OUTCOME_KINDS, "lost")
            counts = [f"{getattr(report, kind)} {kind}" for kind in kinds if getattr(report, kind)]
            self.put(f"tick: {', '.join(counts) or 'no runs'} in {report.seconds:.1f} s")

    def _word(self, kind: str) -> str:
        word = f"{kind:<9}"
        return paint(kind, word) if self._colored else word


class Stamped(logging.Formatter):
    """Begins each line with the time, as `Printer` does."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", STAMP)
        self.converter: Callable[[float | None], time.struct_time] = time.gmtime


def is_log(stream: TextIO) -> bool:
    """Return whether *stream* is a file, which keeps its lines for later."""
    number = file_number(stream)
    return number is not None and stat.S_ISREG(os.fstat(number).st_mode)


def is_idle(report: TickReport) -> bool:
    """Return whether a tick did nothing that a person wants to know."""
    return not (report.attempts or report.skipped or report.reclaimed or report.lost)


def _run(outcome: Outcome) -> dict[str, object]:
    return {
        "run_id": outcome.id,
        "task": outcome.job_type,
        "attempt": outcome.attempt,
        "outcome": outcome.kind,
        "ms": round(outcome.seconds * 1000, 1),
        "error_type": outcome.error_type,
        "error": outcome.error,
    }
