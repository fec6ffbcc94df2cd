"""``current_run``: what a handler can ask and report about its own run."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from werkzeug.local import LocalProxy

from .log import logger
from .text import safe_text
from .types import Claim

if TYPE_CHECKING:
    from .store import Bookkeeping

#: Progress is written at most this often, in seconds, and once more when the handler ends.
PROGRESS_INTERVAL = 0.5
#: How many characters of a message are stored. More are read, so that a credential at the cut is
#: recognized.
SHOWN, LONGEST_MESSAGE = 500, 2000


#: How far a run is, from 0 to 1, and a message.
Progress: TypeAlias = "tuple[float, str | None]"


class CurrentRun:
    """The run that a handler works on.

    :param claim: the claim that holds the run.
    :param request_write: asks the keeper to write the last progress, and with True for a heartbeat.
    :param books: the bookkeeping connection that `once` may use while the handler works, in the
        thread that made this object.
    """

    def __init__(
        self,
        claim: Claim,
        request_write: Callable[[CurrentRun, bool], None],
        books: Bookkeeping,
    ) -> None:
        self.claim = claim
        self.books = books
        self.warning: str | None = None
        self.thread: int = threading.get_ident()
        self._request_write = request_write
        self._requested_at = -math.inf
        # Only the last one. The handler puts it here and the keeper takes it, each in one step.
        self._progress: deque[Progress] | None = None

    @property
    def id(self) -> int:
        """The run's id."""
        return self.claim.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.claim.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the run may have."""
        return self.claim.max_attempts

    @property
    def scheduled_for(self) -> datetime:
        """The slot, or the time for which the run was enqueued; aware, UTC; never changes."""
        return self.claim.scheduled_for

    @property
    def idempotency_key(self) -> str | None:
        """The run's idempotency key, if it has one."""
        return self.claim.idempotency_key

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how far the run is. It shows in the run's row, and on the pages, while it runs.

        :param fraction: from 0 to 1.
        :param message: a short text beside it; cut at 500 characters, credentials left out.
        :raises ValueError: *fraction* is not from 0 to 1.

        Call it as often as you like: the row is written at most twice a second, and once more when
        the handler ends; but not after the commit of ``atomic=True``.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress: the fraction is {fraction!r}. Give a number from 0 to 1.")
        kept = None if message is None else str(message)[:LONGEST_MESSAGE]
        if self._progress is None:
            self._progress = deque(maxlen=1)
        self._progress.append((float(fraction), kept))
        now = time.monotonic()
        if now - self._requested_at >= PROGRESS_INTERVAL or fraction >= 1:
            self._requested_at = now
            self._request_write(self, False)

    def heartbeat(self) -> None:
        """Renew the lease now. The worker does it anyway: this is for code that starves it."""
        self._request_write(self, True)

    def warn(self, warning: str) -> None:
        """Log *warning*, and keep it for the run's row if the run succeeds."""
        logger.warning("%s: %s", self.claim, warning)
        self.warning = warning

    @property
    def has_progress(self) -> bool:
        """Whether progress was reported and not taken yet."""
        return bool(self._progress)

    def take_progress(self) -> Progress | None:
        """Take the last progress, if any. For the keeper's thread."""
        if self._progress is None:
            return None
        try:
            fraction, message = self._progress.pop()
        except IndexError:
            return None
        # Here, not in `progress`, which a handler may call very often.
        return fraction, None if message is None else safe_text(message, LONGEST_MESSAGE)[:SHOWN]


_current: ContextVar[CurrentRun] = ContextVar("flask_cronjobs.current_run")

current_run: CurrentRun = cast(
    CurrentRun,
    LocalProxy(
        _current,
        unbound_message=(
            "current_run is known only inside a handler that a tick runs. In a plain call of the "
            "task there is no run; test `flask_cronjobs.in_run()` first."
        ),
    ),
)
"""The `CurrentRun` of the handler at work. Outside of one, using it is a `RuntimeError`."""


def in_run() -> bool:
    """Return whether a handler is at work here, so that `current_run` can be used."""
    return _current.get(None) is not None


def running() -> CurrentRun | None:
    """Return the run of the handler at work here, or None."""
    return _current.get(None)


def enter_run(run: CurrentRun) -> Callable[[], None]:
    """Make *run* the current one until the returned function is called."""
    token = _current.set(run)
    return lambda: _current.reset(token)
