"""Groups of commands that print our errors in one line, and commands to paste into a shell."""

from __future__ import annotations

import errno
import gc
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from flask.cli import AppGroup, FlaskGroup

from ..errors import CronJobsError
from ..text import clean, one_line, similar_names

#: The error numbers of a write to a full disk or to a closed terminal.
_UNWRITABLE = (errno.ENOSPC, errno.EFBIG, errno.EIO)
#: The settings of a group and of all its commands.
_SETTINGS = {"help_option_names": ["-h", "--help"]}


def examples(*commands: str) -> str:
    """Return the examples for the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def ready_streams() -> None:
    """Reopen a standard stream that was closed, as by ``>&-``; let it accept any character.

    The streams are line-buffered, so that handlers' output and our own lines stay in order.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure"):
            # Only if necessary: for this change Python asks for the stream's position, and a pipe
            # has none.
            if stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
            stream.reconfigure(line_buffering=True)


class JobsGroup(AppGroup):
    """A group of commands that run in the app's context.

    Our own errors end a command with one line and exit status 1. NO_COLOR turns colors off.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn our errors into errors of click."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        ready_streams()
        # The app's objects live as long as this process. Unless they are frozen, each full garbage
        # collection and the exit traverse them all, which may take 0.1 s. Freeze only once: an
        # app's tests call many commands, and what these leave behind must still be collected.
        if not gc.get_freeze_count():
            gc.freeze()
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            from .terminal import leave

            leave(sys.stdout)
            raise click.ClickException(f"The output was not written: {error.strerror}.") from error
        except CronJobsError as error:
            raise click.ClickException(said(error)) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse arguments that no database accepts, before a command uses them."""
        for argument in args:
            if clean(str(argument)) != str(argument):  # An app's test may pass a path.
                raise click.UsageError(f"The argument {argument!a} is not UTF-8.", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command with which *args* begin; for a wrong name, suggest one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            meant = _meant(args)
            hint = f" Did you mean: {meant}" if meant else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(JobsGroup):
    """A group that imports the module of a command when the command is used.

    :param lazy: the names of the commands, each with ``module:attribute``.
    """

    def __init__(self, name: str, lazy: Mapping[str, str], help: str, epilog: str) -> None:
        super().__init__(name, help=help, epilog=epilog, context_settings=_SETTINGS)
        self.lazy: Mapping[str, str] = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command *cmd_name*; None if there is none."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


# Commands to paste into a shell, called like the current one.


def command(*words: str) -> str:
    """Return an admin command."""
    return _line("jobs", "admin", *words)


def said(error: Exception) -> str:
    """Return the message of *error* in one line, with its commands as the user can call them."""
    return as_called(one_line(" ".join(str(error).split())))


def as_called(text: str) -> str:
    """Return *text* with each ``flask jobs …`` in it as the user can call it."""
    return text.replace("flask jobs ", f"{one_line(shlex.join(_program()))} jobs ")


def this_command(**changed: object) -> str:
    """Return the current command with *changed* parameters."""
    from ..text.humanize import print_age

    ctx = click.get_current_context()
    values: dict[str, Any] = {**ctx.params, **changed}
    words = _path(ctx)
    for parameter in ctx.command.params:
        argument = values.get(parameter.name or "")
        several = isinstance(parameter, click.Option) and parameter.multiple
        for value in argument or () if several else (argument,):
            if value is None or value is False or value == parameter.default:
                continue
            if isinstance(parameter, click.Option):
                words.append(parameter.opts[0])
            if value is not True:
                words.append(print_age(value) if isinstance(value, float) else str(value))
    return _line(*words)


def _meant(args: Sequence[str]) -> str:
    """Return the command that *args* may have meant; empty if there is none."""
    from . import jobs_group
    from .overview import admin

    top = {name: ("jobs", name) for name in jobs_group.lazy}
    commands = {**{name: ("jobs", "admin", name) for name in admin.commands}, **top}
    similar = similar_names(args[0], list(commands))[:1]
    return _line(*commands[similar[0]], *args[1:]) if similar else ""


def _path(ctx: click.Context) -> list[str]:
    """Return the words of the command of *ctx*, from ``jobs`` on."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return words


def _line(*words: str) -> str:
    return one_line(shlex.join((*_program(), *words)))


def own_script() -> tuple[str, ...]:
    """Return the arguments with which Python runs the app's own script; none for ``flask``.

    Such a script has a `FlaskGroup` that makes the app, which ``flask`` alone would not find.
    """
    root = click.get_current_context().find_root()
    if not isinstance(root.command, FlaskGroup) or root.command.create_app is None:
        return ()
    program, _, module = (root.info_name or "").partition(" -m ")
    is_module = program == "python" and module
    return ("-m", module) if is_module else (str(Path(sys.argv[0]).absolute()),)


def _program() -> list[str]:
    """Return ``flask`` as it was called, with its own options such as ``--app``."""
    ctx = click.get_current_context(silent=True)
    root = None if ctx is None else ctx.find_root()
    if root is None or not isinstance(root.command, FlaskGroup):
        return ["flask"]
    name = root.info_name or "flask"
    program = ["python", name] if name.endswith(".py") else name.split()
    try:
        _, rest, _ = root.command.make_parser(root).parse_args(sys.argv[1:])
    except click.UsageError:
        return program
    options = sys.argv[1 : len(sys.argv) - len(rest)]
    return [*program, *options] if rest[:1] == _path(ctx or root)[:1] else program
