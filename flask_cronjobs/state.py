"""What the extension keeps for one app, in ``app.extensions["cronjobs"]``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flask import Flask, current_app, has_app_context
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine

from .config import Settings
from .errors import SetupError
from .registry.registry import Registry


class Throttle:
    """Prevents something from being done again too soon.

    Threads may share one without a lock: at worst, two of them do it at once.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def open(self) -> bool:
        """Return whether it may be done now."""
        return time.monotonic() >= self._until

    def close(self, seconds: float) -> None:
        """Prevent it for the next *seconds*."""
        self._until = time.monotonic() + seconds


#: Called with ``"read"`` or ``"act"`` for every request to the pages. Returns whether to allow it,
#: or a response, such as a redirect to the login page.
Authorize = Callable[[str], "bool | ResponseReturnValue"]
#: Returns the name of the user who acts, for the log.
Actor = Callable[[], str]

EXTENSION = "cronjobs"


@dataclass(frozen=True)
class State:
    """The extension's state for one app.

    :ivar waking: limits how often this process wakes resident workers, or looks for some.
    """

    app: Flask
    db: SQLAlchemy
    settings: Settings
    registry: Registry
    authorize: Authorize | None = None
    actor: Actor | None = None
    waking: Throttle = field(default_factory=Throttle)

    @property
    def engine(self) -> Engine:
        """The app's default engine; the caller needs no app context."""
        if has_app_context() and current_app._get_current_object() is self.app:  # type: ignore[attr-defined]
            return self.db.engine
        with self.app.app_context():
            return self.db.engine


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
