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
    """Keeps something from being done again too soon.

    Any number of threads may share one without a lock: at worst two of them do it at once.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def open(self) -> bool:
        """Whether it may be done."""
        return time.monotonic() >= self._until

    def close(self, seconds: float) -> None:
        """Let it not be done for so long."""
        self._until = time.monotonic() + seconds


#: Asked ``"read"`` or ``"act"`` on every request to the pages; true lets it pass. It may also
#: return a response, such as a redirect to the login page.
Authorize = Callable[[str], "bool | ResponseReturnValue"]
#: Names who acts, for the log.
Actor = Callable[[], str]

EXTENSION = "cronjobs"


@dataclass(frozen=True)
class State:
    """One app's share of the extension.

    :ivar waking: how often this process wakes resident workers, or asks whether there are any.
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
        """The app's default engine. Needs no app context of the caller."""
        if has_app_context() and current_app._get_current_object() is self.app:  # type: ignore[attr-defined]
            return self.db.engine
        with self.app.app_context():
            return self.db.engine


def state_of(app: Flask | None = None) -> State:
    """The state of *app*, or of the current app.

    :raises SetupError: there is no app, or the extension is not initialized on it.
    """
    if app is None:
        if not has_app_context():
            raise SetupError(
                "There is no app to work with. Run this inside a request, a command or "
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
