"""A short form of the fuzz; `make fuzz` runs it for as long as you like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.driver import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("queries", [False, True], ids=["anywhere", "queries"])
def test_nothing_is_left_of_interrupted_handlers(
    database_url: str, tmp_path: Path, queries: bool
) -> None:
    report = fuzz(database_url, tmp_path, 15, 1, queries)
    assert report.wrong == []
    assert report.interrupted.total() >= 15
