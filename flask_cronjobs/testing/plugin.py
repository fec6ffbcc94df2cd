"""A pytest plugin: the helpers as fixtures, for the app that the fixture ``app`` returns.

pytest loads it by itself. ``-p no:flask_cronjobs`` leaves it out. It imports Flask, and the
helpers, only when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flask import Flask

    from ..models import JobRun
    from ..task import Task
    from ..types import TickReport


@pytest.fixture
def jobs_drain(request: pytest.FixtureRequest) -> Callable[..., TickReport]:
    """`drain` for the fixture ``app``, without its first argument."""
    app = _app(request)

    def jobs_drain(raise_errors: bool = True, with_delayed: bool = False) -> TickReport:
        from .helpers import drain

        with _context(app):
            return drain(None, raise_errors, with_delayed)

    return jobs_drain


@pytest.fixture
def jobs_enqueued(request: pytest.FixtureRequest) -> Callable[..., list[JobRun]]:
    """`enqueued` for the fixture ``app``; leaves out what was there when the test began."""
    from .helpers import enqueued, last_run

    app = _app(request)
    with _context(app):
        before = last_run()

    def jobs_enqueued(task: Task[..., Any] | str | None = None) -> list[JobRun]:
        with _context(app):
            return enqueued(task, after=before)

    return jobs_enqueued


@pytest.fixture
def jobs_run(request: pytest.FixtureRequest) -> Callable[..., JobRun]:
    """`run` for the fixture ``app``."""
    app = _app(request)

    def jobs_run(*task_and_payload: Any, **arguments: Any) -> JobRun:
        from .helpers import run

        with _context(app):
            return run(*task_and_payload, **arguments)

    return jobs_run


@pytest.fixture
def jobs_fire(request: pytest.FixtureRequest) -> Callable[..., JobRun]:
    """`fire` for the fixture ``app``."""
    app = _app(request)

    def jobs_fire(
        definition: Task[..., Any] | str, at: datetime | None = None, raise_errors: bool = True
    ) -> JobRun:
        from .helpers import fire

        with _context(app):
            return fire(definition, at, raise_errors)

    return jobs_fire


@pytest.fixture
def jobs_travel(
    request: pytest.FixtureRequest,
) -> Generator[Callable[[datetime | timedelta], None]]:
    """`travel` for the fixture ``app``, until the end of the test."""
    app = _app(request)
    with ExitStack() as travels:

        def jobs_travel(to: datetime | timedelta) -> None:
            from .helpers import travel

            with _context(app):
                travels.enter_context(travel(to))

        yield jobs_travel


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

    from ..state import EXTENSION, state_of

    if has_app_context() and EXTENSION in app.extensions and state_of().app is app:
        return nullcontext()
    return app.app_context()
