"""``current_run``: what a handler can ask and report about its own run."""

from __future__ import annotations

import builtins
import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from flask import Flask
from werkzeug.local import LocalProxy

from ..errors import Discard, PayloadError, RetryLater, Snooze
from ..log import logger
from ..text.redaction import safe_text
from ..types import JSON, MAX_OUTPUT_BYTES, BatchCounts, Claim

if TYPE_CHECKING:
    from ..db.connection import Bookkeeping


#: Progress is written at most this often, in seconds, and once more when the handler ends.
PROGRESS_SECONDS = 0.5
#: How many characters of a message are stored. More are read, so that a credential at the cut is
#: recognized.
SHOWN_CHARACTERS, READ_CHARACTERS = 500, 2000

#: How far along a run is, from 0 to 1, and a message.
Progress: TypeAlias = "tuple[float, str | None]"


class Output:
    """The output that a handler prints and logs. Any of the handler's threads may add to it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        """Add *text*. Only the end of the whole text is kept."""
        self._pieces.append(text)
        self._size += len(text)
        if self._size > 4 * MAX_OUTPUT_BYTES:
            # Replace the pieces in one step, since another thread may append one meanwhile.
            count = len(self._pieces)
            last = "".join(self._pieces[:count])[-2 * MAX_OUTPUT_BYTES :]
            self._pieces[:count] = [last]
            self._size = len(last)

    def text(self) -> str:
        """Return the text that was kept."""
        return "".join(tuple(self._pieces))


def _unlimited(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


class CurrentRun:
    """The run that a handler works on.

    :param app: the app whose run it is.
    :param claim: the claim that holds the run.
    :param request_write: asks the keeper to write the last progress; with True, also to renew the
        lease.
    :param books: the bookkeeping connection that ``once`` may use while the handler works, in the
        thread that made this object.
    :param default_timezone: the time zone of runs without a definition.
    :ivar gives_back: returns whether the run must be released at the end of its step.
    :ivar limited: makes a context in which a plain handler is interrupted after *seconds*.
    :ivar interrupted_by: the last interruption of the handler, after which it must end.
    :ivar ended_by: the exception that a step has raised to end the attempt.
    :ivar output: the captured output, if it is kept.
    :ivar has_progress: whether progress was reported and is not written yet.
    :ivar at_end: functions of features, called when the app context ends without an error.
    :raises PayloadError: the run's row cannot be read.
    """

    # Class attributes are the defaults: they cost a run nothing, and most runs change few of them.
    output: Output | None = None
    at_end: Sequence[Callable[[], None]] = ()
    warning: str | None = None
    interrupted_by: BaseException | None = None
    ended_by: BaseException | None = None
    gives_back: Callable[[], bool] = staticmethod(lambda: False)
    limited: Callable[[float], AbstractContextManager[None]] = staticmethod(_unlimited)
    _requested_at = -math.inf
    # The last progress, and whether it must still be written, which the keeper's thread resets.
    _reported: Progress | None = None
    has_progress: bool = False

    def __init__(
        self,
        app: Flask,
        claim: Claim,
        request_write: Callable[[CurrentRun, bool], None],
        books: Bookkeeping,
        default_timezone: str = "UTC",
    ) -> None:
        self.app = app
        self.claim = claim
        try:
            self._payload = claim.read()
        except ValueError as error:
            raise PayloadError(str(error)) from None
        self.books = books
        self.thread: int = threading.get_ident()
        self._request_write = request_write
        self._default_timezone = default_timezone

    @property
    def id(self) -> int:
        """The run's id."""
        return self.claim.id

    @property
    def task(self) -> str:
        """The name of the run's task."""
        return self.claim.job_type

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.claim.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the run may have."""
        return self.claim.max_attempts

    @property
    def payload(self) -> dict[str, JSON]:
        """The handler's arguments, as they are stored."""
        return self._payload

    @property
    def scheduled_for(self) -> datetime:
        """The slot, or the time for which the run was enqueued; aware, UTC; never changes."""
        return self.claim.scheduled_for

    @property
    def snoozes(self) -> int:
        """How often this run was snoozed before; `Snooze` does not use up attempts."""
        return self.claim.snoozes

    @property
    def idempotency_key(self) -> str | None:
        """The run's idempotency key, if it has one."""
        return self.claim.idempotency_key

    @property
    def definition(self) -> str | None:
        """The name of the definition whose slot this is; None for an enqueued run.

        None also if the definition has been removed since.
        """
        return self._definition[0]

    @property
    def timezone(self) -> str:
        """The time zone of the run's definition; without one, ``CRONJOBS_TIMEZONE``."""
        return self._definition[1]

    @property
    def scheduled_local(self) -> datetime:
        """`scheduled_for` in `timezone`: its date is the day that the schedule means."""
        from ..schedule.cron_text import parse_zone

        return self.scheduled_for.astimezone(parse_zone(self.timezone))

    @cached_property
    def batch(self) -> BatchCounts | None:
        """The counts of the batch whose ``then`` is this run; None for every other run."""
        from .features import fact

        counts: BatchCounts | None = fact("batch", self)
        return counts

    @cached_property
    def feature_objects(self) -> dict[type, Any]:
        """The objects that features keep for this attempt, by their type."""
        return {}

    @cached_property
    def _definition(self) -> tuple[str | None, str]:
        """The definition's name and time zone, read only when needed: few handlers use them."""
        id_ = self.claim.definition_id
        if id_ is None:
            return None, self._default_timezone
        from .definitions import name_and_timezone

        with self.books_here() as books:
            name_and_zone = name_and_timezone(books, id_)
        if name_and_zone is None:
            logger.warning(
                "%s: its definition has been removed, so its time zone is not known; "
                "CRONJOBS_TIMEZONE is used, which is %s",
                self.claim,
                self._default_timezone,
            )
        return name_and_zone or (None, self._default_timezone)

    @contextmanager
    def books_here(self) -> Generator[Bookkeeping]:
        """Yield a connection for this thread: `books` only in the thread that made this object."""
        from ..db.connection import Bookkeeping

        if self.thread == threading.get_ident():
            yield self.books
            return
        with Bookkeeping(self.books.engine) as books:
            yield books

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how far along the run is. Its row and the pages show this while it runs.

        :param fraction: from 0 to 1.
        :param message: a short text, shown with it; cut at 500 characters, credentials removed.
        :raises ValueError: *fraction* is not a number from 0 to 1.

        Call it as often as you like. The row is written a few times a second at most, and once when
        the handler ends, but not after the commit of ``atomic=True``.

        >>> @jobs.task
        ... def import_prices():
        ...     for part in range(4):
        ...         current_run.progress((part + 1) / 4, f"part {part + 1} of 4")
        >>> run = import_prices.using(commit=True).enqueue()
        >>> drain(jobs).succeeded
        1
        >>> run.progress_message
        'part 4 of 4'
        """
        self.raise_again()
        try:
            is_valid = 0 <= fraction <= 1
        except TypeError:
            is_valid = False
        if not is_valid:
            raise ValueError(f"progress: the fraction is {fraction!r}. Give a number from 0 to 1.")
        stored_message = None if message is None else str(message)[:READ_CHARACTERS]
        self._reported = float(fraction), stored_message
        self.has_progress = True
        now = time.monotonic()
        if now - self._requested_at >= PROGRESS_SECONDS or fraction >= 1:
            self._requested_at = now
            self._request_write(self, False)

    def heartbeat(self) -> None:
        """Renew the lease now.

        The worker does so regularly. Call this only in code that keeps the worker's threads from
        running.

        >>> @jobs.task
        ... def crunch():
        ...     current_run.heartbeat()
        >>> run = crunch.using(commit=True).enqueue()
        >>> drain(jobs).succeeded
        1
        """
        self.raise_again()
        self._request_write(self, True)

    def warn(self, warning: str) -> None:
        """Log *warning*, and keep it for the run's row if the run succeeds."""
        logger.warning("%s: %s", self.claim, warning)
        self.warning = warning if self.warning is None else f"{self.warning} {warning}"

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the interruption or decision that has caused *error*; *error* itself if none has.

        If a flush, a rollback or a query is interrupted, SQLAlchemy may raise an error of its own
        about its unexpected state. A group of asyncio's tasks raises a group of exceptions.
        """
        sole = error
        while isinstance(sole, _GROUP) and len(cast(Any, sole).exceptions) == 1:
            (sole,) = cast(Any, sole).exceptions
        if isinstance(sole, (Discard, RetryLater, Snooze)):
            return sole
        from ..db.errors import is_of_database

        for cause in (self.ended_by, self.interrupted_by):
            if cause is not None and _is_only(error, cause):
                return cause
        cause = self.interrupted_by
        return cause if cause is not None and is_of_database(error) else error

    def raise_again(self, at_end: bool = False) -> None:
        """Raise the interruption of the handler again, if the handler has swallowed it.

        It is not raised while it is being handled, as in a ``finally``, nor in another thread.

        :param at_end: whether the handler has returned. If so, only `ended_by` is raised, since a
            step has already decided that the attempt must end.
        :raises BaseException: the interruption that the handler has swallowed.
        """
        error = self.ended_by or (None if at_end else self.interrupted_by)
        if error is None or threading.get_ident() != self.thread or _is_handled(error):
            return
        raise error

    def write_progress(self, write: Callable[[Claim, float, str | None], object]) -> None:
        """Pass the last progress to *write*, unless it was written already.

        Only the keeper's thread may call this. If *write* raises, the error is raised here, and the
        progress is written later.
        """
        if self.has_progress and (reported := self._reported):
            # Reset it first, so that progress reported meanwhile is written next time.
            self.has_progress = False
            try:
                write(self.claim, *_shown(reported))
            except BaseException:
                self.has_progress = True
                raise

    @property
    def reported(self) -> Progress | None:
        """The last progress, whether it was written or not. Any thread may read it."""
        reported = self._reported
        return None if reported is None else _shown(reported)


def _is_handled(error: BaseException) -> bool:
    """Return whether *error* is being handled here; async handlers see it as a cancellation."""
    exception = sys.exc_info()[1]
    while exception is not None:
        if exception is error or type(exception).__name__ == "CancelledError":
            return True
        exception = exception.__context__
    return False


#: New in Python 3.11.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


def _is_only(error: BaseException, cause: BaseException) -> bool:
    """Return whether *error* is *cause*, or a group of exceptions that contains nothing else."""
    if isinstance(error, _GROUP):
        return all(_is_only(inner, cause) for inner in cast(Any, error).exceptions)
    return error is cause


def _shown(progress: Progress) -> Progress:
    # Redact the message here, not in `progress`, which a handler may call very often.
    fraction, message = progress
    return fraction, message and safe_text(message, READ_CHARACTERS)[:SHOWN_CHARACTERS]


#: The run whose handler runs in this context.
run_here: ContextVar[CurrentRun] = ContextVar("flask_cronjobs.current_run")

current_run: CurrentRun = cast(
    CurrentRun,
    LocalProxy(
        run_here,
        unbound_message=(
            "current_run exists only while a worker runs a handler. A plain call of the task has "
            "no run. Check `flask_cronjobs.in_run()` first."
        ),
    ),
)
"""The `CurrentRun` of the running handler. Outside a handler, using it is a `RuntimeError`."""


def in_run() -> bool:
    """Return whether a handler is running here, so that `current_run` can be used.

    >>> in_run()
    False
    """
    return run_here.get(None) is not None


def in_worker() -> bool:
    """Return whether this process executes handlers.

    It does if it is ``flask jobs tick``, ``flask jobs work`` or ``celery worker``. Call this in
    ``create_app`` to set up what only the web server or only the jobs need.

    >>> in_worker()
    False
    """
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.stem
    return (
        ("jobs", "tick") in pairwise(sys.argv)
        or ("jobs", "work") in pairwise(sys.argv)
        or (name == "celery" and "worker" in sys.argv)
    )


def in_event_loop() -> bool:
    """Return whether this thread runs an event loop, which a wait would block."""
    import asyncio

    with suppress(RuntimeError):
        return bool(asyncio.get_running_loop())
    return False


def running() -> CurrentRun | None:
    """Return the run whose handler runs in this context, or None."""
    return run_here.get(None)


def warn(warning: str) -> None:
    """Log *warning*; inside a run, keep it for the run's row, too."""
    run = running()
    if run is None:
        logger.warning("%s", warning)
    else:
        run.warn(warning)
