"""Capture what handlers print and log, for the tasks whose output is kept.

Streams that replace ``sys.stdout`` and ``sys.stderr``, and a handler of the root logger, look up
the current run in the context, so the outputs of concurrent runs do not mix. They miss the output
of threads that a handler starts without its context, of loggers that do not propagate, and of
writes to file descriptors (by subprocesses, C libraries or ``sys.stdout.buffer``).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from inspect import currentframe
from threading import Lock
from typing import Any

from ..core.app_state import State
from ..core.current import running

_installing = Lock()


def prepare(state: State) -> None:
    """Capture what handlers print and log from now on."""
    with _installing:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if not (stream is None or isinstance(stream, _Stream)):
                setattr(sys, name, _Stream(stream))
        if _handler not in logging.root.handlers:
            _ = state.app.logger  # Flask gives it no handler once the root logger has one.
            logging.root.addHandler(_handler)


class _Stream:
    """Writes to *stream*, and captures the text."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        run = running()
        # `_Handler` captures log records, so leave out what other handlers print here.
        frame = currentframe()
        caller = frame and frame.f_back
        is_log = caller is not None and caller.f_globals.get("__name__") == "logging"
        # Anything else, such as bytes, is refused by the stream itself.
        is_text = isinstance(text, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if run is not None and run.output is not None and is_text and not is_log:
            run.output.add(text)
        count: int = self._stream.write(text)
        return count

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(logging.Handler):
    """Captures log records."""

    def emit(self, record: logging.LogRecord) -> None:
        run = running()
        if run is not None and run.output is not None and not _comes_from_print():
            try:
                line = self.format(record)
            except Exception:  # A message's own code failed, so use it only if it is a text.
                message = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
                line = f"{record.levelname} {record.name}: {message!r}"
            run.output.add(f"{line}\n")
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not self._has_others(record.name):
            last.handle(record)  # Python does this if there is no handler.

    def _has_others(self, name: str) -> bool:
        """Return whether the logger or one of its parents has a handler besides this one."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def _comes_from_print() -> bool:
    """Return whether this record repeats a print, as the streams of Celery's workers log them."""
    frame = currentframe()
    while frame is not None and frame.f_code is not _Stream.write.__code__:
        frame = frame.f_back
    return frame is not None


_handler = _Handler()
_handler.setFormatter(
    logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%SZ")
)
_handler.formatter.converter = time.gmtime  # type: ignore[union-attr]
