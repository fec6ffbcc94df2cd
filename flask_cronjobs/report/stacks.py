"""Leave our own frames out of stacks. Pure."""

from __future__ import annotations

import re

#: A frame of this package: of no use to who looks for an error in a handler. By the names of its
#: modules, since the folder of an app may have the package's name, too.
_OWN = re.compile(
    r"""(?x) [ ][ ]File[ ]".*[/\\]flask_cronjobs[/\\] (?:
        (?: cli | engine | executors | models | operations | registry | report | schedule | store
            | testing | web ) [/\\]
        | (?: __init__ | batch | config | current_run | enqueue | errors | extension | failpoints
            | log | once | operator_api | signals | state | task | text | types ) \.py )"""
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
