"""Work that nobody waits for, and work to be repeated, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Does pieces of work, one after the other, in a thread that starts with the first of them.

    :param do: does one, and never raises.
    :param most: how many may wait.
    """

    def __init__(self, name: str, do: Callable[[T], object], most: float = float("inf")) -> None:
        self._name = name
        self._do = do
        self._most = most
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, work: T) -> bool:
        """Let *work* be done soon. May be called from any thread.

        :returns: False if it is dropped: too much waits already, or `close` was called.
        :raises RuntimeError: no more threads can be started.
        """
        with self._starting:
            if self._closed or self._queue.qsize() >= self._most:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._queue.put(work)
        return True

    def close(self, patience: float) -> bool:
        """Wait until all is done, up to *patience* seconds; return whether it is.

        May be called again, to wait for longer.
        """
        with self._starting:
            self._closed = True
            if self._thread is None:
                return True
            self._queue.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            self._do(work)


@contextmanager
def repeating(name: str, every: float, do: Callable[[], object]) -> Generator[None]:
    """Call *do* every so many seconds, in a thread beside this block, and once more at its end."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every):
            do()
        do()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
