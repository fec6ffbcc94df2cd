"""The commands ``flask jobs tick``, ``work`` and ``admin``; only this package imports click."""

from __future__ import annotations

import os

import click
from flask import Flask
from flask.cli import ScriptInfo, run_command

from .group import LazyGroup, examples, own_script

jobs_group: LazyGroup = LazyGroup(
    "jobs",
    {
        "admin": f"{__name__}.overview:admin",
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
    if beside_server and app.debug and hasattr(os, "fork"):
        # On Windows, the worker would not notice the end of its parent.
        _work_beside_server()


def _work_beside_server() -> None:
    """Start a worker if this is the process in which ``flask run --debug`` serves the app.

    The worker stops when this process ends. When the code changes, the reloader ends this process
    and starts another, so a worker with the new code replaces the old one.
    """
    from werkzeug.serving import is_running_from_reloader

    context = click.get_current_context(silent=True)
    if context is None or context.command is not run_command:
        return
    if context.params["reload"] is not False and not is_running_from_reloader():
        return  # This is the reloader's own process.
    from ..core.background import start_worker

    info = context.ensure_object(ScriptInfo)
    start_worker(info.app_import_path, os.environ, "flask run", script=own_script())
