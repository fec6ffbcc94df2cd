"""Leases for tests of what has nothing to do with them."""

from __future__ import annotations

from flask_cronjobs.core.worker.held_runs import Leases
from flask_cronjobs.types import Claim


class EndlessLeases(Leases):
    """Leases that hold every claim for ever."""

    def __init__(self) -> None:
        super().__init__(float("inf"))

    def end(self, claim: Claim) -> float:
        return float("inf")
