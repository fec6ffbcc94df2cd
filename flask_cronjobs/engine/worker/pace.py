"""How soon a worker looks for more runs: by what its last claims found, and by what woke it.

Where the database can notify, a thread listens for runs that are enqueued. Everything works without
it: the keeper looks for runs by itself, only not at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy import Engine

from ...db.notify import WAKE_EVERY, Notifications
from ...log import logger

#: How often the thread looks whether it is to stop, in seconds.
SLICE = 0.5
#: How often it looks whether its connection is alive, in seconds.
CHECK_EVERY = 30.0
#: How soon it connects again after trouble, in seconds.
RECONNECT_AFTER = 5.0
#: How long entering the listener waits until it is known whether it can listen, in seconds.
READY_WITHIN = 1.0


class Listener:
    """Calls *wake*, in a thread of its own, when runs were enqueued. A context manager.

    :param enabled: whether to start the thread at all.
    :ivar listening: whether it listens at the moment. Written by its thread alone.
    """

    def __init__(self, engine: Engine, wake: Callable[[], None], enabled: bool) -> None:
        self.listening: bool = False
        self._engine = engine
        self._wake = wake
        self._enabled = enabled
        self._ready = threading.Event()
        self._stopped = threading.Event()

    def __enter__(self) -> Listener:
        if self._enabled:
            threading.Thread(target=self._run, name="cronjobs-listener", daemon=True).start()
            self._ready.wait(READY_WITHIN)
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
            self._stopped.wait(RECONNECT_AFTER)

    def _listen(self, notifications: Notifications) -> None:
        self.listening = True
        self._ready.set()
        checked = time.monotonic()
        while not self._stopped.is_set():
            if notifications.wait(SLICE):
                self._wake()
            if time.monotonic() - checked > CHECK_EVERY:
                notifications.check()
                checked = time.monotonic()


#: How often a worker that waits for work looks for it, in seconds.
POLL = 0.25
#: The same for one that a NOTIFY wakes. It finds retries that come due, and what it did not hear.
POLL_LISTENING = 2.0
#: Where a pooler lets no NOTIFY come, a worker waits longer the longer it has had no run: this part
#: of that time, `POLL` at least and `POLL_LISTENING` at most. So it does not keep the server busy.
QUIET = 8
#: How long the keeper waits for outcomes before it looks for more runs, if its last claim got less
#: than it asked for, in seconds. So the first handler is not held up, and one statement does both.
SETTLE = 0.005


class Pace:
    """When to look for runs. It belongs to the keeper's thread.

    :param asks_server: whether each look is the work of a server.
    :ivar slot_at: when the next slot of a rate comes, by `time.monotonic`: then it looks again.
    """

    def __init__(self, listener: Listener, asks_server: bool) -> None:
        self._listener = listener
        self._asks_server = asks_server
        self._nothing_since: float | None = None
        self._woken_at = float("-inf")
        self._got_runs_at = time.monotonic()
        self._settled_at = 0.0
        self.slot_at: float = float("inf")

    @property
    def exhausted(self) -> bool:
        """Whether the last claim found nothing, and nothing has changed since."""
        return self._nothing_since is not None

    @property
    def rests(self) -> bool:
        """Whether it is too soon to look again after such a claim."""
        since = self._nothing_since
        return since is not None and time.monotonic() < min(
            since + self._between_looks, self.slot_at
        )

    @property
    def settles_for(self) -> float:
        """For how many seconds to wait for outcomes before the next claim."""
        return max(0.0, self._settled_at - time.monotonic())

    @property
    def next_look(self) -> float:
        """For how many seconds to wait while there is no work."""
        return min(self._between_looks, max(0.0, self.slot_at - time.monotonic()))

    @property
    def _between_looks(self) -> float:
        if not self._listener.listening:
            if not self._asks_server:
                return POLL
            quiet = (time.monotonic() - self._got_runs_at) / QUIET
            return min(max(POLL, quiet), POLL_LISTENING)
        # Twice at least after a NOTIFY: runs that came with it may be committed later.
        woken = time.monotonic() - self._woken_at < 3 * WAKE_EVERY
        return WAKE_EVERY if woken else POLL_LISTENING

    def look_again(self) -> None:
        """Look at once: something has changed, and a claim may find what the last one did not."""
        self._nothing_since = None

    def note_wake(self) -> None:
        """Note that a NOTIFY, or somebody else, has woken the worker."""
        self._woken_at = time.monotonic()
        self.look_again()

    def note_claim(self, number: int, wanted: int) -> None:
        """Note that a claim got *number* runs of those *wanted*."""
        got_all = 0 < number < wanted
        self._settled_at = time.monotonic() + SETTLE if got_all else 0.0

    def note_answer(self, number: int, exhausted: bool) -> None:
        """Note that an answer brought *number* runs, and whether nothing more can be claimed."""
        now = time.monotonic()
        if number:
            self._got_runs_at = now
        self._nothing_since = now if exhausted else None
