"""Ping monitors about ticks and runs, and send alerts to a webhook.

A dead cron cannot report itself, so each tick fetches ``CRONJOBS_PING_URL``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.app_state import State
from ...types import Outcome, TickReport
from .health_alerts import alert
from .http import ping
from .run_pings import Pings


def watch(state: State) -> Pings:
    """Return a `Pings` for the runs of a worker."""
    return Pings(state)


def report_tick(state: State, report: TickReport) -> None:
    """Ping and alert after a tick has ended."""
    ping(state.settings.ping_url)
    alert(state, report.worker)


def report_outcomes(state: State, outcomes: Sequence[Outcome]) -> None:
    """Ping about runs that a tick has ended, such as those of lost workers."""
    pings = Pings(state)
    for outcome in outcomes:
        pings.ended(outcome)
    pings.close()
