"""Note what handlers print and log, for the tasks whose output is kept.

While a worker works, ``sys.stdout``, ``sys.stderr`` and the loggers pass on what they get as ever,
and note it for the run that is current in the context of the caller. So runs side by side do not
mix. What is not seen: threads that a handler starts without its context, what writes to file
descriptors (subprocesses, C libraries, ``sys.stdout.buffer``), and text that is written to a
stream that the handler put in the place of ``sys.stdout``.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock
from typing import Any

from ...db.connection import Bookkeeping
from ...errors import DatabaseTrouble
from ...jobs.runs.current import MAX_OUTPUT, CurrentRun, Output, running
from ...jobs.runs.outcomes import earlier_output, write_output
from ...jobs.state import State, Throttle
from ...registry.options import TaskOptions
from ...text import clean
from ...text.redaction import strip_credentials, without_values
from ..threads import repeating
from .held_runs import Working

#: How often the output of a run at work is written, in seconds.
WRITE_EVERY = 2.0
#: For how long a SQLite file may be locked before that is put off, in seconds.
BUSY = 0.02
#: The first line of an output whose beginning is not kept.
LEFT_OUT = "… earlier output left out …"
_STREAMS = ("stdout", "stderr")


def is_kept(state: State, options: TaskOptions) -> bool:
    """Return whether the output of a task with *options* is kept."""
    kept = options.keep_output
    return state.settings.keep_output if kept is None else kept


class OutputWriter:
    """Writes the outputs of a worker's runs. Belongs to the keeper's thread."""

    def __init__(self, books: Bookkeeping, lease: float) -> None:
        self._books = books
        self._lease = lease
        self._ended: dict[CurrentRun, float] = {}
        self._written = Throttle()

    def note(self, run: CurrentRun) -> None:
        """Let the output of *run* be written, if it is kept and ready to be."""
        if is_ready(run):
            self._ended[run] = time.monotonic() + self._lease

    def write(self) -> None:
        """Write the outputs that were noted. Those of locked rows are tried again later.

        :raises DatabaseTrouble: the database could not be used.
        """
        now = time.monotonic()
        for run, until in list(self._ended.items()):
            if self._write(run) or now > until:
                del self._ended[run]

    def write_at_work(self, at_work: Sequence[Working], now: bool = False) -> None:
        """Write the outputs of runs *at_work*, now and then, so that a killed process leaves them.

        On SQLite a handler may hold the one lock. Then try again later.

        :param now: also if they were written a moment ago, and what is not ready yet.
        """
        if not (now or self._written.ready()):
            return
        if now:
            make_all_ready(at_work)
        changed = [each.run for each in at_work if is_ready(each.run)]
        self._written.block_for(WRITE_EVERY)
        if not changed:
            return
        try:
            with self._books.trying_once(), self._not_waiting():
                for run in changed:
                    self._write(run)
        except DatabaseTrouble:
            pass

    def _not_waiting(self) -> AbstractContextManager[None]:
        one_writer = self._books.dialect.one_writer
        return self._books.busy_for(BUSY) if one_writer else nullcontext()

    def _write(self, run: CurrentRun) -> bool:
        assert run.output is not None
        text = run.output.ready
        if text is None:
            return False
        if run.output.earlier is None:
            run.output.earlier = earlier_output(self._books, run.claim)
        if not write_output(self._books, run.claim, tail(run.output.earlier + text, MAX_OUTPUT)):
            return False
        run.output.written = text
        return True


def is_ready(run: CurrentRun) -> bool:
    """Return whether there is an output of *run* that is cleaned and not written."""
    return run.output is not None and run.output.ready is not run.output.written


def make_ready(output: Output) -> None:
    """Clean what was added to *output*. That takes time, in which the keeper must renew leases."""
    with output.lock:
        if output.changed:
            output.ready = safe_tail(output.take(), MAX_OUTPUT)


def make_all_ready(at_work: Iterable[Working]) -> None:
    """Clean what the runs *at_work* have said so far."""
    for each in at_work:
        if each.run.output is not None:
            make_ready(each.run.output)


def safe_tail(text: str, limit: int) -> str:
    """Return the last *limit* bytes of *text*, from the start of a line, cleaned as errors are."""
    longer = text[-2 * limit :]  # So that a credential at the cut is recognized.
    safe = strip_credentials(clean(without_values(longer)) or "")
    return tail(safe, limit, is_whole=len(longer) == len(text))


def tail(text: str, limit: int, is_whole: bool = True) -> str:
    """Return the last *limit* bytes of *text*, from the start of a line.

    :param is_whole: False if its beginning is missing already.
    """
    data = text.encode()
    if is_whole and len(data) <= limit:
        return text
    end = data[-limit:].decode(errors="ignore")
    return f"{LEFT_OUT}\n{end.partition(chr(10))[2] or end}"


_lock = Lock()
_users = 0
#: The run of which a record goes to its handlers: those that print it must not note it once more.
#: Not just whether: if an interruption leaves it set, the next run is heard all the same.
_silent: ContextVar[CurrentRun | None] = ContextVar("flask_cronjobs.silent", default=None)


@contextmanager
def noting(state: State, at_work: Callable[[], Iterable[Working]]) -> Generator[None]:
    """Note what handlers print and log in this block, if the output of a task is kept.

    :param at_work: returns the runs at work, whose outputs a thread cleans now and then.
    """
    if not any(is_kept(state, task.options) for task in state.registry.tasks.values()):
        yield
        return
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _install()
    try:
        with repeating("cronjobs-output", WRITE_EVERY / 2, lambda: make_all_ready(at_work())):
            yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _uninstall()


def _note(text: str) -> None:
    run = running()
    if run is not None and run.output is not None and _silent.get() is not run:
        run.output.add(text)


class _Stream:
    """Passes on to *stream*, and notes what is written."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        _note(text)
        written: int = self.stream.write(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_original = logging.Logger.callHandlers
_format = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%SZ")
_format.converter = time.gmtime


def _call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
    run = running()
    if run is None or run.output is None or _silent.get() is run:
        return _original(self, record)
    try:
        run.output.add(f"{_format.format(record)}\n")
    except Exception:
        run.output.add(f"{record.levelname} {record.name}: {record.msg!r}\n")
    token = _silent.set(run)
    try:
        _original(self, record)
    finally:
        _silent.reset(token)


def _install() -> None:
    global _original
    for name in _STREAMS:
        stream = getattr(sys, name)
        if stream is not None:
            setattr(sys, name, _Stream(stream))
    # Not a handler of the root logger: it would not see loggers that do not propagate, and Flask
    # gives its own logger no handler where the root has one.
    _original = logging.Logger.callHandlers
    logging.Logger.callHandlers = _call_handlers  # type: ignore[method-assign]


def _uninstall() -> None:
    """Take back what others have not replaced meanwhile."""
    for name in _STREAMS:
        stream = getattr(sys, name)
        if isinstance(stream, _Stream):
            setattr(sys, name, stream.stream)
    if logging.Logger.callHandlers is _call_handlers:
        logging.Logger.callHandlers = _original  # type: ignore[method-assign]
