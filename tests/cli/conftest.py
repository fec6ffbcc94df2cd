"""The database of the commands, and what calls them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from flask_cronjobs import CronJobs


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """SQLite, unless marked: what commands read and do is tested below them on both databases."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


class Admin:
    """Calls ``flask jobs admin`` in this process."""

    def __init__(self, app: Flask) -> None:
        self.runner = app.test_cli_runner()

    def __call__(self, *args: object, **options: Any) -> Result:
        """What came of it."""
        return self.runner.invoke(args=["jobs", "admin", *map(str, args)], **options)

    def ok(self, *args: object, **options: Any) -> str:
        """The output of a command that does its work."""
        result = self(*args, **options)
        assert result.exit_code == 0, result.output
        return result.output

    def data(self, *args: object) -> Any:
        """What a command says in JSON."""
        return json.loads(self.ok(*args, "--json"))

    def refused(self, *args: object, code: int = 1, **options: Any) -> str:
        """The output of a command that does not do its work."""
        result = self(*args, **options)
        assert result.exit_code == code, result.output
        return result.output


@pytest.fixture
def admin(app: Flask, jobs: CronJobs) -> Admin:
    """Calls ``flask jobs admin`` in this process."""
    return Admin(app)
