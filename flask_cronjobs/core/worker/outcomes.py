"""Make the `Outcome` of an attempt from the way it ended."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

from ...db.statements import clear_chain
from ...errors import (
    Cancelled,
    Discard,
    LeaseLost,
    RetryLater,
    ShuttingDown,
    Snooze,
    Suspended,
    TimedOut,
    WorkerLost,
)
from ...log import logger
from ...text import clean
from ...text.redaction import error_text, stack_text, strip_credentials, type_name, without_values
from ...types import JSON, MAX_OUTPUT_BYTES, Claim, Outcome, OutcomeKind
from ..app_state import State
from ..current import CurrentRun
from ..tasks.retry import Retry

#: The error type of a run that succeeded, but left uncommitted work in its session.
UNCOMMITTED = "UncommittedWork"
_PACKAGE = __name__.partition(".")[0] + "."


def success(
    claim: Claim, result: JSON, warning: str | None, started: float, finalized: bool = False
) -> Outcome:
    """Return the outcome of an attempt that began at *started* and has succeeded now."""
    # Each success comes here, and a call of `_outcome` with keywords would take twice as long.
    return Outcome(
        claim.id,
        claim.token,
        "succeeded",
        claim.attempt,
        claim.job_type,
        error=warning,
        error_type=None if warning is None else UNCOMMITTED,
        result=result,
        seconds=time.monotonic() - started,
        finalized=finalized,
        definition_id=claim.definition_id,
        label=claim.label,
    )


def failure(state: State, claim: Claim, error: BaseException, seconds: float) -> Outcome:
    """Return the outcome of *claim*'s attempt, which ended with *error* after *seconds*.

    If this process does not know the task, the default retry policy applies.
    """
    outcome = _outcome(
        claim, "failed", error=error_text(error), error_type=type_name(error), seconds=seconds
    )
    if isinstance(error, Suspended) and error.delay:
        return outcome._replace(kind="snoozed", delay=error.delay)
    if isinstance(error, (ShuttingDown, Suspended)):
        return outcome._replace(kind="released")
    if isinstance(error, (Discard, Cancelled)):
        return outcome._replace(kind="cancelled")
    request = _request_of(error)
    if isinstance(request, Snooze):
        return outcome._replace(kind="snoozed", delay=request.delay, until=request.until)
    delay = request.delay if request is not None else _delay(state, claim, error)
    if request is not None and request.rate and _has_rate(state, claim):
        outcome = outcome._replace(holds_rate=True, delay=request.delay)
    outcome = _with_exception(outcome, error)
    if delay is None or claim.attempt >= claim.max_attempts:
        return outcome._replace(kind="dead")
    return outcome._replace(delay=delay)


def released(claim: Claim, unbegun: bool = True) -> Outcome:
    """Return the outcome that gives a run back without counting its attempt.

    :param unbegun: whether its handler has certainly not begun.
    """
    return _outcome(claim, "released", unbegun=unbegun)


def _outcome(claim: Claim, kind: OutcomeKind, **details: Any) -> Outcome:
    return Outcome(
        *(claim.id, claim.token, kind, claim.attempt, claim.job_type),
        definition_id=claim.definition_id,
        label=claim.label,
        **details,
    )


def _request_of(error: BaseException) -> RetryLater | Snooze | None:
    """Return the retry or snooze that *error* asks for; None if it asks for neither.

    Its attributes are checked again: a subclass in the app may not have called our ``__init__``, or
    may have changed them since. If they are invalid, this returns None.
    """
    try:
        if isinstance(error, RetryLater):
            return RetryLater(error.delay, rate=bool(getattr(error, "rate", False)))
        if isinstance(error, Snooze):
            return Snooze(getattr(error, "until", None) or error.delay)
    except Exception as trouble:
        logger.error(
            "%s does not say when to try again (%s), so the task's retry policy decides. Call "
            "super().__init__(delay) in its __init__.",
            type_name(error),
            error_text(trouble),
        )
    return None


def _has_rate(state: State, claim: Claim) -> bool:
    """Return whether the task has a rate, so that its key can be held back."""
    if claim.job_type in state.registry.rates:
        return True
    logger.error(
        "task %s: RetryLater(rate=True) was raised, but the task has no rate, so only this run "
        "waits. Declare it with rate=…, or leave rate=True out.",
        claim.job_type,
    )
    return False


def _with_exception(outcome: Outcome, error: BaseException) -> Outcome:
    """Return *outcome* with *error* and its stack, if they can be read."""
    with suppress(Exception):  # An exception's attributes may be code that raises.
        if not isinstance(error, (RetryLater, TimedOut)):
            outcome = outcome._replace(stack=stack_text(error))
        outcome = outcome._replace(exception=_without_our_frames(error))
    return outcome


def _without_our_frames(error: BaseException) -> BaseException:
    """Return *error* in a form that may be kept: its traceback begins in the app's code.

    Our own frames hold the run and its app context, so those before the first frame of other code
    are dropped. If a teardown raised, that frame belongs to the teardown, not to the handler.
    """
    clear_chain(error)
    first = error.__traceback__
    while first is not None and _is_ours(first.tb_frame):
        first = first.tb_next
    return error.with_traceback(first)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_PACKAGE)


def _delay(state: State, claim: Claim, error: BaseException) -> float | None:
    task = state.registry.tasks.get(claim.job_type)
    policy = task.retry_policy(state.settings.max_attempts) if task is not None else Retry()
    if isinstance(error, (WorkerLost, LeaseLost)):
        # The handler did not fail, so the policy is not asked whether to retry.
        plain = policy if isinstance(policy, Retry) else Retry()
        policy = replace(plain, on=BaseException, not_on=())
    number = max(1, claim.attempt - claim.forgiven)
    try:
        return policy.delay(number, error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit would end the worker at each attempt.
        logger.exception("task %s: its retry policy raised; the default is used", claim.job_type)
        return Retry().delay(number, error)


#: The first line of an output whose beginning is not kept.
LEFT_OUT = "… earlier output left out …"


def with_output(outcome: Outcome, run: CurrentRun | None) -> Outcome:
    """Return *outcome* with what the handler of *run* has printed and logged, if that is kept."""
    if run is None or run.output is None:
        return outcome
    return outcome._replace(output=safe_tail(run.output.text(), MAX_OUTPUT_BYTES) or None)


def safe_tail(text: str, limit: int) -> str:
    """Return the last *limit* bytes of *text*, from the start of a line, cleaned as errors are."""
    longer = text[-2 * limit :]  # Otherwise a credential at the cut would not be recognized.
    data = (strip_credentials(clean(without_values(longer)) or "")).encode()
    if len(data) <= limit and len(longer) == len(text):
        return data.decode()
    end = data[-limit:].decode(errors="ignore")
    return f"{LEFT_OUT}\n{end.partition(chr(10))[2] or end}"
