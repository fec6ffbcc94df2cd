"""Leave our own frames out of stacks. Pure."""

from __future__ import annotations

import re

#: A frame of the code that calls handlers: of no use to who looks for an error in one.
_OWN = re.compile(
    r"""(?x) [ ][ ]File[ ]".*[/\\]flask_cronjobs[/\\]
        (?: engine[/\\] | store[/\\] | (?:once|extension|task)\.py )"""
)


def without_own_frames(stack: str) -> str:
    """Return *stack* without the frames of this package."""
    kept: list[str] = []
    is_own = False
    for line in stack.split("\n"):
        if line.startswith("  File "):
            is_own = _OWN.match(line) is not None
        elif not line.startswith("    "):
            is_own = False
        if not is_own:
            kept.append(line)
    return "\n".join(kept)
