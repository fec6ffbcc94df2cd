"""Tests of the public API run on SQLite; those marked `on_both` on PostgreSQL as well."""

from __future__ import annotations

import pytest


@pytest.fixture
def database_url(request: pytest.FixtureRequest, layer: str) -> str:
    """The URL of an empty database: of SQLite unless a mark or a layer says otherwise."""
    usual = "postgresql" if layer == "psycopg2" else "sqlite"
    url: str = request.getfixturevalue(f"{getattr(request, 'param', usual)}_url")
    return url
