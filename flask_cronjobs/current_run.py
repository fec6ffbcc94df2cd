"""``current_run``: what a handler may know and say of the run that it works on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from werkzeug.local import LocalProxy

from .types import Claim

if TYPE_CHECKING:
    from .store import Bookkeeping

#: Progress is written at most this often, in seconds, and once more when the handler ends.
PROGRESS_INTERVAL = 0.5


#: A progress: from 0 to 1, and a message.
Word: TypeAlias = "tuple[float, str | None]"


class CurrentRun:
    """The run that a handler works on.

    :param claim: the claim that holds it.
    :param tell: asks for what `progress` was told last to be written, and (True) for a heartbeat.
    :param books: the bookkeeping connection that `once` may use while the handler works, in the
        thread that makes this.
    """

    def __init__(
        self,
        claim: Claim,
        tell: Callable[[CurrentRun, bool], None],
        books: Bookkeeping,
    ) -> None:
        self.claim = claim
        self.books = books
        self.thread: int = threading.get_ident()
        self._tell = tell
        self._told_at = float("-inf")
        # The last word alone. The handler puts it here and the keeper takes it, each in one step.
        self._word: deque[Word] = deque(maxlen=1)

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

        Call it as often as you like: the row is written at most twice a second, and once more when
        the handler ends; but not after the commit of ``atomic=True``.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress: the fraction is {fraction!r}. Give a number from 0 to 1.")
        self._word.append((float(fraction), None if message is None else str(message)[:500]))
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_INTERVAL or fraction >= 1:
            self._told_at = now
            self._tell(self, False)

    def heartbeat(self) -> None:
        """Renew the lease now. The worker does so by itself: this is for code that starves it."""
        self._tell(self, True)

    @property
    def has_word(self) -> bool:
        """Whether `progress` was told something that nobody has taken yet."""
        return bool(self._word)

    def take_word(self) -> Word | None:
        """Take what `progress` was told last. From the keeper's thread."""
        try:
            return self._word.pop()
        except IndexError:
            return None


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
