"""Blinker signals. A receiver that raises is logged and harms nothing.

The sender is the Flask app, whose context is pushed for each receiver. Receivers get keyword
arguments: ``claim`` (`types.Claim`) for the starts, ``outcome`` (`types.Outcome`) for the ends,
``slot`` (`types.RecordedSlot`) for a skipped slot, ``report`` (`types.TickReport`) for a tick.

Receivers of a run's start are called in the handler's thread, and its timeout ends them as well.
Receivers of a run's end are called in the keeper's thread: a slow one holds up its heartbeats.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from blinker import NamedSignal, Namespace
from flask import Flask

from .errors import Interruption
from .log import LOST, log_run, logger
from .types import Outcome

T = TypeVar("T")

_signals = Namespace()

run_started: NamedSignal = _signals.signal("run-started")
"""A handler is about to be called; ``claim``."""

run_succeeded: NamedSignal = _signals.signal("run-succeeded")
"""The outcome is recorded; ``outcome``."""

run_failed: NamedSignal = _signals.signal("run-failed")
"""An attempt failed and the run will be tried again; ``outcome``."""

run_dead: NamedSignal = _signals.signal("run-dead")
"""A run was given up; ``outcome``."""

run_cancelled: NamedSignal = _signals.signal("run-cancelled")
"""A run was cancelled, waiting or at work, or discarded by its handler; ``outcome``, whose token is
empty if nobody held the run."""

lease_lost: NamedSignal = _signals.signal("lease-lost")
"""An outcome was dropped, since the run's lease had gone to another worker; ``outcome``."""

slot_skipped: NamedSignal = _signals.signal("slot-skipped")
"""A slot, or a gap of several, was recorded as skipped; ``slot``."""

tick_finished: NamedSignal = _signals.signal("tick-finished")
"""A tick came to its end, or a minute of a resident worker; ``report``."""


_LEVELS = {
    "succeeded": logging.INFO,
    "failed": logging.WARNING,
    "dead": logging.ERROR,
    "cancelled": logging.WARNING,
    "released": logging.INFO,
}
_SIGNALS = {
    "succeeded": run_succeeded,
    "failed": run_failed,
    "dead": run_dead,
    "cancelled": run_cancelled,
}


def send(signal: NamedSignal, app: Flask, **details: object) -> None:
    """Send *signal* for *app*; whatever a receiver raises is logged and goes no further."""
    if not signal.receivers:
        return
    for receiver in signal.receivers_for(app):
        try:
            with app.app_context():
                receiver(app, **details)
        except BaseException as error:
            if _is_meant_for_the_caller(error):
                raise
            logger.exception("A receiver of the signal %r raised; the run is unharmed", signal.name)


def _is_meant_for_the_caller(error: BaseException) -> bool:
    """Whether *error* only happened to come while a receiver ran: a timeout, the keyboard.

    Signal handlers raise in the main thread alone.
    """
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and isinstance(error, (Interruption, KeyboardInterrupt))


def announce(app: Flask, outcome: Outcome, recorded: bool) -> None:
    """Log *outcome* and send its signal.

    :param recorded: False if it was dropped, since the lease was lost.
    """
    log_run(
        _LEVELS[outcome.kind] if recorded else logging.WARNING,
        outcome.kind if recorded else LOST,
        task=outcome.job_type,
        run_id=outcome.id,
        attempt=outcome.attempt,
        worker=outcome.token,
        seconds=outcome.seconds,
        why=outcome.error_type if recorded else f"{outcome.kind} is dropped",
    )
    signal = _SIGNALS.get(outcome.kind) if recorded else lease_lost
    if signal is not None:
        send(signal, app, outcome=outcome)


def notify(method: Callable[[T], None], news: T) -> None:
    """Call *method* with *news*. What it raises is logged, and the runs go on."""
    try:
        method(news)
    except Exception as error:  # A full disk, a closed pipe.
        logger.error("News could not be printed: %r", error)
