"""The line of the runs at work: where it is drawn, and that it leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO
from typing import TextIO

import pytest

from flask_cronjobs.cli.terminal import Lines, StatusLine, describe
from flask_cronjobs.types import RunAtWork
from tests.cli.terminal import Screen


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Returns what was written, instead of writing it."""
    pieces: list[str] = []
    monkeypatch.setattr(Lines, "put", lambda lines, text, end: pieces.append(text))
    return lambda: "".join(pieces)


class Tty(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> TextIO:
    monkeypatch.setenv("TERM", "xterm")
    return Tty()


def status_line(
    stream: TextIO, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int]]
) -> tuple[StatusLine, Lines]:
    """A status line on a terminal that has each of *sizes* in turn, and keeps the last."""

    def size(number: int) -> os.terminal_size:
        rows, columns = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        return os.terminal_size((columns, rows))

    monkeypatch.setattr(os, "get_terminal_size", size)
    lines = Lines(stream)
    return StatusLine(stream, lines), lines


def show(line: StatusLine, lines: Lines, *texts: str | None) -> None:
    for text in texts:
        line.show(text)


def test_line_begins_below_what_is_there(
    stream: TextIO, written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(8, 60)
    screen.feed("\r\n".join(f"line {number}" for number in range(8)))
    show(*status_line(stream, monkeypatch, [(8, 60)]), "shown")
    screen.feed(written() + " goes on")
    assert (screen.rows[6].rstrip(), screen.rows[7].rstrip()) == ("line 7 goes on", "shown")
    assert screen.lines[0] == "line 0"


def test_line_follows_the_size_of_the_terminal(
    stream: TextIO, written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(8, 60), (10, 50)]
    show(*status_line(stream, monkeypatch, sizes), "a" * 70, "b" * 70)
    screen = Screen(10, 60)
    screen.feed(written())
    assert screen.margins == (0, 8)
    assert screen.rows[7].strip() == ""
    assert screen.rows[9].rstrip() == "b" * 48 + "…"


@pytest.mark.parametrize("last", [None, "too small"])
def test_line_vanishes(
    last: str | None, stream: TextIO, written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(8, 60), (8, 60) if last is None else (5, 60)]
    show(*status_line(stream, monkeypatch, sizes), "shown", last, None)
    screen = Screen(8, 60)
    screen.feed(written())
    assert (screen.margins, screen.lines) == ((0, 7), [""])


def test_a_stream_that_is_no_terminal_gets_nothing(
    written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, lines = status_line(StringIO(), monkeypatch, [(8, 60)])
    show(line, lines, "shown", None)
    assert not line.enabled
    assert written() == ""


def test_line_names_runs_with_age_attempt_and_progress() -> None:
    runs = [
        RunAtWork(7, "mail", 2, 4.9, None, None),
        RunAtWork(5, "report", 1, 200.2, 0.5, "page 3"),
    ]
    assert describe(runs) == (
        "2 at work: report run 5, 3 min 20 s, 50% page 3; mail run 7, attempt 2, 4 s"
    )
