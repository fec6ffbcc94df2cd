"""The site that a process test works on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import support


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[support.Site]:
    """A site on an empty database: the test runs once with each kind."""
    with support.site(database_url, tmp_path) as made:
        yield made
