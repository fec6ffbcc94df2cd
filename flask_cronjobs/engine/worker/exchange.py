"""The ledger: what a worker records and claims in one exchange, and what trouble left unknown."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from ...state import State
from ...store import Claims
from ...types import ClaimRequest, Exchange, Outcome
from .options import WorkOptions


class Ledger:
    """One worker's exchanges.

    :ivar dry: whether the last exchange found that nothing more is claimable.
    """

    def __init__(self, claims: Claims, state: State, options: WorkOptions) -> None:
        self.dry: bool = False
        self._claims = claims
        self._options = options
        self._lease = state.settings.lease
        self._tasks = tuple(state.registry.tasks)
        self._after = ""
        self._doubtful: str | None = None

    @property
    def doubtful(self) -> bool:
        """Whether there may be runs that were claimed without our hearing of it."""
        return self._doubtful is not None

    def exchange(self, outcomes: Sequence[Outcome], wanted: int, alone: bool) -> Exchange:
        """Record *outcomes* and claim *wanted* runs.

        :param alone: whether nothing else is held, so that a retry may be claimed.
        :raises DatabaseTrouble: what came of it is for `settle` to find out.
        """
        request = self._request(wanted, alone) if wanted > 0 else None
        if request is not None:
            self._doubtful = request.token
        written = frozenset(outcome.id for outcome in outcomes if outcome.finalized)
        open_outcomes = [outcome for outcome in outcomes if not outcome.finalized]
        exchange = self._claims.exchange(open_outcomes, request, repeat=False)
        self._doubtful = None
        # Outcomes may have made room under a concurrency key, and a look may have begun amid the
        # keys: only one without either is final.
        self.dry = not (request is None or outcomes or exchange.claims or self._after)
        if request is not None:
            keys = [claim.concurrency_key for claim in exchange.claims if claim.concurrency_key]
            self._after = keys[-1] if keys else ""
        return replace(exchange, recorded=exchange.recorded | written)

    def settle(self, outcomes: Sequence[Outcome]) -> Exchange:
        """After trouble: give back what was claimed unheard; which of *outcomes* are recorded."""
        if self._doubtful is not None:
            self._claims.release_token(self._doubtful)
            self._doubtful = None
        return self._claims.already_recorded(outcomes) if outcomes else Exchange()

    def _request(self, wanted: int, alone: bool) -> ClaimRequest:
        return ClaimRequest(
            limit=wanted,
            token=f"{self._options.worker}:{secrets.token_hex(6)}",
            tasks=self._tasks,
            queues=self._options.queues,
            lease=self._lease,
            alone=alone,
            after=self._after,
        )
