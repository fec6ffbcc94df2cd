"""``flask jobs work`` in a thread of the test's process."""

from __future__ import annotations

import threading

from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.resident import serve
from flask_cronjobs.core.tick import TickOptions
from flask_cronjobs.core.worker.keeper import Keeper
from tests.process.support import wait_until


def keepers() -> list[Keeper]:
    """Return the keepers of the workers in this process."""
    return [thread for thread in threading.enumerate() if isinstance(thread, Keeper)]


def stop_keepers() -> None:
    """Stop all workers in this process."""
    for keeper in keepers():
        keeper.flag.stop()


class Resident:
    """``flask jobs work`` in a thread.

    :ivar error: the exception that ended it, if any.
    """

    def __init__(self, state: State, queues: tuple[str, ...] = ()) -> None:
        self.error: BaseException | None = None
        options = TickOptions(workers=1, queues=queues)
        self._thread = threading.Thread(target=self._run, args=(state, options))
        self._thread.start()

    def _run(self, state: State, options: TickOptions) -> None:
        try:
            serve(state, options)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Stop the worker, and wait for its end."""

        def has_ended() -> bool:
            stop_keepers()  # Repeated: a worker that has just started has no keeper yet.
            return not self._thread.is_alive()

        wait_until(has_ended)

    def join(self) -> None:
        """Wait for the worker's end."""
        wait_until(lambda: not self._thread.is_alive())
