"""Blinker signals. An exception that a receiver raises is logged, and has no other effect.

The sender is the Flask app, whose context is pushed for each receiver. A receiver gets one keyword
argument: ``claim`` (`types.Claim`) when a run starts, ``outcome`` (`types.Outcome`) when it ends,
``slot`` (`types.RecordedSlot`) for a skipped slot, ``report`` (`types.TickReport`) for a tick.

Receivers of a run's start are called in the handler's thread, and the timeout includes them.
Receivers of a run's end are called one after the other in a separate thread: a slow one delays the
next, but not the heartbeats. If a thousand outcomes wait for receivers, the worker stops claiming.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from inspect import iscoroutine
from typing import Any, TypeAlias

from blinker import NamedSignal, Namespace
from flask import Flask

from .errors import Interruption
from .log import LEASE_LOST, log_run, logger
from .types import Outcome

News: TypeAlias = Callable[[str, Any], None]
"""A function that receives the events of a running tick as a kind and a value:

| kind | value |
|---|---|
| ``slot`` | a `RecordedSlot` as a dict, which was recorded as a run or as skipped |
| ``outcome`` | the `run_news` of a recorded outcome |
| ``lost`` | the `run_news` of an outcome that was dropped because the lease was lost |
| ``replaced`` | a text: a worker ended at a limit and is replaced |

All values are JSON. `notify` calls the function in the thread that has the news, never in the
keeper's. In a process pool, the parent process calls it. The function must not block for long,
since the parent also reads from its workers.
"""

_signals = Namespace()

run_started: NamedSignal = _signals.signal("run-started")
"""A handler is about to be called. The receiver gets ``claim``."""

run_succeeded: NamedSignal = _signals.signal("run-succeeded")
"""A run succeeded, and this is recorded. The receiver gets ``outcome``."""

run_failed: NamedSignal = _signals.signal("run-failed")
"""An attempt failed, and the run will be retried. The receiver gets ``outcome``, which has the
``exception``."""

run_dead: NamedSignal = _signals.signal("run-dead")
"""A run failed and will not be retried. The receiver gets ``outcome``, which has the
``exception``."""

run_cancelled: NamedSignal = _signals.signal("run-cancelled")
"""A run was cancelled by an operator or discarded by its handler. The receiver gets ``outcome``,
whose token is empty if no worker held the run."""

lease_lost: NamedSignal = _signals.signal("lease-lost")
"""An outcome was dropped because the lease had ended and the run was reclaimed. The receiver gets
``outcome``."""

slot_skipped: NamedSignal = _signals.signal("slot-skipped")
"""One slot or several consecutive ones were recorded as skipped. The receiver gets ``slot``."""

tick_finished: NamedSignal = _signals.signal("tick-finished")
"""A tick ended, or a minute of a resident worker. The receiver gets ``report``."""

#: The log level and the signal of each kind of outcome.
_OUTCOMES: dict[str, tuple[int, NamedSignal | None]] = {
    "succeeded": (logging.INFO, run_succeeded),
    "failed": (logging.WARNING, run_failed),
    "dead": (logging.ERROR, run_dead),
    "cancelled": (logging.WARNING, run_cancelled),
    "released": (logging.INFO, None),
    "snoozed": (logging.INFO, None),
    LEASE_LOST: (logging.WARNING, lease_lost),
}


def send(signal: NamedSignal, app: Flask, **details: object) -> None:
    """Send *signal* for *app*, and log an exception that a receiver raises."""
    if not signal.receivers:
        return
    for receiver in signal.receivers_for(app):
        try:
            with app.app_context():
                _refuse_coroutine(receiver(app, **details))
        except BaseException as error:
            if _is_meant_for_the_caller(error):
                raise
            logger.exception("A receiver of the signal %r raised; the run continues", signal.name)


def _refuse_coroutine(returned: object) -> None:
    """Refuse what an asynchronous receiver has *returned*, since nothing would await it.

    :raises TypeError: it is a coroutine.
    """
    if iscoroutine(returned):
        returned.close()
        raise TypeError(
            f"The receiver {returned.__qualname__} is an async def, so none of its lines ran. "
            "Connect a plain function, which may call asyncio.run(…)."
        )


def _is_meant_for_the_caller(error: BaseException) -> bool:
    """Return whether *error* is a timeout or Ctrl-C that arrived while the receiver ran.

    Signal handlers raise only in the main thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and isinstance(error, (Interruption, KeyboardInterrupt))


def announce(app: Flask, outcome: Outcome, recorded: bool) -> None:
    """Log *outcome* and send its signal.

    :param recorded: False if it was dropped because the lease was lost.
    """
    event = outcome.kind if recorded else LEASE_LOST
    level, signal = _OUTCOMES[event]
    if logger.isEnabledFor(level):
        log_run(
            level,
            event,
            task=outcome.job_type,
            run_id=outcome.id,
            attempt=outcome.attempt,
            worker=outcome.token,
            seconds=outcome.seconds,
            why=outcome.error_type if recorded else f"the outcome {outcome.kind} is dropped",
            error=outcome.exception if recorded else None,
            stack=outcome.stack or f"{outcome.error_type}: {outcome.error}",
        )
    if signal is not None and signal.receivers:
        send(signal, app, outcome=outcome)


def notify(news: News, kind: str, value: Any) -> None:
    """Call *news*; if it raises, log the exception and continue."""
    try:
        news(kind, value)
    except Exception as error:  # A full disk, a closed pipe.
        logger.error("A report of a slot or a run could not be printed: %r", error)


def unheard(kind: str, value: Any) -> None:
    """Ignore all news."""


def run_news(outcome: Outcome) -> dict[str, object]:
    """Return *outcome* as a dict, as it appears in `News` and in the JSON of a tick."""
    return {
        "run_id": outcome.id,
        "task": outcome.job_type,
        "attempt": outcome.attempt,
        "outcome": outcome.kind,
        "ms": round(outcome.seconds * 1000, 1),
        "error_type": outcome.error_type,
        "error": outcome.error,
    }
