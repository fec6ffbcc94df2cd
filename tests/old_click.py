"""Before click 8.2, its runner mixed standard error into the standard output."""

from __future__ import annotations

import inspect
from functools import partialmethod
from typing import Any

from click.testing import CliRunner, Result


def behave_as_new() -> None:
    """Let the runner keep the two apart, and show both as the output, as of click 8.2."""
    runner: Any = CliRunner
    result: Any = Result
    if "mix_stderr" in inspect.signature(CliRunner).parameters:
        runner.__init__ = partialmethod(runner.__init__, mix_stderr=False)
        result.output = property(lambda self: self.stdout + self.stderr)
