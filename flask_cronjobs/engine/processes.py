"""One worker in this process, or several forked ones that this process waits for."""

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
from ..signals import pass_on
from ..state import State
from ..types import Outcome
from .worker.options import WorkOptions
from .worker.worker import STOPPING, work

#: How long to wait before a worker that ended before its time is forked anew, in seconds.
RESTART_PAUSE = 1.0
#: The exit status of a worker that would fail again: no tables, say.
HOPELESS = 3


def run_workers(state: State, number: int, options: WorkOptions) -> Counter[str]:
    """Run *number* workers until nothing more is to be done; how many attempts came to what.

    With more than one, each is forked, and what it says comes back through a pipe: so what a worker
    did is known even if it is killed. ``max_runs`` is shared out among them.

    :raises CronJobsError: a worker could not do its work, or none came to its regular end.
    """
    if options.max_runs is not None:
        number = min(number, options.max_runs)
    options = _naming_limits(options, number)
    if number == 1 or not hasattr(os, "fork"):
        return _work(state, options, handle_signals=options.may_kill)
    return _Crew(state, options, number).run()


def _work(state: State, options: WorkOptions, handle_signals: bool) -> Counter[str]:
    try:
        return work(state, options, handle_signals)
    finally:
        if options.upkeep is not None:
            options.upkeep.leave()


def _naming_limits(options: WorkOptions, number: int) -> WorkOptions:
    """Where the platform lacks something (Windows does), say so once a first run is done.

    Not before: a tick with nothing to do is silent.
    """
    lacking: list[str] = []
    if number > 1 and not hasattr(os, "fork"):
        lacking.append(f"one worker runs instead of {number}")
    if not hasattr(signal, "setitimer"):
        lacking.append("no handler can be interrupted, at its timeout or when it is cancelled")
    listener = options.on_outcome

    def tell(outcome: Outcome) -> None:
        if lacking:
            logger.warning("On this platform %s", ", and ".join(lacking))
            lacking.clear()
        pass_on(listener, outcome)

    return replace(options, on_outcome=tell) if lacking else options


@dataclass
class _Child:
    """A forked worker.

    :ivar number: which of the crew it is, from 0.
    :ivar orderly: whether it said that it ends. A handler may have ended it instead.
    :ivar error: what kept it from its work, as it said.
    """

    number: int
    pid: int
    pipe: int
    unread: bytes = b""
    orderly: bool = False
    error: str | None = None


class _Crew:
    """The forked workers, and what they say."""

    def __init__(self, state: State, options: WorkOptions, number: int) -> None:
        self._state = state
        self._options = options
        self._number = number
        self._stopping = False
        self._counts: Counter[str] = Counter()
        self._errors: list[str] = []
        self._ends: Counter[bool] = Counter()
        self._selector = selectors.DefaultSelector()

    def run(self) -> Counter[str]:
        """Fork the workers, and wait until all have ended.

        One that is ended by its handler, or for it, leaves its work to the others, and its runs
        come back by lease. In a resident crew another takes its place.
        """
        with self._passing_on_signals():
            for number in range(self._number):
                self._fork(number)
            while (child := self._listen()) is not None:
                if self._bury(child) and not self._stopping:
                    time.sleep(RESTART_PAUSE)
                    self._fork(child.number)
        if self._errors:
            raise CronJobsError(self._errors[0])
        if self._ends[False] and not self._ends[True]:
            raise CronJobsError("Every worker ended before its time; their runs come back by lease")
        return self._counts

    def _fork(self, number: int) -> None:
        """Fork one worker, unless all are to stop; signals wait until it can be told of them."""
        sys.stdout.flush()
        sys.stderr.flush()
        with _signals_held_back():
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
        """A forked worker's life, to the end of the process."""
        status = 1
        try:
            for each in STOPPING:  # In the parent's place they would stop the whole crew.
                signal.signal(each, _do_nothing)
            # So that nobody holds the pipes of the others open when their parent is gone.
            for key in self._selector.get_map().values():
                os.close(key.data.pipe)
            self._selector.close()
            status = _live(self._state, self._options_of(number, writer), writer)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _options_of(self, number: int, writer: int) -> WorkOptions:
        """The options of one worker: its own name, its share of ``max_runs``, its upkeep."""

        def tell(outcome: Outcome) -> None:
            _write(writer, {"outcome": asdict(replace(outcome, stack=None, result=None))})

        most, upkeep = self._options.max_runs, self._options.upkeep
        return replace(
            self._options,
            worker=worker_name(),
            on_outcome=tell,
            max_runs=None if most is None else (most + number) // self._number,
            upkeep=None if upkeep is None else upkeep.of_worker(number),
        )

    def _listen(self) -> _Child | None:
        """Read what the children say until one of them ends: that one; None when all have."""
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
                    self._hear(child, json.loads(line))
        return None

    def _hear(self, child: _Child, message: dict[str, Any]) -> None:
        if "outcome" in message:
            outcome = Outcome(**message["outcome"])
            self._counts[outcome.kind] += 1
            pass_on(self._options.on_outcome, outcome)
        else:
            child.orderly, child.error = True, message["error"]
            self._counts["lost"] += message["lost"]

    def _bury(self, child: _Child) -> bool:
        """Note how a worker ended; whether another is to take its place."""
        _, status = os.waitpid(child.pid, 0)
        well = child.orderly and child.error is None
        self._ends[well] += 1
        if well:
            return False
        logger.error("The worker process %d ended before its time", child.pid)
        # Of one that a handler ended the status says nothing.
        hopeless = child.orderly and os.waitstatus_to_exitcode(status) == HOPELESS
        if self._options.upkeep is not None and not hopeless and not self._stopping:
            return True
        if child.error is not None:
            self._errors.append(child.error)
        return False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ask all that live to stop; the second time, end them at once."""
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
def _signals_held_back() -> Generator[None]:
    """Hold back the signals that stop a worker; a forked one lets them in when it can heed them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(number: int, frame: FrameType | None) -> None: ...


def _live(state: State, options: WorkOptions, writer: int) -> int:
    """A forked worker's life; its exit status."""
    # The parent's connections stay the parent's: forget them, and close nothing.
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
