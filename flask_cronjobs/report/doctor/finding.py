"""The result of one check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    :ivar id: the name of the check; it stays the same, to search for.
    :ivar level: ``error``: jobs do not run, or run wrongly; ``warning``: this may happen.
    :ivar what: what was found, and what it means.
    :ivar todo: what to do about it; empty if there is nothing to do.
    """

    id: str
    level: Level
    what: str
    todo: str = ""
