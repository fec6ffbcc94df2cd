"""The line of the runs at work: where it is drawn, and that it leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO

import pytest

from flask_cronjobs.cli.terminal import Lines, StatusLine, describe
from flask_cronjobs.types import RunAtWork
from tests.cli.terminal import Screen

Show = Callable[..., Screen]


class Tty(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Shows texts, one after the other, on a terminal that has one of *sizes* for each."""

    def show(
        *texts: str | None, sizes: list[tuple[int, int]], before: str = "", term: str = "xterm"
    ) -> Screen:
        written: list[str] = []
        given = iter(sizes)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr(Lines, "put", lambda lines, text, end: written.append(text))
        monkeypatch.setattr(
            os, "get_terminal_size", lambda number: os.terminal_size(reversed(next(given)))
        )
        stream = Tty()
        line = StatusLine(stream, Lines(stream))
        for text in texts:
            line.show(text)
        screen = Screen(max(rows for rows, _ in sizes), 60)
        screen.feed("".join((before, *written)))
        return screen

    return show


def test_line_begins_below_what_is_there(show: Show) -> None:
    before = "\r\n".join(f"line {number}" for number in range(8))
    screen = show("shown", sizes=[(8, 60)], before=before)
    screen.feed(" goes on")
    assert (screen.rows[6].rstrip(), screen.rows[7].rstrip()) == ("line 7 goes on", "shown")
    assert screen.lines[0] == "line 0"


def test_line_follows_the_size_of_the_terminal(show: Show) -> None:
    screen = show("a" * 70, "b" * 70, sizes=[(8, 60), (10, 50)])
    assert screen.margins == (0, 8)
    assert screen.rows[7].strip() == ""
    assert screen.rows[9].rstrip() == "b" * 24 + "…" + "b" * 24


@pytest.mark.parametrize(("last", "size"), [(None, (8, 60)), ("too small", (5, 60))])
def test_line_vanishes(show: Show, last: str | None, size: tuple[int, int]) -> None:
    screen = show("shown", last, None, sizes=[(8, 60), size])
    assert (screen.margins, screen.lines) == ((0, 7), [""])


def test_line_is_not_drawn_on_a_terminal_that_can_do_nothing(show: Show) -> None:
    assert show("shown", sizes=[(8, 60)], term="dumb").lines == [""]


def test_line_names_runs_with_age_attempt_and_progress() -> None:
    runs = [
        RunAtWork(7, "mail", 2, 4.9, None, None),
        RunAtWork(5, "report", 1, 200.2, 0.5, "page 3"),
    ]
    assert describe(runs) == (
        "2 at work: report run 5, 3 min 20 s, 50% page 3; mail run 7, attempt 2, 4 s"
    )
