"""Lines are written by a thread of their own, and dropped where nobody reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import StringIO
from typing import TextIO

import pytest

from flask_cronjobs.cli import lines as lines_module
from flask_cronjobs.cli.lines import Lines, leave
from tests.process.support import wait_until


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


def test_all_lines_are_written_in_order(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    lines = Lines(stream)
    for number in range(1000):
        lines.put(str(number))
    assert lines.flush()
    assert os.read(reader, 65536).decode().split() == [str(number) for number in range(1000)]


def test_a_stream_without_a_file_is_written_to() -> None:
    stream = StringIO()
    lines = Lines(stream)
    lines.put("a")
    assert lines.flush()
    assert stream.getvalue() == "a\n"


def test_what_a_charset_lacks_is_written_all_the_same() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        lines = Lines(stream)
        lines.put("h\u00e9")
        assert lines.flush()
    assert os.read(reader, 100) == b"h\\xe9\n"
    os.close(reader)


def test_lines_beyond_a_bound_are_dropped_and_counted(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "MOST", 3)
    reader, stream = pipe
    filled = fill(stream)
    lines = Lines(stream)
    lines.put("first")
    wait_until(lambda: lines._writing)
    for number in range(10):  # While the thread is stuck with the first.
        lines.put(str(number))
    read(reader, filled)
    assert lines.flush()
    assert os.read(reader, 65536).decode().splitlines() == [
        "first", "0", "1", "2", "(7 lines were dropped: nobody read them in time)",
    ]  # fmt: skip


def test_flush_waits_as_long_as_somebody_reads_and_no_longer(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "FLUSH_WITHIN", 0.2)
    reader, stream = pipe
    filled = fill(stream)
    lines = Lines(stream)
    lines.put("x")
    assert not lines.flush()
    read(reader, filled)
    assert lines.flush()
    leave(stream)  # What Python writes there at the end goes nowhere, and does not wait.
    stream.write("y" * 2 * filled)
    stream.flush()


def test_no_thread_is_at_work_while_the_process_forks(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    lines = Lines(stream)
    lines.put("a")
    assert lines.flush()
    lines.hold()
    lines.put("b")
    assert lines._thread is None
    lines.go_on()
    assert lines.flush()
    assert os.read(reader, 100) == b"a\nb\n"


def test_hold_does_not_wait_for_a_reader(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "HOLD_WITHIN", 0.05)
    reader, stream = pipe
    filled = fill(stream)
    lines = Lines(stream)
    lines.put("a")
    wait_until(lambda: lines._writing)
    lines.hold()
    lines.put("b")
    lines.go_on()
    read(reader, filled)
    assert lines.flush()
    assert os.read(reader, 100) == b"a\nb\n"
