"""The extension's state for one app, in ``app.extensions["cronjobs"]``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flask import Flask, current_app, has_app_context
from flask.typing import ResponseReturnValue
from sqlalchemy import Connection, Engine

from ..config import Settings
from ..db.database import Database
from ..db.engines import by_psycopg, is_shared
from ..errors import SetupError
from .tasks.registry import Registry

if TYPE_CHECKING:
    from ..db.connection import Bookkeeping


class Throttle:
    """Prevents an action from being repeated too soon.

    Threads may share a throttle without a lock: at worst, two of them act at the same time.
    """

    _until = 0.0

    def ready(self) -> bool:
        """Return whether the action may be done now."""
        return time.monotonic() >= self._until

    def block_for(self, seconds: float) -> None:
        """Prevent the action for the next *seconds*."""
        self._until = time.monotonic() + seconds


#: Called with ``"read"`` or ``"act"`` for every request to the pages. Returns whether to allow it,
#: or a response, such as a redirect to the login page.
Authorize = Callable[[str], "bool | ResponseReturnValue"]
#: Returns the name of the user who acts, for the log.
Actor = Callable[[], str]

EXTENSION = "cronjobs"
#: The command group: ``flask jobs``.
GROUP = "jobs"


@dataclass(eq=False, frozen=True, repr=False)
class State:
    """The extension's state for one app.

    :ivar waking: limits how often this process wakes resident workers or asks whether any listen.
    :ivar started: when this process made the state, by `time.monotonic`.
    :ivar known_rows: names of declared definitions that were seen in the table.
    :ivar pids: the id of the process that owns the app's connections, in a list so that it can
        change.
    """

    app: Flask
    db: Database
    settings: Settings
    registry: Registry
    authorize: Authorize | None = None
    actor: Actor | None = None
    waking: Throttle = field(default_factory=Throttle)
    started: float = field(default_factory=time.monotonic)
    known_rows: set[str] = field(default_factory=set[str])
    pids: list[int] = field(default_factory=lambda: [os.getpid()])

    @property
    def engine(self) -> Engine:
        """The engine of bookkeeping; the caller needs no app context.

        It is the app's engine, or our own psycopg 3 engine if the app's has another driver.

        :raises SetupError: the app's database or driver is not supported.
        """
        with self._context():
            return by_psycopg(self.db.engine)

    @property
    def database(self) -> Engine | Connection:
        """The `engine` that bookkeeping and reports use; in some tests, one connection."""
        with self._context():
            bind = self.db.bind
            return bind if isinstance(bind, Connection) else by_psycopg(self.db.engine)

    @property
    def queues(self) -> list[str]:
        """The queues that the tasks of this app's code use, by name."""
        return sorted({task.options.queue for task in self.registry.tasks.values()})

    def forget_connections(self) -> None:
        """Forget the connections that this process has inherited from its parent in a fork.

        They are not closed, since the parent still uses them. Further calls do nothing.
        """
        if self.pids != (pids := [os.getpid()]):
            self.pids[:] = pids
            with self.app.app_context():
                for engine in self.db.engines:
                    engine.dispose(close=False)

    def bookkeeping(
        self,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
        apart: bool = False,
    ) -> Bookkeeping:
        """Return a bookkeeping connection; in some tests, one that is shared with ``db.session``.

        :param guard: see `Bookkeeping`.
        :param apart: whether it must be a separate connection, since the caller starts workers.
        :raises SetupError: *apart* is true, but ``db.session`` is bound to one connection.
        """
        # Import it only here, since every app imports this module when it starts.
        from ..db.connection import Bookkeeping

        database = self.database
        if apart and isinstance(database, Connection):
            raise SetupError(_IN_A_TEST)
        if is_shared(database) and not apart:
            from ..db.shared_connection import SharedBookkeeping

            return SharedBookkeeping(database)
        return Bookkeeping(database.engine, guard=guard)

    def _context(self) -> AbstractContextManager[object]:
        """Return an app context of the app; if the app is current, a context that does nothing."""
        if has_app_context() and current_app._get_current_object() is self.app:  # type: ignore[attr-defined]
            return nullcontext()
        return self.app.app_context()


_IN_A_TEST = (
    "db.session is bound to one connection, as in a test whose transaction is rolled back. "
    "A tick would not see what is written there. Use drain() of flask_cronjobs.testing."
)


def state_of(app: Flask | None = None) -> State:
    """Return the state of *app*, or of the current app.

    :raises SetupError: there is no app, or the extension is not initialized on it.
    """
    if app is None:
        if not has_app_context():
            raise SetupError(
                "There is no current app. Run this inside a request, a command or "
                "`with app.app_context():`."
            )
        app = current_app
    state: State | None = app.extensions.get(EXTENSION)
    if state is None:
        raise SetupError(
            f"Flask-CronJobs is not initialized on the app {app.name!r}. "
            "Call jobs.init_app(app), after db.init_app(app)."
        )
    return state
