"""One worker in this process, or several forked ones that this process waits for."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

from .announce import pass_on
from .errors import CronJobsError, DatabaseTrouble
from .log import logger
from .options import WorkOptions
from .state import State
from .types import Outcome
from .worker import PASSED_ON, work, worker_name

#: How long to wait before a worker that ended before its time is forked anew, in seconds.
RESTART_PAUSE = 1.0
#: The exit status of a worker that would fail again: no tables, say.
HOPELESS = 3


@dataclass
class _Child:
    pid: int
    pipe: int
    unread: bytes = b""
    orderly: bool = False


def run_workers(state: State, number: int, options: WorkOptions) -> Counter[str]:
    """Run *number* workers until nothing more is to be done; how many attempts came to what.

    With more than one, each is forked, and what it says comes back through a pipe: so what a worker
    did is known even if it is killed.

    :raises DatabaseTrouble: no worker could use the database.
    """
    if number > 1 and not hasattr(os, "fork"):
        logger.warning("This platform cannot fork: one worker runs instead of %d", number)
        number = 1
    if number == 1:
        return work(state, options, handle_signals=options.may_kill)
    sys.stdout.flush()
    sys.stderr.flush()
    crew = _Crew([_fork(state, options) for _ in range(number)], options.on_outcome)
    with _passing_on_signals(crew):
        while (child := crew.listen()) is not None:
            ended = _wait(child)
            if ended not in (0, HOPELESS) and options.upkeep is not None and not crew.stopping:
                time.sleep(RESTART_PAUSE)
                if not crew.stopping:
                    crew.join(_fork(state, options))
    if len(crew.errors) >= number:
        raise DatabaseTrouble(crew.errors[0])
    return crew.counts


def _fork(state: State, options: WorkOptions) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(pid, reader)
    status = 1
    try:
        os.close(reader)
        status = _live(state, options, writer)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _live(state: State, options: WorkOptions, writer: int) -> int:
    """A forked worker's life; its exit status."""
    # The parent's connections stay the parent's: forget them, and close nothing.
    with state.app.app_context():
        for engine in state.db.engines.values():
            engine.dispose(close=False)

    def tell(outcome: Outcome) -> None:
        _write(writer, {"outcome": asdict(replace(outcome, stack=None, result=None))})

    try:
        work(
            state,
            replace(options, worker=worker_name(), on_outcome=tell),
            handle_signals=options.may_kill,
        )
    except CronJobsError as error:
        _write(writer, {"end": [str(error)]})
        passing = isinstance(error, DatabaseTrouble) and error.transient
        return 1 if passing else HOPELESS
    _write(writer, {"end": []})
    return 0


def _write(writer: int, message: dict[str, Any]) -> None:
    left = json.dumps(message).encode() + b"\n"
    while left:
        left = left[os.write(writer, left) :]


class _Crew:
    """The forked workers, and what they say."""

    def __init__(
        self, children: list[_Child], on_outcome: Callable[[Outcome], None] | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.stopping = False
        self._on_outcome = on_outcome
        self._selector = selectors.DefaultSelector()
        for child in children:
            self.join(child)

    def join(self, child: _Child) -> None:
        """Listen to *child* too."""
        self._selector.register(child.pipe, selectors.EVENT_READ, child)
        if self.stopping:  # Asked between the fork and here.
            with suppress(ProcessLookupError):
                os.kill(child.pid, PASSED_ON or signal.SIGTERM)

    def listen(self) -> _Child | None:
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

    def stop(self) -> None:
        """Ask all that live to stop; the second time, end them at once."""
        number = signal.SIGKILL if self.stopping else PASSED_ON or signal.SIGTERM
        self.stopping = True
        for key in list(self._selector.get_map().values()):
            with suppress(ProcessLookupError):
                os.kill(key.data.pid, number)

    def _hear(self, child: _Child, message: dict[str, Any]) -> None:
        if "end" in message:
            child.orderly = True
            self.errors += message["end"]
            return
        outcome = Outcome(**message["outcome"])
        self.counts[outcome.kind] += 1
        pass_on(self._on_outcome, outcome)


def _wait(child: _Child) -> int:
    _, status = os.waitpid(child.pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    if not child.orderly:
        ended = 1  # Whatever its status says: a handler may have called os._exit(0).
    if ended != 0:
        logger.error("The worker process %d ended before its time", child.pid)
    return ended


@contextmanager
def _passing_on_signals(crew: _Crew) -> Generator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        crew.stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, pass_on) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
