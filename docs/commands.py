"""The command reference, made from the commands themselves: `conf.py` puts it into commands.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from flask_cronjobs.cli import jobs_group


def reference() -> str:
    """Return the reference as Markdown: a section for each command."""
    return "\n\n".join(_section(context) for context in contexts())


def contexts() -> Iterator[click.Context]:
    """Return the context of each command, ``flask jobs`` first."""
    # With its settings: a command keeps the help option that it has in its first context.
    settings = jobs_group.context_settings
    yield from _below(click.Context(jobs_group, info_name="flask jobs", **settings))


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            if not found.hidden:
                yield from _below(click.Context(found, parent=context, info_name=name))


def _section(context: click.Context) -> str:
    usage = " ".join(context.command.collect_usage_pieces(context))
    parts = [
        f"## {context.command_path}",
        _code("text", f"{context.command_path} {usage}"),
        _paragraphs(context.command.help or ""),
        _options(context),
    ]
    return "\n\n".join(part for part in parts if part)


def _paragraphs(help: str) -> str:
    """Return *help* as Markdown: a paragraph that click prints as it is becomes a block."""
    blocks = inspect.cleandoc(help).split("\n\n")
    return "\n\n".join(
        _code("text", block[2:]) if block.startswith("\b\n") else block for block in blocks
    )


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _options(context: click.Context) -> str:
    rows = [row for each in context.command.get_params(context) if (row := _row(context, each))]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _row(context: click.Context, parameter: click.Parameter) -> str | None:
    record = parameter.get_help_record(context)
    if record is None or not (record[1] or isinstance(parameter, click.Option)):
        return None  # An argument that the usage shows.
    names, help = (text.replace("|", "\\|") for text in record)
    return f"| `{names}` | {help.replace('<', '&lt;')} |"
