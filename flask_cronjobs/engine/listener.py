"""A thread beside a resident worker's keeper: on PostgreSQL it hears of new runs as they commit.

It makes nothing happen that would not happen without it: the keeper looks for runs by itself,
only not at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy import Engine

from ..log import logger
from ..store.notify import Notifications

#: How often the thread looks whether it is to stop, in seconds.
SLICE = 0.5
#: How often it looks whether its connection is alive, in seconds.
CHECK = 30.0
#: How soon it connects anew after trouble, in seconds.
AGAIN = 5.0


class Listener(threading.Thread):
    """Calls *wake*, in its own thread, when runs were enqueued.

    :ivar listening: whether it hears at the moment.
    :ivar settled: set once it is known whether it can hear.
    """

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        super().__init__(name="cronjobs-listener", daemon=True)
        self.listening: bool = False
        self.settled: threading.Event = threading.Event()
        self._engine = engine
        self._wake = wake
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let the thread end soon."""
        self._stopped.set()

    def run(self) -> None:
        """The thread's life: listen, and after trouble listen again."""
        while not self._stopped.is_set():
            notifications = Notifications(self._engine)
            try:
                if not notifications.listen():
                    return
                self._hear(notifications)
            except Exception as error:
                logger.debug("Not listening for new runs: %s", error)
            finally:
                self.listening = False
                self.settled.set()
                notifications.close()
            self._stopped.wait(AGAIN)

    def _hear(self, notifications: Notifications) -> None:
        self.listening = True
        self.settled.set()
        checked = time.monotonic()
        while not self._stopped.is_set():
            if notifications.wait(SLICE):
                self._wake()
            if time.monotonic() - checked > CHECK:
                notifications.check()
                checked = time.monotonic()
