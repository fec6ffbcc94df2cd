"""The commands ``flask jobs tick``, ``work`` and ``admin``. Only this package imports click."""

from __future__ import annotations

from flask import Flask

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


def add_commands(app: Flask, beside_server: bool) -> None:
    """Add the commands to *app*.

    :param beside_server: whether ``flask run --debug`` starts a worker.
    """
    app.cli.add_command(jobs_group)
    if beside_server:
        from .beside_server import work_beside_server

        work_beside_server(app)
