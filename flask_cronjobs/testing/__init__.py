"""Helpers for the tests of an app: run its jobs in the test, see what was enqueued, move the clock.

They work in the current app context, in the thread of the test, and with every set-up of the
database that gives a test its own data. pytest users have them as fixtures, too: see `plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["drain", "enqueued", "fire", "run", "travel"]

if TYPE_CHECKING:
    from .helpers import drain, enqueued, fire, run, travel
else:
    # pytest imports this package for its plugin whenever it starts, and may not need it.
    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import helpers

        return getattr(helpers, name)
