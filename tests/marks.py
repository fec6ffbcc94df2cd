"""Marks, and a fixture, for tests that run on one kind of database."""

from __future__ import annotations

import pytest

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
#: For folders whose unmarked tests run on SQLite only.
on_both = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)

#: The status of Flask's `redirect`: 303 from Flask 3.2 on.
REDIRECTED = (302, 303)


@pytest.fixture
def sqlite_unless_marked(request: pytest.FixtureRequest) -> str:
    """The `database_url` of folders whose tests run on SQLite unless a mark names another."""
    url: str = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return url
