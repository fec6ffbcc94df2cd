"""Options of tasks, and of enqueueing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeGuard, get_args

from ..errors import EARLIEST, FARTHEST, MAX_DELAY, TaskError
from ..types import OnDead, Order, Replace, UniqueWhile, is_number, is_whole
from .retry import Retry, RetryCallable, check_attempts

#: Is called with a `CurrentRun`, and returns what its handler is called inside of.
Around: TypeAlias = Callable[..., AbstractContextManager[object]]
#: The same, as users write it: also a function with one ``yield``.
AroundHook: TypeAlias = Around | Callable[..., Iterator[object]]

#: What a text has in braces that was to be an f-string.
_UNFILLED = re.compile(r"\{[^\W\d]\w*([.\[!:][^{}]*)?\}")


class TaskOptions(NamedTuple):
    """How a task's runs are queued, limited and retried; see `CronJobs.task`."""

    queue: str = "default"
    priority: int = 0
    retry: Retry | RetryCallable | int | bool | None = None
    timeout: float | None = None
    concurrency: int | None = None
    concurrency_key: str | None = None
    atomic: bool = False
    async_at_once: int | None = None
    around: Around | None = None
    keep_output: bool | None = None
    order: Order | None = None
    on_dead: OnDead | None = None
    unique: str | None = None
    unique_while: UniqueWhile | None = None


class EnqueueOptions(NamedTuple):
    """How runs are enqueued; see `Task.using`. None means: as the task's own options say."""

    run_at: datetime | None = None
    delay: float | None = None
    idempotency_key: str | None = None
    unique_while: UniqueWhile | None = None
    replace: Replace = False
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    commit: bool = False

    @property
    def own_columns(self) -> dict[str, object]:
        """The columns that a task has no option for: the key, and when the run is due.

        ``unique_while`` is None if the key is held as long as the row is kept.
        """
        held = None if self.unique_while == "kept" else self.unique_while
        return {
            "idempotency_key": self.idempotency_key,
            "unique_while": "waiting" if self.replace else held,
            "run_at": self.run_at,
            "delay": self.delay or 0.0,
        }

    def check(self) -> None:
        """Check the values.

        :raises TaskError: a value is not valid.
        """
        if self.run_at is not None and self.delay is not None:
            raise TaskError("run_at and delay were both given. Give one of them.")
        if self.run_at is not None and not is_moment(self.run_at):
            raise TaskError(
                f"run_at is {str(self.run_at)!r}, not a time with a time zone, in the years 1000 "
                "to 9999. Give an aware time, such as datetime.now(timezone.utc) + "
                "timedelta(hours=1), or leave it out to run at once."
            )
        if self.delay is not None and not is_number(self.delay, 0, MAX_DELAY):
            raise TaskError(
                f"delay is {self.delay!r}. Give seconds from 0 to {MAX_DELAY} (a year)."
            )
        if self.max_attempts is not None:
            check_attempts(self.max_attempts, "max_attempts")
        if self.priority is not None and not is_whole(self.priority, -32768, 32767):
            raise TaskError(f"priority is {self.priority!r}. Give a whole number, -32768 to 32767.")
        self.check_key_options()
        if self.queue is not None:
            check_key("queue", self.queue, 100)
        if self.idempotency_key is not None:
            check_key("idempotency_key", self.idempotency_key, 500)

    def check_key_options(self) -> None:
        """Check what is said about the key, as `check` does."""
        if self.unique_while not in (None, *get_args(UniqueWhile)):
            raise TaskError(
                f"unique_while is {self.unique_while!r}. Give 'kept', 'pending' or 'waiting'."
            )
        if self.replace not in (False, True, "payload", "run_at"):
            raise TaskError(
                f"replace is {self.replace!r}. Give 'payload', 'run_at', or True for both."
            )
        if self.replace and self.unique_while not in (None, "waiting"):
            raise TaskError(
                f"replace was given with unique_while={self.unique_while!r}, but a run that has "
                "begun is never changed. Give unique_while='waiting', or leave it out."
            )


@dataclass(frozen=True)
class NewRun:
    """One run for `Task.enqueue_many`, with options of its own. None means: as for the others.

    :param payload: the handler's keyword arguments.
    :param run_at: not before this time (aware).
    :param delay: not before so many seconds from now, by the database's clock.
    :param idempotency_key: at most one run has it, for as long as `Task.using` says.
    :param priority: higher is claimed first.
    """

    payload: Mapping[str, object] = field(default_factory=dict[str, object])
    _: KW_ONLY
    run_at: datetime | None = None
    delay: float | timedelta | None = None
    idempotency_key: str | None = None
    priority: int | None = None

    def options(self) -> EnqueueOptions:
        """Return its options, checked.

        :raises TaskError: a value is not valid.
        """
        options = EnqueueOptions(
            run_at=self.run_at,
            delay=in_seconds(self.delay),
            idempotency_key=self.idempotency_key,
            priority=self.priority,
        )
        options.check()
        return options


def in_seconds(delay: float | timedelta | None) -> float | None:
    """Return *delay* as a number of seconds."""
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def is_moment(value: object) -> TypeGuard[datetime]:
    """Return whether *value* is an aware time that both databases write, in any time zone."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return False
    return EARLIEST <= value <= FARTHEST


def check_key(what: str, value: object, most: int) -> None:
    """Check that *value* is a text of 1 to *most* printable characters, with nothing to fill in.

    :param what: names it in the message.
    :raises TaskError: it is not.
    """
    text = check_text(what, value, most)
    if "{" in text and (unfilled := _UNFILLED.search(text)):
        raise TaskError(
            f"{what} is {text!r}, with {unfilled[0]} as it stands there, so it would be the same "
            f'for all. Write the f before the text, as in f"user:{{user_id}}".'
        )


def check_text(what: str, value: object, most: int) -> str:
    """Return *value*, checked to be a text of 1 to *most* printable characters.

    :param what: names it in the message.
    :raises TaskError: it is not.
    """
    if not is_key(value, most):
        # Other characters would forge log lines, and could not be sent by a form.
        raise TaskError(
            f"{what} is {value!r}. Give a text of 1 to {most} printable characters, not only "
            "spaces."
        )
    return value


def is_key(value: object, most: int) -> TypeGuard[str]:
    """Return whether *value* is a text of 1 to *most* printable characters, not only spaces."""
    if not isinstance(value, str) or not value.strip():
        return False
    return len(value) <= most and value.isprintable()
