"""The database of the commands."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """SQLite, unless marked: what commands read and do is tested below them on both databases."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
