"""Groups of commands: they print our errors in one line, and suggest commands for a typo."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from flask.cli import AppGroup

from ..errors import CronJobsError
from ..text import clean, one_line

#: For a group and all commands in it.
_SETTINGS = {"help_option_names": ["-h", "--help"]}


def examples(*commands: str) -> str:
    """Return what the help of a command says at its end."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


class JobsGroup(AppGroup):
    """A group of commands that run in the app's context.

    An error of ours ends a command with one line and exit status 1. NO_COLOR turns colors off.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn our errors into click's."""
        from .terminal import leave, ready_streams, unwritable

        if os.environ.get("NO_COLOR"):
            ctx.color = False
        ready_streams()
        try:
            return super().invoke(ctx)
        except OSError as error:
            if not unwritable(error):
                raise
            leave(sys.stdout)
            raise click.ClickException(f"The output was not written: {error.strerror}.") from error
        except CronJobsError as error:
            from .output import as_called

            text = one_line(" ".join(str(error).split()))
            raise click.ClickException(as_called(text)) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what no database takes, before any command looks for it."""
        for each in args:
            if clean(str(each)) != str(each):  # A test of an app may give a path.
                raise click.UsageError(f"The argument {each!a} is not UTF-8.", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with; suggest some for a typo."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from .output import similar

            close = "\n".join(f"  {each}" for each in similar(ctx, args, JobsGroup))
            hint = f" Did you mean:\n{close}" if close else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(JobsGroup):
    """A group that imports the module of a command when it is used.

    :param lazy: the names of the commands, each with ``module:attribute``.
    """

    def __init__(self, name: str, lazy: Mapping[str, str], help: str, epilog: str) -> None:
        super().__init__(name, help=help, epilog=epilog, context_settings=_SETTINGS)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command *cmd_name*; None if there is none."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
