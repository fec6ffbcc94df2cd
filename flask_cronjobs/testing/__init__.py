"""Helpers for the tests of an app: run its jobs, inspect enqueued runs, and move the clock.

They run in the current app context and the test's thread, however your tests isolate their data.
pytest also has them as fixtures; see `plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["drain", "enqueued", "fire", "run", "travel"]

if TYPE_CHECKING:
    from .helpers import drain, enqueued, fire, run, travel
else:
    # pytest imports this package for its plugin at each start, and often does not need helpers.
    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import helpers

        return getattr(helpers, name)
