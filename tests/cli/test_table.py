"""Tables: columns align; only a terminal cuts."""

from __future__ import annotations

import sys

import pytest

from flask_cronjobs.cli import output
from flask_cronjobs.cli.output import table


@pytest.mark.parametrize(
    ("text", "size", "cut"),
    [
        ("send_invoice_reminders", 11, "send_…nders"),
        ("the invoice is gone", 11, "the invoic…"),
    ],
)
def test_name_is_cut_in_the_middle_and_a_sentence_at_its_end(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    size: int,
    cut: str,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "width", lambda: size)
    table(("NAME",), [(text,)])
    assert capsys.readouterr().out.splitlines()[1] == cut


def test_a_row_fits_on_a_line_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "width", lambda: 50)
    table(("A", "B", "C"), [("x" * 200, "y" * 100, "last")], flexible=0)
    _, line = capsys.readouterr().out.splitlines()
    assert len(line) <= 50
    assert line.endswith("  last")
    assert line.count("…") == 2


def test_columns_without_a_value_are_left_out_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "width", lambda: 40)
    for size, there in ((10, True), (30, False)):
        table(("B", "NEW SINCE", "B", "WHY"), [("b" * size, None, None, "")], spare=("B",))
        header = capsys.readouterr().out.splitlines()[0]
        assert ("NEW SINCE" in header, header.count("B")) == (there, 2)


def test_columns_are_left_out_where_there_is_no_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    def printed(size: int) -> list[str]:
        monkeypatch.setattr(output, "width", lambda: size)
        row = ("id", "b" * 10, "c" * 30, "d" * 10)
        table(("A", "B", "C", "B"), [row], 2, spare=("B", "A"))
        _, line = capsys.readouterr().out.splitlines()
        assert len(line) <= size
        return [cell[0] for cell in line.split()]

    assert [printed(size) for size in (58, 48, 47, 35, 23)] == [
        *(["i", "b", "c", "d"], ["i", "b", "c", "d"], ["i", "b", "c"]),
        *(["i", "c"], ["c"]),
    ]
