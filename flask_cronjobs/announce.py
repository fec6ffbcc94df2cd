"""Telling the world what became of an attempt: one log line, one signal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from flask import Flask

from . import signals
from .log import LOST, log_run, logger
from .types import Outcome

T = TypeVar("T")

_LEVELS = {
    "succeeded": logging.INFO,
    "failed": logging.WARNING,
    "dead": logging.ERROR,
    "cancelled": logging.WARNING,
    "released": logging.INFO,
}
_SIGNALS = {
    "succeeded": signals.run_succeeded,
    "failed": signals.run_failed,
    "dead": signals.run_dead,
    "cancelled": signals.run_cancelled,
}


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
    signal = _SIGNALS.get(outcome.kind) if recorded else signals.lease_lost
    if signal is not None:
        signals.send(signal, app, outcome=outcome)


def pass_on(listener: Callable[[T], None] | None, news: T) -> None:
    """Tell *listener*, who prints it; if that fails, the runs go on nevertheless."""
    if listener is None:
        return
    try:
        listener(news)
    except Exception as error:  # A full disk, a closed pipe.
        logger.error("What came about could not be printed: %r", error)
