"""Tests of what code declares run on SQLite; those marked `on_both` on PostgreSQL as well."""

from __future__ import annotations

import pytest


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database: of SQLite unless a mark says otherwise."""
    url: str = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return url
