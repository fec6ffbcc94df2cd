"""Tables align their columns, and are cut only on a terminal."""

from __future__ import annotations

import sys

import pytest

from flask_cronjobs.cli import output
from flask_cronjobs.cli.output import table


def test_a_row_fits_on_a_line_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "width", lambda: 50)
    table(("A", "B", "C"), [("x" * 200, "y" * 100, "last")])
    _, line = capsys.readouterr().out.splitlines()
    assert len(line) <= 50
    assert line.endswith("  last")
    assert line.count("…") == 2
