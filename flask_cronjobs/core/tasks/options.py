"""The options of tasks and of enqueueing, and their valid values. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeGuard, get_args

from ...config import FLAG, Kind, choice, is_number, is_url, whole
from ...errors import EARLIEST, FARTHEST, MAX_DELAY_SECONDS, TaskError
from ...text import is_printable, pattern
from ...types import MAX_ID, Catchup, Order, Overlap, Replace, UniqueWhile
from .rate import fault_of_rate, is_rate
from .retry import Retry, RetryCallable

#: The longest timeout of a task, in seconds (30 days).
MAX_TIMEOUT_SECONDS = 30 * 86400.0

#: Called with a `CurrentRun`; returns the context manager around its handler.
Around: TypeAlias = Callable[..., AbstractContextManager[object]]
#: An `Around`, or a function with one ``yield``, as users may write it.
AroundHook: TypeAlias = Around | Callable[..., Iterator[object]]

#: Matches braces in a text that should have been an f-string.
_UNFILLED = pattern(r"\{[^\W\d]\w*([.\[!:][^{}]*)?\}")


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
    unique: str | None = None
    unique_while: UniqueWhile | None = None
    rate: str | None = None
    rate_key: str | None = None
    burst: int | None = None
    label: str | None = None

    @property
    def columns(self) -> dict[str, object]:
        """The values of `RunPolicy` that follow from one option each."""
        return {"queue": self.queue, "priority": self.priority, "strict": self.order is not None}


@dataclass(kw_only=True, slots=True)
class RunPolicy:
    """The values that a run gets from its task or definition: columns of both tables."""

    job_type: str
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 10
    strict: bool = False
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_key: str | None = None
    label: str | None = None

    @property
    def policy(self) -> dict[str, Any]:
        """The values of this `RunPolicy` by name, without those that a subclass adds."""
        return {name: getattr(self, name) for name in RunPolicy.__slots__}


#: The schedule options with which a task may be declared, and their defaults.
SCHEDULE_OPTIONS: Mapping[str, object] = {
    "payload": None,
    "timezone": None,
    "catchup": "latest",
    "overlap": "skip",
    "ping": None,
}


class EnqueueOptions(NamedTuple):
    """How runs are enqueued; see `Task.using`. None stands for the task's own option."""

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
    def own_values(self) -> dict[str, Any]:
        """The values of a run that these options set.

        ``unique_while`` is None if the key is held while the row is kept.
        """
        unique_while = None if self.unique_while == "kept" else self.unique_while
        names = ("queue", "priority", "max_attempts", "idempotency_key", "run_at", "delay")
        return {
            "unique_while": "waiting" if self.replace else unique_while,
            **{name: value for name in names if (value := getattr(self, name)) is not None},
        }

    def check(self) -> None:
        """Check the values.

        :raises TaskError: a value is not valid.
        """
        if self.run_at is not None and self.delay is not None:
            raise TaskError("run_at and delay were both given. Give one of them.")
        check_options(zip(self._fields, self, strict=True))
        self.check_key_options()

    def check_key_options(self) -> None:
        """Check that the options about the key agree, as part of `check`."""
        if self.replace and self.unique_while not in (None, "waiting"):
            raise TaskError(
                f"replace was given with unique_while={self.unique_while!r}, but a run that has "
                "begun is never changed. Give unique_while='waiting', or leave it out."
            )


AS_THE_TASK_SAYS = EnqueueOptions()


