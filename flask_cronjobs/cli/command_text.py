"""Commands to paste into a shell: with the options of ``flask`` that were given, and quoted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

import click
from flask.cli import FlaskGroup

from ..jobs.humanize import print_age
from ..text import one_line, similar_names

#: What people call our commands elsewhere.
_OTHER_NAMES: Mapping[str, str] = {
    "beat": "tick",
    "check": "doctor",
    "create": "init",
    "delete": "remove",
    "enqueue": "run",
    "health": "doctor",
    "ls": "list",
    "overview": "admin",
    "rm": "remove",
    "schedules": "definitions",
    "start": "work",
    "status": "admin",
    "stop": "cancel",
    "unpause": "resume",
    "upgrade": "init",
    "worker": "work",
}


def command(*words: str) -> str:
    """Return an admin command."""
    return _line("jobs", "admin", *words)


def this_command(**changed: object) -> str:
    """Return the current command with the parameters *changed*."""
    ctx = click.get_current_context()
    values = {**ctx.params, **changed}
    words = _path(ctx)
    for each in ctx.command.params:
        value = values.get(each.name or "")
        if value in (None, False, each.default):
            continue
        if isinstance(each, click.Option):
            words.append(each.opts[0])
        if value is not True:
            words.append(print_age(value) if isinstance(value, float) else str(value))
    return _line(*words)


def as_called(text: str) -> str:
    """Return *text* with the ``flask jobs …`` in it as the user has to call it."""
    return text.replace("flask jobs ", f"{one_line(shlex.join(_program()))} jobs ")


def similar(ctx: click.Context, args: Sequence[str], ours: type[click.Group]) -> list[str]:
    """Return the commands that somebody may mean who wrote *args* after the group of *ctx*.

    :param ours: the class of our groups: those of Flask and of the app are left out.
    """
    top = ctx
    while top.parent is not None and isinstance(top.parent.command, ours):
        top = top.parent
    paths = list(_paths(top, [top.info_name or "jobs"], ours))
    name = _OTHER_NAMES.get(args[0], args[0])
    found = [path for path in paths if path[-1] == name]
    if not found:
        here = len(_path(ctx)) + 1
        close = similar_names(args[0], [path[-1] for path in paths], most=2)
        found = [path for each in close for path in paths if path[-1] == each]
        found = [path for path in found if len(path) == here] or found
    return [_line(*path, *args[1:]) for path in found]


def _paths(ctx: click.Context, path: list[str], ours: type[click.Group]) -> Iterator[list[str]]:
    """Yield the words of each command in the group of *ctx*, and in groups below it."""
    assert isinstance(ctx.command, click.Group)
    for name in ctx.command.list_commands(ctx):
        yield [*path, name]
        found = ctx.command.get_command(ctx, name)
        if isinstance(found, ours):
            yield from _paths(click.Context(found, ctx, name), [*path, name], ours)


def _path(ctx: click.Context) -> list[str]:
    """Return the words of the command of *ctx*, from ``jobs`` on."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return words


def _line(*words: str) -> str:
    return one_line(shlex.join((*_program(), *words)))


def _program() -> list[str]:
    """Return ``flask`` as it was called, with its own options, such as ``--app``."""
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
    given = sys.argv[1 : len(sys.argv) - len(rest)]
    return [*program, *given] if rest[:1] == _path(ctx or root)[:1] else program
