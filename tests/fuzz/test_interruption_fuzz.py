"""A short form of the fuzz; `make fuzz` runs it for as long as you like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.driver import fuzz


@pytest.mark.slow
def test_nothing_is_left_of_interrupted_handlers(database_url: str, tmp_path: Path) -> None:
    report = fuzz(database_url, tmp_path, 15, seed=1)
    assert report.wrong == []
    assert report.interrupted.total() >= 15
