"""What the writes of this package take and return, but for `Claim` and `Outcome` in `types`."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..types import Claim, DefinitionSpec, Outcome


class ClaimRequest(NamedTuple):
    """What a worker asks for.

    :ivar limit: how many runs at most.
    :ivar token: the token that they get.
    :ivar tasks: the tasks that this worker can run.
    :ivar queues: the queues to claim from; empty means all but *elsewhere*.
    :ivar elsewhere: queues not to claim from, also if they are among *queues*.
    :ivar lease: seconds that the claim holds without a heartbeat.
    :ivar idle: whether the worker holds nothing else, so that a retry may be claimed.
    :ivar after: the concurrency key after which a search from key to key begins.
    :ivar side_by_side: whether the runs are to run at the same time, as async handlers do. Then
        retries are claimed together with others, but for a last attempt, and for one after a lost
        worker; and unless *idle*, those are passed over.
    :ivar handed: the id and token of a handed run to begin, in place of a claim from the queue.
    """

    limit: int
    token: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] = ()
    elsewhere: frozenset[str] = frozenset()
    lease: float = 120.0
    idle: bool = True
    after: str = ""
    side_by_side: bool = False
    handed: tuple[int, str] | None = None


class Exchange(NamedTuple):
    """The result of `Claims.exchange`.

    :ivar recorded: the ids of the runs whose outcomes are recorded.
    :ivar claims: the runs newly claimed.
    :ivar cancelled: those of *recorded* that became cancelled instead of being retried, because a
        cancel was requested while they ran.
    :ivar locked: the ids of the runs that are held still, and whose outcomes cannot be recorded
        yet: another transaction has locked their rows.
    """

    recorded: frozenset[int] = frozenset()
    claims: tuple[Claim, ...] = ()
    cancelled: frozenset[int] = frozenset()
    locked: frozenset[int] = frozenset()

    def stored(self, outcome: Outcome) -> Outcome:
        """Return *outcome* as its row has it."""
        return outcome._replace(kind="cancelled") if outcome.id in self.cancelled else outcome


class DefinitionRow(NamedTuple):
    """A definition as read from its row.

    :ivar now: the database's time when the row was read.
    :ivar considered_until: every slot up to here has been recorded, or was never owed.
    :ivar undeclared_since: from when on the code that ticked did not declare it.
    :ivar app: the name of the app whose code declared it.
    :ivar broken: which column cannot be read; *spec* or *next_run_at* then has an empty value.
    """

    id: int
    spec: DefinitionSpec
    origin: str
    paused: bool
    next_run_at: datetime | None
    now: datetime
    broken: str | None = None
    considered_until: datetime | None = None
    undeclared_since: datetime | None = None
    app: str | None = None

    @property
    def due(self) -> bool:
        """Whether a slot has to be recorded, or may have to be because the row cannot be read."""
        if self.next_run_at is None:
            return not self.paused and self.broken is not None
        return not self.paused and self.next_run_at <= self.now
