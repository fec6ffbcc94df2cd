"""Support for click before 8.2, whose runner mixed standard error into the standard output."""

from __future__ import annotations

import inspect
from functools import partialmethod
from typing import Any

from click.testing import CliRunner, Result


def behave_as_new() -> None:
    """Let the runner separate the two streams, and put both into the output, as click 8.2 does."""
    runner: Any = CliRunner
    result: Any = Result
    if "mix_stderr" in inspect.signature(CliRunner).parameters:
        runner.__init__ = partialmethod(runner.__init__, mix_stderr=False)
        result.output = property(lambda self: self.stdout + self.stderr)
