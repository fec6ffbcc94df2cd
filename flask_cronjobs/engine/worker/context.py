"""What the runner and the async runner share: the worker's parts, and how an attempt ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ...db.connection import Bookkeeping
from ...errors import AtomicCommit, DatabaseTrouble
from ...jobs import orders
from ...jobs.runs.current import CurrentRun
from ...jobs.state import State
from ...log import logger
from ...types import Claim, Outcome
from ..ping import Pings
from .at_work import log_start
from .interrupts import HandlerInterrupter
from .leases import Leases
from .outcomes import failure
from .precedence import Precedence
from .watchdog import Watchdog

#: How old a look at strict orders may be when a run begins, in seconds. One serves all runs of a
#: claim, and to look before each would take longer than short runs themselves.
LOOK_EVERY = 0.01


class RunnerContext:
    """The parts of a worker that its runs need. Belongs to the runner's thread.

    :param inbox: brings claims; None means that no more will come.
    :param mailbox: takes outcomes and progress to the keeper.
    :param keyboard: whether a KeyboardInterrupt inside a handler comes from the keyboard.
    :param precedence: lets the keeper go first.
    :param pings: tells monitors of the runs of definitions, if there are any.
    :ivar books: the connection for ``once()``, and for looks at strict orders; connects when first
        needed.
    :ivar interrupted: the exception by which the user interrupted a run.
    :ivar abandoned: whether the keeper has died. Written by the keeper: nothing more may begin.
    """

    def __init__(
        self,
        state: State,
        interrupter: HandlerInterrupter,
        watchdog: Watchdog,
        leases: Leases,
        inbox: SimpleQueue[Claim | None],
        mailbox: SimpleQueue[Any],
        keyboard: bool,
        pings: Pings | None = None,
        precedence: Precedence | None = None,
    ) -> None:
        self.state = state
        self.interrupter = interrupter
        self.watchdog = watchdog
        self.leases = leases
        self.inbox = inbox
        self.mailbox = mailbox
        self.keyboard = keyboard
        self.precedence: Precedence = precedence or Precedence()
        self.pings = pings
        self.books: Bookkeeping = state.bookkeeping(guard=interrupter.hold)
        self.interrupted: BaseException | None = None
        self.abandoned: bool = False
        self._ordered = state.registry.ordered
        self._first: set[int] = set()
        self._looked_for: str | None = None
        self._looked_at = 0.0

    def current_run(
        self, claim: Claim, request_write: Callable[[CurrentRun, bool], None]
    ) -> CurrentRun:
        """Return what *claim*'s handler sees of its run."""
        state = self.state
        return CurrentRun(state.app, claim, request_write, self.books, state.settings.timezone)

    def may_begin(self, claim: Claim) -> bool:
        """Return whether *claim*'s run may begin; if not, it is to be released.

        Not if the worker was frozen or cut off since the claim, so that another may have the run,
        or if an earlier one of its strict order has come back meanwhile.
        """
        if claim.job_type in self._ordered and not self._comes_first(claim):
            return False
        return self.leases.holds(claim)

    def _comes_first(self, claim: Claim) -> bool:
        now, token = time.monotonic(), claim.token
        if token != self._looked_for or now - self._looked_at > LOOK_EVERY:
            try:
                self._first = orders.held_first(self.books, token)
            except DatabaseTrouble as trouble:
                logger.warning("%s was given back. %s", claim, trouble)
                return False
            self._looked_for, self._looked_at = token, now
        return claim.id in self._first

    def begin(self, claim: Claim) -> None:
        """Tell that an attempt begins."""
        if logger.isEnabledFor(logging.INFO):
            log_start(claim)
        if self.pings is not None:
            self.pings.started(claim)

    def outcome(self, claim: Claim, error: BaseException, seconds: float) -> Outcome:
        """Return the outcome of an attempt that *error* ended after *seconds*."""
        outcome = failure(self.state, claim, error, seconds)
        if isinstance(error, AtomicCommit) and error.__cause__ is not None:
            # The run is dead, but a Ctrl-C that ended its handler still stops the worker.
            self.note_interrupt(error.__cause__)
        if self.note_interrupt(error):
            return outcome._replace(kind="released", exception=None)
        return outcome

    def note_interrupt(self, error: BaseException) -> bool:
        """Return whether *error* comes from the keyboard. Then nothing more is begun."""
        # Where the worker handles SIGINT itself, the handler raised this one.
        if not (isinstance(error, KeyboardInterrupt) and self.keyboard):
            return False
        self.interrupted = error
        return True

    def forget_session(self, context: object) -> None:
        """Close the session of *context* if a teardown that raised has left it open.

        It is registered under the context's id, which the next context may have again.
        """
        sessions: dict[int, Any] = getattr(self.state.db.session.registry, "registry", {})
        # A test may have replaced db.session by one that is kept otherwise.
        session = sessions.pop(id(context), None) if hasattr(sessions, "pop") else None
        if session is not None:
            session.close()
