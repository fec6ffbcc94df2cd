"""Every read for people: what the pages and ``flask jobs admin`` show.

Each function takes an app's `State`, or a `Reader` that several reports share: then they use one
connection and see one now. Nothing here writes.
"""

from __future__ import annotations

from .health import Verdict

__all__ = ["Verdict"]
