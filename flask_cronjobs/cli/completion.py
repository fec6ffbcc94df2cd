"""Complete names in a shell. Whatever goes wrong, nothing is printed, and nothing completed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
from flask.cli import ScriptInfo

from ..state import State, state_of

#: How long completion waits for the database, in seconds.
PATIENCE = 1.0
#: How many names it offers at most.
MOST = 200


def definitions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of definitions that begin with *incomplete*."""
    return _names(ctx, incomplete, lambda state: {*state.registry.declarations, *_recorded(state)})


def tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of tasks that begin with *incomplete*."""
    return _names(ctx, incomplete, lambda state: set(state.registry.tasks))


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of definitions and of tasks that begin with *incomplete*."""
    found = {*definitions(ctx, param, incomplete), *tasks(ctx, param, incomplete)}
    return sorted(found)[:MOST]


def _names(ctx: click.Context, incomplete: str, find: Callable[[State], set[str]]) -> list[str]:
    info = ctx.find_object(ScriptInfo)
    if info is None:
        return []
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            with info.load_app().app_context():
                found = find(state_of())
        except (Exception, SystemExit):  # The app may be missing or broken.
            return []
    return sorted(name for name in found if name.startswith(incomplete))[:MOST]


def _recorded(state: State) -> set[str]:
    """Return the names in the database, if it answers soon."""
    found: set[str] = set()

    def read() -> None:
        from ..report.definitions import definition_names

        try:
            found.update(definition_names(state))
        except Exception:  # No database, no tables.
            return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE)
    return set(found)
