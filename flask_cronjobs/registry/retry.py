"""How long a failed run waits, and whether it is tried again at all. Pure."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from ..errors import MAX_DELAY, TaskError

Backoff: TypeAlias = Literal["exponential", "linear", "quadratic", "fixed"]
ExceptionTypes: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...]"

#: A policy of your own: given the attempt that failed (from 1) and its exception, the seconds
#: to wait, or None to give up.
RetryCallable: TypeAlias = Callable[[int, BaseException], "float | None"]

_GROWTH: dict[str, Callable[[int], float]] = {
    # The exponent is bounded so that attempt 2000 is a long delay and not an OverflowError.
    "exponential": lambda attempt: 2.0 ** min(attempt - 1, 60),
    "linear": lambda attempt: float(attempt),
    "quadratic": lambda attempt: float(attempt * attempt),
    "fixed": lambda attempt: 1.0,
}


@dataclass(frozen=True)
class Retry:
    """A retry policy.

    :param max_attempts: how often a run is tried in all, from 1.
    :param backoff: how the delay grows with the attempt: ``"exponential"`` (base, 2, 4, 8 … times
        base), ``"linear"`` (1, 2, 3 … times), ``"quadratic"`` (1, 4, 9 …
        times) or ``"fixed"``.
    :param base: seconds before the second attempt.
    :param cap: seconds that no delay exceeds.
    :param jitter: spread each delay evenly over its upper half, so that runs which failed together
        do not come back together.
    :param on: only these exceptions are tried again; others end the run dead at once.
    :param not_on: these exceptions are never tried again.
    :raises TaskError: a value that cannot be right.
    """

    max_attempts: int = 10
    backoff: Backoff = "exponential"
    base: float = 10.0
    cap: float = 3600.0
    jitter: bool = True
    on: ExceptionTypes = BaseException
    not_on: ExceptionTypes = ()

    def __post_init__(self) -> None:
        check_attempts(self.max_attempts, "Retry: max_attempts")
        if self.backoff not in _GROWTH:
            raise TaskError(
                f"Retry: backoff is {self.backoff!r}. Write one of {', '.join(_GROWTH)}."
            )
        for name, value in (("base", self.base), ("cap", self.cap)):
            if not 0 <= value <= MAX_DELAY:
                raise TaskError(f"Retry: {name} is {value!r}. Give seconds from 0 to {MAX_DELAY}.")
        for name, types in (("on", self.on), ("not_on", self.not_on)):
            _check_types(types, name)

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after *attempt* (from 1) failed with *error*; None means give up now.

        :returns: from 0 to *cap*.

        Whether attempts are used up is the run's to know, not this policy's.
        """
        if isinstance(error, self.not_on) or not isinstance(error, self.on):
            return None
        seconds = min(self.cap, self.base * _GROWTH[self.backoff](attempt))
        return random.uniform(seconds / 2, seconds) if self.jitter else seconds


@dataclass(frozen=True)
class CallableRetry:
    """A policy from a callable, under the default number of attempts.

    :param policy: called with the attempt and its exception; returns seconds, or None to give up.
    :param max_attempts: how often a run is tried in all.
    """

    policy: RetryCallable
    max_attempts: int

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait as the callable says; a policy that fails falls back to the default."""
        seconds = self.policy(attempt, error)
        if seconds is not None and math.isnan(seconds):
            raise ValueError("the retry policy returned nan")
        return None if seconds is None else min(max(float(seconds), 0.0), float(MAX_DELAY))


RetryPolicy: TypeAlias = "Retry | CallableRetry"


def retry_policy(
    retry: Retry | RetryCallable | int | bool | None, default_attempts: int
) -> RetryPolicy:
    """The policy that a task's ``retry=`` names.

    :param retry: a `Retry`, a number of attempts, ``False`` (one attempt), ``None`` or ``True``
        (the default policy), or a callable.
    :param default_attempts: attempts where *retry* does not say.
    :raises TaskError: anything else.
    """
    if isinstance(retry, Retry):
        return retry
    if retry is None or retry is True:
        return Retry(max_attempts=default_attempts)
    if retry is False:
        return Retry(max_attempts=1)
    if isinstance(retry, int):
        return Retry(max_attempts=retry)
    if callable(retry):
        return CallableRetry(retry, default_attempts)
    raise TaskError(
        f"retry is {retry!r}. Give a Retry, a number of attempts, False, or a callable."
    )


def check_retry(retry: Retry | RetryCallable | int | bool | None) -> None:
    """Check what a task's ``retry=`` says.

    :raises TaskError: it names no policy, or is a callable that cannot be called as one.
    """
    policy = retry_policy(retry, 10)
    if isinstance(policy, CallableRetry):
        try:
            inspect.signature(policy.policy).bind(1, Exception())
        except TypeError as error:
            raise TaskError(
                f"retry cannot be called with an attempt and its exception: {error}. Write, for "
                "instance, lambda attempt, error: 60 * attempt."
            ) from None
        except ValueError:
            pass  # A callable in C need not tell its signature.


def check_attempts(value: object, what: str) -> int:
    """*value* as a number of attempts.

    :raises TaskError: not a whole number from 1 to 1000.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1000:
        raise TaskError(f"{what} is {value!r}. Give a whole number from 1 to 1000.")
    return value


def _check_types(types: object, name: str) -> None:
    members = cast("tuple[object, ...]", types if isinstance(types, tuple) else (types,))
    for member in members:
        if not (isinstance(member, type) and issubclass(member, BaseException)):
            raise TaskError(f"Retry: {name} holds {member!r}. Give exception classes.")
