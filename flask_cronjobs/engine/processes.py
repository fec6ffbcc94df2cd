"""Run one worker in this process, or several forked ones that this process waits for."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

from ..errors import CronJobsError, DatabaseTrouble
from ..log import logger, worker_name
from ..signals import notify
from ..state import State
from ..store.deadlines import deadlines
from ..types import Outcome
from .observer import Observer
from .worker.options import WorkOptions
from .worker.worker import STOPPING, work

#: How long to wait before a worker that ended too early is replaced, in seconds.
RESTART_PAUSE = 1.0
#: The exit status of a worker that would fail again, because the tables are missing, say.
HOPELESS = 3


def run_workers(state: State, number: int, options: WorkOptions) -> Counter[str]:
    """Run *number* workers until nothing is left to do; count the attempts by outcome.

    With more than one, each is forked, and reports its outcomes through a pipe, so that they count
    even if the worker is killed. ``max_runs`` is shared out among them.

    :raises CronJobsError: a worker could not do its work, or every worker ended too early.
    """
    if options.max_runs is not None:
        number = min(number, options.max_runs)
    lacking = _lacking(number)
    if lacking:
        options = replace(options, observer=_LimitsObserver(options.observer, lacking))
    if number == 1 or not hasattr(os, "fork"):
        return _work(state, options, handle_signals=options.may_kill)
    return _ProcessPool(state, options, number).run()


def _work(state: State, options: WorkOptions, handle_signals: bool) -> Counter[str]:
    try:
        return work(state, options, handle_signals)
    finally:
        if options.minute_work is not None:
            options.minute_work.close()


def _lacking(number: int) -> str | None:
    """Return what this platform lacks to run *number* workers, as a sentence's end."""
    lacking: list[str] = []
    if number > 1 and not hasattr(os, "fork"):
        lacking.append(f"one worker runs instead of {number}")
    if not hasattr(signal, "setitimer"):
        lacking.append("no handler can be interrupted, at its timeout or when it is cancelled")
    return ", and ".join(lacking) or None


class _LimitsObserver(Observer):
    """Warns of a platform's limits at the first outcome: a tick with nothing to do is silent."""

    def __init__(self, inner: Observer, lacking: str) -> None:
        self._inner = inner
        self._lacking: str | None = lacking

    def outcome(self, outcome: Outcome) -> None:
        """Warn once, and pass *outcome* on."""
        if self._lacking is not None:
            logger.warning("On this platform %s", self._lacking)
            self._lacking = None
        self._inner.outcome(outcome)


class _PipeObserver(Observer):
    """Sends outcomes from a forked worker to its parent."""

    def __init__(self, writer: int) -> None:
        self._writer = writer

    def outcome(self, outcome: Outcome) -> None:
        """Send *outcome*, without what may be large."""
        _write(self._writer, {"outcome": asdict(replace(outcome, stack=None, result=None))})


@dataclass
class _Child:
    """A forked worker.

    :ivar number: its number in the pool, from 0.
    :ivar orderly: whether it reported its end. Otherwise a handler may have ended it.
    :ivar error: what kept it from its work, as it reported.
    """

    number: int
    pid: int
    pipe: int
    unread: bytes = b""
    orderly: bool = False
    error: str | None = None


