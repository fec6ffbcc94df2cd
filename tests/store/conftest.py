"""The store on an empty database: each test runs once with each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.kit import Kit


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The store, its tables created."""
    made = Kit.on(database_url)
    yield made
    made.close()
