"""A group whose commands are imported when they are called: an app that starts needs none."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from .group import JobsGroup


class LazyGroup(JobsGroup):
    """A group of commands by the names of their modules.

    :param lazy: the commands' names, each with ``module:attribute``.
    """

    def __init__(self, name: str, lazy: Mapping[str, str], help: str) -> None:
        super().__init__(name, help=help)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called *cmd_name*, imported now; None if there is none."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
