"""Checks for what a test leaves behind: threads, processes, open databases and hooks.

They would disturb later tests, whose log they write to and whose time they take.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: How long threads and processes that are ending may need on a busy machine, in seconds.
PATIENCE = 60.0
#: Threads that serve the whole process, and end without help.
SHARED_THREADS = ("cronjobs-deadlines", "asyncio_")
RAISED = "A receiver of the signal"
#: The signals that a worker or a tick handles while it runs.
SIGNALS = (signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

#: The number of processes that this process has started.
_started = 0


def _count_started(event: str, args: tuple[Any, ...]) -> None:
    global _started
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"):
        _started += 1


sys.addaudithook(_count_started)


@contextmanager
def nothing_left(test: str, folder: Path | None = None) -> Generator[None]:
    """Fail if this block leaves threads, processes or open SQLite files behind.

    Also fail if the handlers of signals or the hook for unraisable errors have changed.

    :param test: the test's id, which is in the environment of the processes that it starts.
    """
    threads, files, started = set(threading.enumerate()), set(_open_files()), _started
    hooks = _hooks()
    yield
    _free_logging()
    assert _hooks() == hooks
    refuse(lambda: [repr(thread) for thread in _threads() if thread not in threads])
    refuse(lambda: [f"the open file {path}" for path in _open_files() if path not in files])
    if _started > started:
        refuse(lambda: list(_processes(test)))


def _free_logging() -> None:
    """Free the lock of `logging`, if an interruption has left it to this thread.

    Python 3.13 takes the lock in a with statement. In earlier versions, an interruption just after
    that would make all other threads wait forever.
    """
    lock: Any = vars(logging)["_lock"]
    if lock._is_owned():
        lock._release_save()


def refuse(look: Callable[[], Iterable[str]], patience: float = PATIENCE) -> None:
    """Wait until *look* finds nothing more; fail if that takes longer than *patience* seconds."""
    until = time.monotonic() + patience
    if look():
        gc.collect()  # The objects in an exception's frames are part of a cycle.
    while remaining := sorted(look()):
        if time.monotonic() >= until:
            pytest.fail(f"The test leaves behind: {', '.join(remaining)}", pytrace=False)
        time.sleep(0.01)


@contextmanager
def no_receiver_raises() -> Generator[None]:
    """Fail if a receiver of a signal raises in this block; otherwise nobody would notice."""
    raised: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.startswith(RAISED):
                raised.append(logging.Formatter().format(record))

    handler = Listening(logging.ERROR)
    logger = logging.getLogger("flask_cronjobs")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    if raised:
        pytest.fail("\n".join(raised), pytrace=False)


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if not t.name.startswith(SHARED_THREADS)]


def _hooks() -> dict[str, object]:
    """Return the handlers of the signals, and the hook for unraisable errors."""
    handlers: dict[str, object] = {number.name: signal.getsignal(number) for number in SIGNALS}
    # Before 8.4, pytest has another hook of the same name in each phase of a test.
    hook = sys.unraisablehook
    return {"unraisable": getattr(hook, "__qualname__", hook), **handlers}


def _open_files() -> list[str]:
    """Return the SQLite files that are open in this process, once per descriptor."""
    paths: list[str] = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        except OSError:
            continue
        if ".sqlite" in target:
            paths.append(f"{number}:{target}")
    return paths


def _processes(test: str) -> Generator[str]:
    """Yield the Python processes that *test* has started, and those forked from this process."""
    mark = f"PYTEST_CURRENT_TEST={test} ".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().split(b"\0")
            ours = parent == os.getpid() or mark in (folder / "environ").read_bytes()
        except OSError:  # The process has ended, or belongs to another user.
            continue
        if ours and b"python" in Path(os.fsdecode(command[0])).name.encode():
            yield f"the process {folder.name}: {os.fsdecode(b' '.join(command))}"
