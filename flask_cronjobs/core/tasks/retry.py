"""Decide whether a failed run is retried, and after what delay."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from ...config import FLAG, Kind, choice, is_number, whole
from ...errors import MAX_DELAY_SECONDS, TaskError

Backoff: TypeAlias = Literal["exponential", "linear", "quadratic", "fixed"]
ExceptionTypes: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...]"

#: A policy of your own: takes the attempt that failed (from 1) and its exception, and returns the
#: seconds to wait, or None to give up.
RetryCallable: TypeAlias = Callable[[int, BaseException], "float | None"]

_GROWTH: dict[str, Callable[[int], float]] = {
    # The exponent is limited, so that attempt 2000 gives a long delay and not an OverflowError.
    "exponential": lambda attempt: 2.0 ** min(attempt - 1, 60),
    "linear": lambda attempt: float(attempt),
    "quadratic": lambda attempt: float(attempt * attempt),
    "fixed": lambda attempt: 1.0,
}


def _are_exceptions(value: object) -> bool:
    members = cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,))
    return all(isinstance(member, type) and issubclass(member, BaseException) for member in members)


_DELAY = Kind(
    lambda value: is_number(value, 0, MAX_DELAY_SECONDS), f"seconds from 0 to {MAX_DELAY_SECONDS}"
)
_EXCEPTIONS = Kind(_are_exceptions, "exception classes")
_KINDS = {
    "max_attempts": whole(1, 1000),
    "backoff": choice(*_GROWTH),
    **dict.fromkeys(("base", "cap"), _DELAY),
    **dict.fromkeys(("on", "not_on"), _EXCEPTIONS),
    "jitter": FLAG,
}


@dataclass(frozen=True)
class Retry:
    """A retry policy.

    :param max_attempts: how many attempts a run has in all, from 1.
    :param backoff: how the delay grows: ``"exponential"`` (1, 2, 4, 8 … times *base*), ``"linear"``
        (1, 2, 3 …), ``"quadratic"`` (1, 4, 9 …) or ``"fixed"``.
    :param base: seconds before the second attempt.
    :param cap: the longest delay, in seconds.
    :param jitter: choose each delay at random between half of it and all of it, so that runs that
        failed together are not retried together.
    :param on: retry only these exceptions; after any other one, the run is dead at once. A lost
        worker or lease (`WorkerLost`, `LeaseLost`) is retried whatever *on* and *not_on* say.
    :param not_on: never retry these exceptions.
    :raises TaskError: a value is not valid.

    >>> @jobs.task(retry=Retry(max_attempts=5, base=60, not_on=KeyError))
    ... def charge(invoice_id): ...
    """

    max_attempts: int = 10
    backoff: Backoff = "exponential"
    base: float = 10.0
    cap: float = 3600.0
    jitter: bool = True
    on: ExceptionTypes = BaseException
    not_on: ExceptionTypes = ()

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            kind.check(f"Retry: {name}", getattr(self, name))

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """Return how many seconds to wait after *attempt* (from 1) failed with *error*.

        :returns: from 0 to *cap*, or None to give up now. It does not consider *max_attempts*: the
            caller compares the attempt with the run's ``max_attempts``.

        >>> Retry(base=10, jitter=False).delay(3, OSError("no network"))
        40.0
        >>> Retry(not_on=KeyError).delay(1, KeyError("name")) is None
        True
        """
        if isinstance(error, self.not_on) or not isinstance(error, self.on):
            return None
        seconds = min(self.cap, self.base * _GROWTH[self.backoff](attempt))
        return random.uniform(seconds / 2, seconds) if self.jitter else seconds


class CallableRetry(NamedTuple):
    """A policy from a callable, with the default number of attempts.

    :param policy: called with the attempt and its exception; returns seconds, or None to give up.
    :param max_attempts: how many attempts a run has in all.
    """

    policy: RetryCallable
    max_attempts: int

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """Return what the callable returns, limited to a year.

        :raises BaseException: what the callable raises; the caller uses the default policy then.
        """
        seconds = self.policy(attempt, error)
        if seconds is not None and math.isnan(seconds):
            raise ValueError("the retry policy returned nan")
        return None if seconds is None else min(max(float(seconds), 0.0), float(MAX_DELAY_SECONDS))


RetryPolicy: TypeAlias = "Retry | CallableRetry"


def retry_policy(
    retry: Retry | RetryCallable | int | bool | None, default_attempts: int
) -> RetryPolicy:
    """Return the policy that a task's ``retry=`` names.

    :param retry: a `Retry`, a number of attempts, ``False`` (one attempt), ``None`` or ``True``
        (the default policy), or a callable.
    :param default_attempts: how many attempts a run has if *retry* does not give a number.
    :raises TaskError: *retry* is anything else.
    """
    if isinstance(retry, Retry):
        return retry
    if retry is None or retry is True:
        return _attempts(default_attempts)
    if retry is False:
        return _attempts(1)
    if isinstance(retry, int):
        return _attempts(retry)
    if callable(retry):
        return CallableRetry(retry, default_attempts)
    raise TaskError(
        f"retry is {retry!r}. Give a Retry, a number of attempts, False, or a callable."
    )


@lru_cache
def _attempts(number: int) -> Retry:
    return Retry(max_attempts=number)


def check_retry(retry: Retry | RetryCallable | int | bool | None) -> None:
    """Check a task's ``retry=``.

    :raises TaskError: it is not a policy, or it is a callable that does not take two arguments.
    """
    policy = retry_policy(retry, 10)
    if not isinstance(policy, CallableRetry):
        return
    if why := why_uncallable(policy.policy, 1, Exception()):
        raise TaskError(
            f"retry cannot be called with an attempt and its exception: {why}. Write, for "
            "instance, lambda attempt, error: 60 * attempt."
        )


def why_uncallable(function: Any, *args: object) -> str | None:
    """Return why *function* cannot be called with *args*; None if it can or if that is unknown."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # A callable written in C may have no signature.
    return None
