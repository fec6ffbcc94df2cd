"""Leases for tests that are not about leases."""

from __future__ import annotations

from flask_cronjobs.core.worker.held_runs import Leases
from flask_cronjobs.types import Claim


class EndlessLeases(Leases):
    """Leases that never end."""

    def __init__(self) -> None:
        super().__init__(float("inf"))

    def end(self, claim: Claim) -> float:
        return float("inf")
