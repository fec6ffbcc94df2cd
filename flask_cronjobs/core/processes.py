"""Run one worker in this process, or several forked ones that this process waits for."""

from __future__ import annotations

import faulthandler
import json
import os
import selectors
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from ..db.statements import deadlines
from ..errors import CronJobsError, DatabaseTrouble
from ..log import logger, worker_name
from ..signals import News, notify
from .app_state import State
from .background import flush_output
from .worker.process_signals import STOP_FROM_PARENT, STOPPING
from .worker.work_options import WorkOptions
from .worker.worker import work

#: The exit status of a worker that would fail again, for example because the tables are missing.
HOPELESS = 3
#: Seconds that the last output of handlers may take to be written when a worker ends.
FLUSH_SECONDS = 3.0


class Pipe:
    """Sends news from a forked worker to its parent, as lines of JSON. Any thread may call it."""

    def __init__(self, writer: int) -> None:
        self._writer = writer
        self._lock = threading.Lock()

    def __call__(self, kind: str, value: object) -> None:
        """Send news; see `signals.News`."""
        unsent = f"{json.dumps((kind, value))}\n".encode()
        with self._lock:
            while unsent:
                unsent = unsent[os.write(self._writer, unsent) :]

    def end(self, error: str | None) -> None:
        """Report that the worker has ended, and the error that kept it from its work."""
        with suppress(OSError):  # The parent may be gone.
            self("end", error)


def be_worker(state: State, options: WorkOptions, pipe: Pipe) -> NoReturn:
    """Do a worker's work in a forked process, then end the process."""
    status = 1
    try:
        status = _work(state, options, pipe)
    finally:
        # Use a thread, so that the worker ends even if no process reads its output.
        thread = threading.Thread(target=flush_output, daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)
        os._exit(status)


def _work(state: State, options: WorkOptions, pipe: Pipe) -> int:
    state.forget_connections()
    try:
        work(state, options, handle_signals=True)
    except CronJobsError as error:
        pipe.end(str(error))
        is_transient = isinstance(error, DatabaseTrouble) and error.transient
        return 1 if is_transient else HOPELESS
    except BaseException as error:
        logger.exception(
            "The worker process %d failed; its runs are reclaimed when their leases end",
            os.getpid(),
        )
        pipe.end(f"A worker process failed: {error!r}")
        return 1
    pipe.end(None)
    return 0


#: How long to wait before a worker that ended too early is replaced, in seconds.
RESTART_SECONDS = 1.0
#: Seconds between two checks whether a worker has ended. Usually its pipe ends first, which the
#: parent sees at once, but a process that a handler forked may hold the pipe open.
CHECK_SECONDS = 0.5
#: Seconds between two checks once a worker's pipe has ended, which happens just before its end.
CHECK_SOON_SECONDS = 0.02


def run_workers(state: State, number: int, options: WorkOptions) -> Counter[str]:
    """Run *number* workers until nothing is left to do; count the attempts by outcome.

    A single worker without limits and without a parent runs in this process. Otherwise each worker
    is forked, and reports its outcomes through a pipe, so that they count even if it is killed.
    ``max_runs`` is divided among the workers.

    :raises CronJobsError: a worker could not be started or could not do its work, or every worker
        ended too early.
    """
    if options.max_runs is not None:
        number = min(number, options.max_runs)
    if number < 1:
        return Counter()
    if number > 1 or not hasattr(signal, "setitimer"):
        _warn_of_platform(number)
    is_alone = number == 1 and options.limits is None and options.parent is None
    if is_alone or not hasattr(os, "fork"):
        return work(state, options, handle_signals=options.own_process)
    if options.books is not None:  # No connection of ours may be open while workers fork.
        options.books.close()
        options = options._replace(books=None)
    return _ProcessPool(state, options, number).run()


def _warn_of_platform(number: int) -> None:
    """Warn if this platform, such as Windows, cannot fork workers or interrupt handlers."""
    if number > 1 and not hasattr(os, "fork"):
        logger.warning("On this platform one worker runs instead of %d", number)
    if not hasattr(signal, "setitimer"):
        logger.warning(
            "On this platform no handler can be interrupted, at its timeout or when it is cancelled"
        )


