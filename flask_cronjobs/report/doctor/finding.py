"""What the doctor hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    :ivar id: a word that stays the same, to search for.
    :ivar level: ``error``: jobs do not run, or not right; ``warning``: they may not some day.
    :ivar what: what was found, and what it means.
    :ivar todo: what to do about it; empty if nothing.
    """

    id: str
    level: Level
    what: str
    todo: str = ""