def is_moment(value: object) -> TypeGuard[datetime]:
    """Return whether *value* is an aware time that both databases can store."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return False
    return EARLIEST <= value <= FARTHEST


def is_id(value: object) -> TypeGuard[int]:
    """Return whether *value* may be the id of a run. SQLite would take True for 1."""
    return type(value) is int and 0 < value <= MAX_ID


def is_key(value: object, most: int) -> TypeGuard[str]:
    """Return whether *value* is a text of 1 to *most* printable characters, not only spaces.

    Other characters could forge log lines, and forms cannot send them.
    """
    if not isinstance(value, str) or not value.strip():
        return False
    return len(value) <= most and is_printable(value)


def _text(most: int) -> Kind:
    expected = f"a string of 1 to {most} printable characters, not only spaces"
    return Kind(lambda value: is_key(value, most), expected)


def _key(most: int) -> Kind:
    """Return the kind of texts without arguments in braces, since nothing would fill these in."""
    text = _text(most)
    return Kind(
        lambda value: is_key(value, most) and not ("{" in value and _UNFILLED().search(value)),
        f"{text.wanted}. Write an f before the string if it has arguments in braces, as in "
        'f"user:{user_id}"',
    )


#: The kind of texts with arguments to fill in.
_FORMAT = Kind(
    lambda value: is_key(value, 500),
    f"{_text(500).wanted}, with arguments in braces, such as 'import:{{shop_id}}'",
)
MOMENT = Kind(
    is_moment,
    "an aware time, with a time zone and in the years 1000 to 9999, such as "
    "datetime.now(timezone.utc) + timedelta(hours=1)",
)
_ATTEMPTS = whole(1, 1000)
_DELAY = Kind(
    lambda value: is_number(value, 0, MAX_DELAY_SECONDS),
    f"seconds from 0 to {MAX_DELAY_SECONDS} (a year)",
)
#: The valid values of each option of tasks, schedules and runs.
_KINDS: Mapping[str, Kind] = {
    "queue": _key(100),
    "priority": whole(-32768, 32767),
    "max_attempts": _ATTEMPTS,
    "timeout": Kind(
        lambda value: is_number(value, 0, MAX_TIMEOUT_SECONDS) and value > 0,
        "seconds, at most 30 days",
    ),
    "concurrency": _ATTEMPTS,
    "atomic": FLAG,
    "commit": FLAG,
    "async_at_once": whole(1, 1000),
    "keep_output": FLAG,
    "order": choice(*get_args(Order)),
    "rate": Kind(
        is_rate,
        "a number and a time, such as '100/minute', '5/s', '1000/hour' or '20/10s'",
        hint=fault_of_rate,
    ),
    **dict.fromkeys(("concurrency_key", "unique", "rate_key"), _FORMAT),
    "burst": whole(1, 10_000),
    "run_at": MOMENT,
    "delay": _DELAY,
    "idempotency_key": _key(500),
    "unique_while": choice(*get_args(UniqueWhile)),
    "label": _text(500),
    "replace": choice("payload", "run_at", True, False),
    "catchup": choice(*get_args(Catchup)),
    "overlap": choice(*get_args(Overlap)),
    "ping": Kind(
        lambda value: is_url(value) and is_key(value, 1000),
        "a URL that starts with http:// or https://, without spaces, or None for no ping",
        is_secret=True,
    ),
}


def check_options(options: Iterable[tuple[str, object]], whose: str = "") -> None:
    """Check each of *options*; None stands for an option that is not given.

    :param whose: the start of the message.
    :raises TaskError: a value is not valid.
    """
    for name, value in options:
        if value is not None and name in _KINDS:
            _KINDS[name].check(f"{whose}{name}", value)


def check_key(what: str, value: object, most: int) -> None:
    """Check that *value* is a text of 1 to *most* printable characters, without braces to fill in.

    :param what: the name of the value in the message.
    :raises TaskError: the value is not valid.
    """
    _key(most).check(what, value)


def check_delay(what: str, value: object) -> None:
    """Check that *value* is a number of seconds, at most a year.

    :param what: the name of the value in the message.
    :raises TaskError: the value is not valid.
    """
    _DELAY.check(what, value)


def check_function(whose: str, func: object, example: str) -> None:
    """Check that *func* is callable, since a user may have passed the result of ``charge()``.

    :param whose: the start of the message.
    :param example: the end of the message.
    """
    if not callable(func):
        kind = "None" if func is None else f"of type {type(func).__name__}"
        raise TypeError(
            f"{whose}: the function is {kind}. Give the function and its arguments, not its "
            f"result: {example}"
        )


def check_name(name: object, what: str) -> None:
    """Check that *name* is the name of a task or a definition.

    :param what: which of the two, for the message.
    :raises TaskError: it is not a text of 1 to 200 printable characters.
    """
    _text(200).check(f"The {what} name", name)
