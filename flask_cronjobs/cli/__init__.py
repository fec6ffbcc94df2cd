"""The commands ``flask jobs tick``, ``work`` and ``admin``. Only this package imports click."""

from __future__ import annotations

from .group import LazyGroup, examples

jobs_group: LazyGroup = LazyGroup(
    "jobs",
    {
        "admin": f"{__name__}.admin:admin",
        "tick": f"{__name__}.tick:tick_command",
        "work": f"{__name__}.work:work_command",
    },
    help="Run the app's scheduled and background jobs.",
    epilog=examples("flask jobs tick", "flask jobs admin", "flask jobs admin list --status dead"),
)
