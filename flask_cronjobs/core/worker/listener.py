"""A thread that listens for enqueued runs, where the database can notify.

Without it, the keeper still finds runs by polling, only later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy import Engine

from ...db.notify import Notifications
from ...log import logger

#: Seconds between two checks whether the thread must stop.
SLICE_SECONDS = 0.5
#: Seconds between two checks of its connection.
CHECK_SECONDS = 30.0
#: Seconds after which the thread connects again after trouble.
RECONNECT_SECONDS = 5.0
#: Seconds for which `Listener.__enter__` waits to learn whether the thread can listen.
READY_SECONDS = 1.0


class Listener:
    """Calls *wake*, in a thread of its own, when runs were enqueued. A context manager.

    :ivar listening: whether it listens at the moment. Only its own thread writes this.
    """

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self.listening: bool = False
        self._engine = engine
        self._wake = wake
        self._ready = threading.Event()
        self._stopped = threading.Event()

    def __enter__(self) -> Listener:
        threading.Thread(target=self._run, name="cronjobs-listener", daemon=True).start()
        self._ready.wait(READY_SECONDS)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()

    def _run(self) -> None:
        """Listen; after trouble, listen again."""
        while not self._stopped.is_set():
            notifications = Notifications(self._engine)
            try:
                if not notifications.listen():
                    return
                self._listen(notifications)
            except Exception as error:
                logger.debug("Not listening for new runs: %s", error)
            finally:
                self.listening = False
                self._ready.set()
                notifications.close()
            self._stopped.wait(RECONNECT_SECONDS)

    def _listen(self, notifications: Notifications) -> None:
        self.listening = True
        self._ready.set()
        checked_at = time.monotonic()
        while not self._stopped.is_set():
            if notifications.wait(SLICE_SECONDS):
                self._wake()
            if time.monotonic() - checked_at > CHECK_SECONDS:
                notifications.check()
                checked_at = time.monotonic()