@dataclass(eq=False)
class _Child:
    """A forked worker.

    :ivar number: its number in the pool, from 0.
    :ivar pipe_ended: whether its end of the pipe is closed.
    :ivar orderly: whether it reported its end. Otherwise a handler may have ended it.
    :ivar error: what kept it from its work, as it reported.
    """

    number: int
    pid: int
    pipe: int
    unread: bytes = b""
    pipe_ended: bool = False
    orderly: bool = False
    error: str | None = None


class _ProcessPool:
    """The forked workers, and what they report.

    :ivar _due: when each worker that has ended is due to be replaced, by its number; the time is
        that of `time.monotonic`.
    """

    def __init__(self, state: State, options: WorkOptions, number: int) -> None:
        self._state = state
        self._counts: Counter[str] = Counter()
        self._parent = options.parent
        self._options = options._replace(parent=os.getpid())
        self._number = number
        self._stopping = False
        self._children: list[_Child] = []
        self._due: dict[int, float] = {}
        self._errors: list[str] = []
        self._ended_well: Counter[bool] = Counter()
        self._selector = selectors.DefaultSelector()

    def run(self) -> Counter[str]:
        """Fork the workers, and wait until all have ended.

        If a worker is killed by a handler, or because of a handler that does not end, the others
        continue, and its runs are reclaimed when their leases end. A resident worker is replaced,
        unless a new one would fail again: then all are stopped.
        If `WorkOptions.parent` is set, all workers are stopped when that process has ended.
        """
        with self._passing_on_signals():
            self._start()
            while self._children or self._due:
                self._listen()
                for child in list(self._children):
                    self._look_at(child)
                self._replace()
                self._stop_with_parent()
        self._selector.close()
        if self._errors:
            raise CronJobsError(self._errors[0])
        if self._ended_well[False] and not self._ended_well[True]:
            raise CronJobsError(
                "Every worker ended unexpectedly; their runs are reclaimed when their leases end. "
                "Look in the log and in the system's log, since they may have been killed."
            )
        return self._counts

    def _start(self) -> None:
        """Fork all workers. If the system refuses one, stop them all."""
        try:
            for number in range(self._number):
                self._fork(number)
        except OSError as error:
            self._stop_all(STOP_FROM_PARENT)
            self._errors.append(
                f"Of {self._number} workers, only {len(self._children)} could be started, so they "
                f"were stopped: {error.strerror}. Use fewer --workers, or allow more processes "
                "(ulimit -u, the container's limit)."
            )

    def _replace(self) -> None:
        """Fork the workers that are due to be replaced."""
        if self._stopping:
            self._due.clear()
        for number in [number for number, at in self._due.items() if time.monotonic() >= at]:
            try:
                self._fork(number)
                del self._due[number]
            except OSError as error:
                logger.error("A worker could not be replaced. Trying again: %s", error)
                self._due[number] = time.monotonic() + RESTART_SECONDS

    def _fork(self, number: int) -> None:
        """Fork one worker, unless all must stop. Signals wait until it can receive them.

        No other thread of ours may run meanwhile: the new process would lack the thread, but the
        locks that it held would stay locked there forever. The timer of faulthandler, which the app
        may have started, is such a thread, and the new process needs that timer for its watchdog.
        """
        flush_output()
        deadlines.end_thread()
        faulthandler.cancel_dump_traceback_later()
        with _signals_blocked():
            if not self._stopping:
                self._fork_one(number)

    def _fork_one(self, number: int) -> None:
        # Both are closed on exec, so no program that a handler starts inherits them.
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if pid == 0:
            os.close(reader)
            self._be_child(number, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        child = _Child(number, pid, reader)
        self._children.append(child)
        self._selector.register(reader, selectors.EVENT_READ, child)

    def _be_child(self, number: int, writer: int) -> NoReturn:
        """Work as a forked worker, and end the process."""
        try:
            for stop_signal in STOPPING:  # The parent's handlers would stop the whole pool.
                signal.signal(stop_signal, lambda number, frame: None)
            # Close the readers of the other workers' pipes, so that a write to one of them fails
            # once the parent has ended.
            for key in self._selector.get_map().values():
                os.close(key.data.pipe)
            self._selector.close()
            pipe = Pipe(writer)
            be_worker(self._state, self._options_of(number, pipe), pipe)
        finally:
            os._exit(1)

    def _options_of(self, number: int, news: News) -> WorkOptions:
        """Return one worker's options: its own name, and its share of runs and minute work."""
        max_runs = self._options.max_runs
        share = None if max_runs is None else (max_runs + number) // self._number
        return self._options._replace(
            worker=worker_name(),
            news=news,
            max_runs=share,
            beside=self._options.beside if number == 0 else (),
            adds_counts=self._options.resident and number > 0,
        )

    def _listen(self) -> None:
        """Wait a moment for reports from the workers, and read them."""
        soon = any(child.pipe_ended for child in self._children)
        for key, _ in self._selector.select(CHECK_SOON_SECONDS if soon else CHECK_SECONDS):
            self._read(key.data)

    def _read(self, child: _Child) -> bool:
        """Read what a worker has reported; return whether there may be more."""
        try:
            chunk = os.read(child.pipe, 65536)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(child.pipe)
            child.pipe_ended = True
            return False
        *lines, child.unread = (child.unread + chunk).split(b"\n")
        for line in lines:
            kind, value = json.loads(line)
            if kind == "end":
                child.orderly, child.error = True, value
                continue
            if kind in ("outcome", "lost"):
                self._counts[value["outcome"] if kind == "outcome" else kind] += 1
            notify(self._options.news, kind, value)
        return True

    def _look_at(self, child: _Child) -> None:
        """If a worker has ended, read its last reports, and note how it ended.

        This asks the system, since processes that its handlers started may hold its pipe open.
        """
        try:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
        except ChildProcessError:  # SIGCHLD is ignored, so the status is lost.
            pid, status = child.pid, 0
        if pid == 0:
            return
        while not child.pipe_ended and self._read(child):
            pass
        if not child.pipe_ended:
            self._selector.unregister(child.pipe)
        os.close(child.pipe)
        self._children.remove(child)
        self._ended_with(child, os.waitstatus_to_exitcode(status))

    def _ended_with(self, child: _Child, status: int) -> None:
        ended_well = child.orderly and child.error is None
        self._ended_well[ended_well] += 1
        if not ended_well:
            logger.error("The worker process %d ended unexpectedly", child.pid)
        # If a handler ended the worker, the status means nothing.
        is_hopeless = child.orderly and status == HOPELESS
        if self._options.resident and not is_hopeless and not self._stopping:
            self._due[child.number] = time.monotonic() + (0.0 if ended_well else RESTART_SECONDS)
        elif child.error is not None:
            self._errors.append(child.error)
            if self._options.resident and not self._stopping:
                # The others may lack what this one did for them, such as the minute work.
                self._stop_all(STOP_FROM_PARENT)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ask all workers to stop; the second time, kill them."""
        again = self._stopping and number in (signal.SIGTERM, signal.SIGINT)
        self._stop_all(signal.SIGKILL if again else STOP_FROM_PARENT)

    def _stop_with_parent(self) -> None:
        """Stop all workers if this process is to end with its parent, and the parent has ended."""
        if self._parent is not None and os.getppid() != self._parent and not self._stopping:
            logger.warning("The parent process %d has ended, so the workers stop", self._parent)
            self._stop_all(STOP_FROM_PARENT)

    def _stop_all(self, number: int) -> None:
        self._stopping = True
        for child in list(self._children):
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    @contextmanager
    def _passing_on_signals(self) -> Generator[None]:
        previous = [signal.signal(number, self._stop) for number in STOPPING]
        try:
            yield
        finally:
            for number, handler in zip(STOPPING, previous, strict=True):
                signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Block the signals that stop a worker. A forked one unblocks them once it can handle them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
