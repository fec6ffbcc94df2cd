"""A slow reader of lines delays no command: lines that it does not read are dropped and counted."""

from __future__ import annotations

import os
import sys
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from flask_cronjobs.cli.group import ready_streams
from flask_cronjobs.cli.printer import Printer
from flask_cronjobs.cli.terminal import leave, write


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
    data = b""
    while len(data) < size:
        data += os.read(reader, size - len(data))
    return data


def test_what_a_charset_lacks_is_written_all_the_same() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        assert write(stream, "h\u00e9\n", 1.0)
    assert os.read(reader, 100) == b"h\\xe9\n"
    os.close(reader)


def test_lines_that_nobody_reads_are_dropped_and_counted(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, stream = pipe
    filled = fill(stream)
    monkeypatch.setattr(sys, "stdout", stream)
    printer = Printer(as_json=False)
    for number in range(10):
        printer.put(str(number))
    read(reader, filled)
    printer.put("last")
    lines = os.read(reader, 65536).decode().splitlines()
    assert lines == ["(10 unread lines were dropped)", "last"]


def test_a_process_ends_though_its_output_is_not_read(pipe: tuple[int, TextIO]) -> None:
    _, stream = pipe
    filled = fill(stream)
    assert not write(stream, "x\n", 0.1)
    leave(stream)  # At the end, Python's output there is discarded without waiting.
    stream.write("y" * 2 * filled)
    stream.flush()


def test_a_terminal_that_takes_no_more_is_not_waited_for() -> None:
    main, terminal = os.openpty()
    tty.setraw(terminal)
    with os.fdopen(terminal, "w") as stream:
        while write(stream, "x" * 100, 0.1):
            pass
        os.read(main, 65536)
        assert write(stream, "y" * 100, 1.0)
    os.close(main)


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
