"""The site of a process test; its processes may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import support


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[support.Site]:
    """A site on an empty database; the test runs once on each kind."""
    with support.site(database_url, tmp_path) as site:
        yield site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as slow: they start processes, and kill them."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
