"""``current_run``: what a handler may know and say of the run that it works on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, cast

from werkzeug.local import LocalProxy

from .types import Claim

if TYPE_CHECKING:
    from .store import Bookkeeping

#: Progress is written at most this often, in seconds; the last word is never lost.
PROGRESS_INTERVAL = 0.5


class CurrentRun:
    """The run that a handler works on.

    :param claim: the claim that holds it.
    :param tell: passes ``(fraction, message)`` on to be written, or None for a heartbeat.
    :param books: the bookkeeping connection that `once` may use while the handler works, in the
        thread that makes this.
    """

    def __init__(
        self,
        claim: Claim,
        tell: Callable[[tuple[float, str | None] | None], None],
        books: Bookkeeping,
    ) -> None:
        self.claim = claim
        self.books = books
        self.thread = threading.get_ident()
        self._tell = tell
        self._told_at = float("-inf")
        self._untold: tuple[float, str | None] | None = None

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
        """How many attempts the run has in all."""
        return self.claim.max_attempts

    @property
    def scheduled_for(self) -> datetime:
        """The slot, or the time the run was asked for; aware, UTC; the same at each attempt."""
        return self.claim.scheduled_for

    @property
    def idempotency_key(self) -> str | None:
        """The run's idempotency key, if it has one."""
        return self.claim.idempotency_key

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Say how far the run is; seen in its row, and on the pages, while it runs.

        :param fraction: from 0 to 1.
        :param message: a short text beside it; cut at 500 characters.
        :raises ValueError: *fraction* is not from 0 to 1.

        Call it as often as you like: the row is written at most twice a second.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress: the fraction is {fraction!r}. Give a number from 0 to 1.")
        said = (float(fraction), None if message is None else str(message)[:500])
        now = time.monotonic()
        if now - self._told_at < PROGRESS_INTERVAL and fraction < 1:
            self._untold = said
            return
        self._told_at, self._untold = now, None
        self._tell(said)

    def heartbeat(self) -> None:
        """Renew the lease now. The worker does so by itself: this is for code that starves it."""
        self._tell(None)

    def take_untold(self) -> tuple[float, str | None] | None:
        """What `progress` was told and did not pass on yet."""
        said, self._untold = self._untold, None
        return said


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
    """Whether a handler is at work here, so that `current_run` may be used."""
    return _current.get(None) is not None


def running() -> CurrentRun | None:
    """The run of the handler at work here, or None."""
    return _current.get(None)


def enter_run(run: CurrentRun) -> Callable[[], None]:
    """Make *run* the current one until the returned function is called."""
    token = _current.set(run)
    return lambda: _current.reset(token)