class _ProcessPool:
    """The forked workers, and what they report."""

    def __init__(self, state: State, options: WorkOptions, number: int) -> None:
        self._state = state
        self._options = options
        self._number = number
        self._stopping = False
        self._counts: Counter[str] = Counter()
        self._errors: list[str] = []
        self._ended_well: Counter[bool] = Counter()
        self._selector = selectors.DefaultSelector()

    def run(self) -> Counter[str]:
        """Fork the workers, and wait until all have ended.

        A worker that is ended by its handler, or for it, leaves its work to the others; its runs
        come back by lease. A resident worker is replaced.
        """
        with self._passing_on_signals():
            for number in range(self._number):
                self._fork(number)
            while (child := self._next_ended()) is not None:
                if self._reap(child) and not self._stopping:
                    time.sleep(RESTART_PAUSE)
                    self._fork(child.number)
        if self._errors:
            raise CronJobsError(self._errors[0])
        if self._ended_well[False] and not self._ended_well[True]:
            raise CronJobsError("Every worker ended before its time; their runs come back by lease")
        return self._counts

    def _fork(self, number: int) -> None:
        """Fork one worker, unless all are to stop. Signals wait until it can receive them."""
        sys.stdout.flush()
        sys.stderr.flush()
        deadlines.end_thread()
        with _signals_blocked():
            if self._stopping:
                return
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                self._be_child(number, writer)
            os.close(writer)
            child = _Child(number, pid, reader)
            self._selector.register(reader, selectors.EVENT_READ, child)

    def _be_child(self, number: int, writer: int) -> None:
        """Work as a forked worker, and end the process."""
        status = 1
        try:
            for each in STOPPING:  # The parent's handlers would stop the whole pool.
                signal.signal(each, _do_nothing)
            # Close the pipes of the others, so that they end with their parent.
            for key in self._selector.get_map().values():
                os.close(key.data.pipe)
            self._selector.close()
            status = _work_as_child(self._state, self._options_of(number, writer), writer)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _options_of(self, number: int, writer: int) -> WorkOptions:
        """Return one worker's options: its own name, and its share of runs and minute work."""
        most, minute_work = self._options.max_runs, self._options.minute_work
        return replace(
            self._options,
            worker=worker_name(),
            observer=_PipeObserver(writer),
            max_runs=None if most is None else (most + number) // self._number,
            minute_work=None if minute_work is None else minute_work.of_worker(number),
        )

    def _next_ended(self) -> _Child | None:
        """Read what the children report until one ends; return it, or None if none is left."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                child: _Child = key.data
                chunk = os.read(child.pipe, 65536)
                if not chunk:
                    self._selector.unregister(child.pipe)
                    os.close(child.pipe)
                    return child
                *lines, child.unread = (child.unread + chunk).split(b"\n")
                for line in lines:
                    self._receive(child, json.loads(line))
        return None

    def _receive(self, child: _Child, message: dict[str, Any]) -> None:
        if "outcome" in message:
            outcome = Outcome(**message["outcome"])
            self._counts[outcome.kind] += 1
            notify(self._options.observer.outcome, outcome)
        else:
            child.orderly, child.error = True, message["error"]
            self._counts["lost"] += message["lost"]

    def _reap(self, child: _Child) -> bool:
        """Note how a worker ended; return whether to replace it."""
        _, status = os.waitpid(child.pid, 0)
        well = child.orderly and child.error is None
        self._ended_well[well] += 1
        if well:
            return False
        logger.error("The worker process %d ended before its time", child.pid)
        # If a handler ended the worker, the status means nothing.
        hopeless = child.orderly and os.waitstatus_to_exitcode(status) == HOPELESS
        if self._options.minute_work is not None and not hopeless and not self._stopping:
            return True
        if child.error is not None:
            self._errors.append(child.error)
        return False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ask all workers to stop; the second time, end them at once."""
        passed_on = signal.SIGKILL if self._stopping else STOPPING[-1]
        self._stopping = True
        for key in list(self._selector.get_map().values()):
            with suppress(ProcessLookupError):
                os.kill(key.data.pid, passed_on)

    @contextmanager
    def _passing_on_signals(self) -> Generator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        previous = [signal.signal(number, self._stop) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Block the signals that stop a worker. A forked one unblocks them once it can handle them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(number: int, frame: FrameType | None) -> None: ...


def _work_as_child(state: State, options: WorkOptions, writer: int) -> int:
    """Work in a forked process; return its exit status."""
    # The connections are the parent's: forget them, and close none.
    with state.app.app_context():
        for engine in state.db.engines.values():
            engine.dispose(close=False)
    try:
        counts = _work(state, options, handle_signals=True)
    except CronJobsError as error:
        _write(writer, {"error": str(error), "lost": 0})
        passing = isinstance(error, DatabaseTrouble) and error.transient
        return 1 if passing else HOPELESS
    except BaseException as error:
        logger.exception("The worker process %d failed; its runs come back by lease", os.getpid())
        _write(writer, {"error": f"A worker process failed: {error!r}", "lost": 0})
        return 1
    _write(writer, {"error": None, "lost": counts["lost"]})
    return 0


def _write(writer: int, message: dict[str, Any]) -> None:
    left = json.dumps(message).encode() + b"\n"
    while left:
        left = left[os.write(writer, left) :]
