"""The database of the commands, and functions that call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from click.testing import Result
from flask import Flask

from flask_cronjobs import CronJobs


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an SQLite database, unless marked: other tests cover what commands read and do."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


Run: TypeAlias = Callable[..., Result]


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    """Calls ``flask jobs`` in this process."""
    runner = app.test_cli_runner()
    return lambda *args, **options: runner.invoke(args=["jobs", *map(str, args)], **options)


class Admin:
    """Calls ``flask jobs admin`` in this process."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, *args: object, **options: Any) -> Result:
        """Return the result."""
        return self.run("admin", *args, **options)

    def ok(self, *args: object, **options: Any) -> str:
        """Return the output of a command that succeeds."""
        result = self(*args, **options)
        assert result.exit_code == 0, result.output
        return result.output

    def data(self, *args: object) -> Any:
        """Return a command's JSON."""
        return json.loads(self.ok(*args, "--json"))

    def refused(self, *args: object, code: int = 1, **options: Any) -> str:
        """Return the output of a command that fails."""
        result = self(*args, **options)
        assert result.exit_code == code, result.output
        return result.output


@pytest.fixture
def admin(run: Run) -> Admin:
    """Calls ``flask jobs admin`` in this process."""
    return Admin(run)
