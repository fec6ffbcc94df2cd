"""The operator's actions, behind the pages, the commands and the methods of `CronJobs`.

The condition of every write says which rows it may change. If it changes none, the error explains
why. Every action is logged with the one who asked for it (*actor*, a text for people).
"""

from __future__ import annotations

from ..store.operations import Change

__all__ = ["Change"]
