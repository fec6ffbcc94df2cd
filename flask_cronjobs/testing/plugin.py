"""A pytest plugin that provides the helpers as fixtures, for the app of the fixture ``app``.

pytest loads it automatically; ``-p no:flask_cronjobs`` leaves it out. It imports Flask and the
helpers only when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flask import Flask

    from ..models import JobRun
    from ..types import TickReport


@pytest.fixture
def jobs_drain(request: pytest.FixtureRequest) -> Callable[..., TickReport]:
    """Call `drain` for the fixture ``app``, without its first argument."""
    return partial(_helper(request, "drain"), None)


@pytest.fixture
def jobs_enqueued(request: pytest.FixtureRequest) -> Callable[..., list[JobRun]]:
    """Call `enqueued` for the fixture ``app``, and leave out runs from before the test."""
    return partial(_helper(request, "enqueued"), after=_helper(request, "last_run")())


@pytest.fixture
def jobs_run(request: pytest.FixtureRequest) -> Callable[..., JobRun]:
    """Call `run` for the fixture ``app``."""
    return _helper(request, "run")


@pytest.fixture
def jobs_fire(request: pytest.FixtureRequest) -> Callable[..., JobRun]:
    """Call `fire` for the fixture ``app``."""
    return _helper(request, "fire")


@pytest.fixture
def jobs_travel(
    request: pytest.FixtureRequest,
) -> Generator[Callable[[datetime | timedelta], None]]:
    """Call `travel` for the fixture ``app``; the clock stays moved until the end of the test."""
    travel = _helper(request, "travel", lambda block: travels.enter_context(block))
    with ExitStack() as travels:
        yield travel


def _helper(
    request: pytest.FixtureRequest, name: str, then: Callable[[Any], Any] = lambda value: value
) -> Callable[..., Any]:
    """Return the helper *name* for the fixture ``app``.

    :param then: called with the result of the helper, in the same context.
    """
    app = _app(request)

    def call(*arguments: Any, **options: Any) -> Any:
        from . import helpers

        with _context(app):
            return then(getattr(helpers, name)(*arguments, **options))

    return call


def _app(request: pytest.FixtureRequest) -> Flask:
    try:
        app: Flask = request.getfixturevalue("app")
    except pytest.FixtureLookupError:
        pytest.fail(
            f"The fixture {request.fixturename} needs a fixture `app` that returns your Flask app. "
            "Write one in conftest.py, or call the function of flask_cronjobs.testing in an app "
            "context.",
            pytrace=False,
        )
    return app


def _context(app: Flask) -> AbstractContextManager[object]:
    """Return a context of *app*, if it is not the current app."""
    from flask import has_app_context

    from ..core.app_state import EXTENSION, state_of

    if has_app_context() and EXTENSION in app.extensions and state_of().app is app:
        return nullcontext()
    return app.app_context()
