"""``flask jobs work`` beside ``flask run --debug``, so that development needs one terminal."""

from __future__ import annotations

import os

import click
from flask import Flask
from flask.cli import ScriptInfo, run_command

from ..engine.child import start_worker


def work_beside_server(app: Flask) -> None:
    """Start a worker if this is the process in which ``flask run --debug`` serves *app*.

    It stops when this process ends, and so does the one of the old code when code has changed: the
    reloader ends the process that serves, and starts another.
    """
    from werkzeug.serving import is_running_from_reloader

    context = click.get_current_context(silent=True)
    if context is None or context.command is not run_command or not app.debug:
        return
    if not hasattr(os, "fork"):
        return  # Windows: a process does not notice there that its parent has ended.
    if context.params["reload"] is not False and not is_running_from_reloader():
        return  # This is the reloader's own process.
    info = context.ensure_object(ScriptInfo)
    # The lowest line of the terminal is left to the server.
    start_worker(info.app_import_path, os.environ | {"TERM": "dumb"})
