"""What an attempt came to: the exception that ended it, made an `Outcome`."""

from __future__ import annotations

from dataclasses import replace

from ...errors import Cancelled, Discard, RetryLater, ShuttingDown, TimedOut, WorkerLost
from ...log import logger
from ...registry.handler import Handler
from ...registry.retry import Retry
from ...state import State
from ...text import error_text, stack_text, type_name
from ...types import Claim, Outcome


def failure(
    task: Handler | None, state: State, claim: Claim, error: BaseException, seconds: float
) -> Outcome:
    """The outcome of an attempt that ended with *error*.

    :param task: None if this process does not know it; then the default policy holds.
    """
    outcome = Outcome(
        claim.id,
        claim.token,
        "failed",
        claim.attempt,
        claim.job_type,
        error=error_text(error),
        error_type=type_name(error),
        seconds=seconds,
    )
    if isinstance(error, ShuttingDown):
        return replace(outcome, kind="released")
    if isinstance(error, (Discard, Cancelled)):
        return replace(outcome, kind="cancelled")
    delay = _delay(task, state, claim, error)
    if not isinstance(error, (RetryLater, TimedOut)):
        outcome = replace(outcome, stack=stack_text(error))
    if delay is None or claim.attempt >= claim.max_attempts:
        return replace(outcome, kind="dead")
    return replace(outcome, delay=delay)


def _delay(task: Handler | None, state: State, claim: Claim, error: BaseException) -> float | None:
    if isinstance(error, RetryLater):
        return error.delay
    policy = task.retry_policy(state.settings.max_attempts) if task is not None else Retry()
    if isinstance(error, WorkerLost) and isinstance(policy, Retry):
        policy = replace(policy, on=BaseException, not_on=())  # No exception of the handler's.
    try:
        return policy.delay(claim.attempt, error)
    except Exception:
        logger.exception("task %s: its retry policy raised; the default is used", claim.job_type)
        return Retry().delay(claim.attempt, error)
