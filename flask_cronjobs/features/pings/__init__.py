"""Tell monitors by their URLs of ticks and of runs, and a webhook of what needs a person."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.app_state import State
from ...types import Outcome, TickReport
from .pings import Pings, ping
from .webhook import alert


def watch(state: State) -> Pings:
    """Tell the monitors of definitions of a worker's runs."""
    return Pings(state)


def told(state: State, report: TickReport) -> None:
    """Tell of a tick that has ended."""
    ping(state.settings.ping_url)
    alert(state, report.worker)


def lost(state: State, outcomes: Sequence[Outcome]) -> None:
    """Tell of runs that ended with their worker."""
    pings = Pings(state)
    for outcome in outcomes:
        pings.ended(outcome)
    pings.close()
