"""Tables: columns align whatever the characters; only a terminal cuts."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from flask_cronjobs.cli import output
from flask_cronjobs.cli.output import table
from flask_cronjobs.cli.terminal import cut_to_width, text_width

WIDE = ["ascii", "漢字の名前", "e\u0301te\u0301", "한국어", "📦 parcel", "❤\ufe0f", "\uff46"]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("", 0), ("abc", 3), ("漢字", 4), ("e\u0301", 1), ("한", 2), ("❤", 1), ("❤\ufe0f", 2),
        (unicodedata.normalize("NFD", "한"), 2), ("📦", 2), ("\uff46", 2),
    ],
)  # fmt: skip
def test_width_of_a_text_is_that_on_a_terminal(text: str, cells: int) -> None:
    assert text_width(text) == cells


@pytest.mark.parametrize(
    ("text", "size", "cut"),
    [
        ("send_invoice_reminders", 11, "send_…nders"),
        ("the invoice is gone", 11, "the invoic…"),
        ("xxxxe\u0301xe\u0301", 4, "xx…e\u0301"),
        ("xxxxxx❤\ufe0f", 4, "xx…"),
    ],
)
def test_name_is_cut_in_the_middle_and_a_sentence_at_its_end(
    text: str, size: int, cut: str
) -> None:
    assert cut_to_width(text, size) == cut


@pytest.mark.parametrize("text", WIDE)
def test_cut_text_fits_and_a_name_keeps_its_end(text: str) -> None:
    for size in range(1, text_width(text) + 2):
        cut = cut_to_width(text, size)
        head, _, tail = cut.partition("…")
        assert text_width(cut) <= size
        assert text.startswith(head)
        assert text.endswith(tail)
        assert not (tail and " " in text)
        assert (cut == text) == (text_width(text) <= size)


def test_columns_align_behind_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table(("NAME", "NEXT"), [(name, "|") for name in WIDE])
    _, *lines = capsys.readouterr().out.splitlines()
    assert {text_width(line.partition("|")[0]) for line in lines} == {12}


def test_a_row_fits_on_a_line_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "width", lambda: 50)
    table(("A", "B", "C"), [("x" * 200, "漢" * 100, "last")], flexible=0)
    _, line = capsys.readouterr().out.splitlines()
    assert text_width(line) <= 50
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
        assert text_width(line) <= size
        return [cell[0] for cell in line.split()]

    assert [printed(size) for size in (58, 48, 47, 35, 23)] == [
        *(["i", "b", "c", "d"], ["i", "b", "c", "d"], ["i", "b", "c"]),
        *(["i", "c"], ["c"]),
    ]
