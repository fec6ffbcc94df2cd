"""Nobody waits for whoever reads lines: they wait, and are dropped where nobody reads."""

from __future__ import annotations

import os
import sys
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from flask_cronjobs.cli import terminal as lines_module
from flask_cronjobs.cli.terminal import Lines, leave, ready_streams


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe: the number of its reading end, and a stream that writes into it."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    os.close(reader)


def fill(stream: TextIO) -> int:
    """Fill the pipe, and return how many bytes it took."""
    os.set_blocking(stream.fileno(), False)
    size = 0
    try:
        while True:
            size += os.write(stream.fileno(), b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(stream.fileno(), True)
    return size


def read(reader: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += os.read(reader, size - len(got))
    return got


def test_what_a_charset_lacks_is_written_all_the_same() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        lines = Lines(stream)
        lines.put("h\u00e9")
        assert lines.write(1.0)
    assert os.read(reader, 100) == b"h\\xe9\n"
    os.close(reader)


def test_lines_beyond_a_bound_are_dropped_and_counted(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "LINES_WAITING", 3)
    reader, stream = pipe
    filled = fill(stream)
    lines = Lines(stream)
    lines.put("first")
    assert not lines.write()
    for number in range(10):
        lines.put(str(number))
    read(reader, filled)
    assert lines.write(1.0)
    assert os.read(reader, 65536).decode().splitlines() == [
        "first", "0", "1", "2", "(7 lines were dropped: nobody read them in time)",
    ]  # fmt: skip


def test_a_write_waits_as_long_as_somebody_reads_and_no_longer(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    filled = fill(stream)
    lines = Lines(stream)
    lines.put("x")
    assert not lines.write(0.2)
    read(reader, filled)
    assert lines.write(1.0)
    leave(stream)  # What Python writes there at the end goes nowhere, and does not wait.
    stream.write("y" * 2 * filled)
    stream.flush()


def test_a_terminal_that_takes_a_part_gets_the_rest_later() -> None:
    main, terminal = os.openpty()
    tty.setraw(terminal)
    with os.fdopen(terminal, "w") as stream:
        lines = Lines(stream)
        for number in range(2000):
            lines.put(f"{number:09}" * 10)
        assert not lines.write()
        got = b""
        while not lines.write():
            got += os.read(main, 65536)
        while got.count(b"\n") < 2000:
            got += os.read(main, 65536)
    os.close(main)
    assert got.decode().split() == [f"{number:09}" * 10 for number in range(2000)]


def test_a_file_that_was_made_a_pipe_takes_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with (tmp_path / "log").open("w", errors="backslashreplace") as stream:
        os.dup2(writer, stream.fileno())
        os.close(writer)
        monkeypatch.setattr(sys, "stdout", stream)
        ready_streams()
        print("line")
        assert os.read(reader, 10) == b"line\n"
    os.close(reader)
