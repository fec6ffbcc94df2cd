"""Parameters of commands, such as ages, payloads and filters, and the user."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast

import click

from .. import types
from ..core.tasks.options import is_moment
from ..insights.run_filters import FILTERS, Filter, RunFilter
from ..insights.wait_reasons import WAITS
from ..text import one_line
from ..text.humanize import parse_age, parse_time
from ..types import MAX_ID, STATUSES

F = TypeVar("F", bound=Callable[..., Any])


def age(value: object) -> float:
    """Parse an age or a duration such as ``90s``, ``30m``, ``2h``, ``1d`` or ``2w``, in seconds.

    A bare number is a number of seconds.
    """
    seconds = parse_age(str(value), unit="s")
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a duration. Write 90s, 30m, 2h, 1d or 2w.")
    return seconds


def time_in_zone(value: object) -> datetime:
    """Parse a time with a time zone, such as ``2026-11-20T06:00Z``."""
    moment = parse_time(str(value))
    if not is_moment(moment):
        raise click.BadParameter(
            f"{value!r} is not a time with a time zone. Write 2026-11-20T06:00Z, or "
            "2026-11-20T07:00+01:00."
        )
    return moment


def json_object(value: str) -> dict[str, Any]:
    """Parse *value* as a JSON object."""
    try:
        return types.json_object(types.stored_json(value))
    except ValueError as error:
        raise click.BadParameter(
            f"{error}. Give an object of arguments, such as '{{\"user_id\": 1}}'."
        ) from None


class Id(click.IntRange):
    """The type of a row's id, which excludes numbers that are too large for the databases."""

    name = "id"

    def __init__(self) -> None:
        super().__init__(1, MAX_ID)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if not str(value).lstrip("-").isdigit():
            self.fail(f"{value!r} is not an id. Write a number, such as 5.", param, ctx)
        return int(super().convert(value, param, ctx))


def _not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter(
            "it is empty, and would match every run. Give a value, or leave the option out."
        )
    return value


_OF_KIND: dict[str, dict[str, Any]] = {
    "status": {"type": click.Choice(STATUSES)},
    "age": {"type": age, "metavar": "AGE"},
    "time": {"type": time_in_zone, "metavar": "TIME"},
    "wait": {"type": click.Choice(WAITS)},
    "flag": {"is_flag": True},
    "id": {"type": Id(), "metavar": "ID"},
}
_OF_FIELD: dict[str, dict[str, Any]] = {
    "error": {"callback": _not_empty},
    "search": {"callback": _not_empty},
    "fingerprint": {"metavar": "GROUP"},
}


def _option(filter_: Filter, multiple: bool) -> Callable[[F], F]:
    own = _OF_KIND.get(filter_.kind, {"metavar": filter_.kind.upper()})
    own = own | _OF_FIELD.get(filter_.field, {})
    names = [f"--{filter_.field.replace('_', '-')}"]
    if len(filter_.parameter) == 1:
        names.insert(0, f"-{filter_.parameter}")
    return click.option(*names, help=filter_.help, multiple=multiple, **own)


def filtered(command: F, several: bool = False) -> F:
    """Add the options of a filter to *command*, which gets ``which``, a `RunFilter`.

    :param several: whether several statuses may be given.
    """

    @wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        if several:
            kwargs["statuses"] = kwargs.pop("status")
        names = RunFilter.__dataclass_fields__.keys() & kwargs.keys()
        which = RunFilter(**{name: kwargs.pop(name) for name in names})
        return command(*args, which=which, **kwargs)

    wrapped: Any = call
    for filter_ in reversed(FILTERS):
        if filter_.help is not None:
            wrapped = _option(filter_, multiple=several and filter_.field == "status")(wrapped)
    return cast("F", wrapped)


#: The option of each command that prints data.
JSON_FLAG = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
#: The option of each list.
WIDE = click.Option(["--wide"], is_flag=True, help="Do not cut rows to the width of the terminal.")


#: The maximum number of rows that a list prints.
MOST_ROWS = 500


def paging(limit: int, by: str) -> Iterator[click.Option]:
    """Yield the options of a list that prints *limit* rows by default.

    :param by: see `output.look_at_list`.
    """
    yield click.Option(
        ["--limit"],
        type=click.IntRange(1, MOST_ROWS),
        metavar="N",
        default=limit,
        show_default=True,
        help="Print at most N.",
    )
    if by == "ID":
        only = "Print only rows with smaller ids."
        yield click.Option(["--before"], type=Id(), metavar=by, help=only)
    else:
        yield click.Option(["--after"], metavar=by, help=f"Print only rows after {by}.")


def actor() -> str:
    """Return the name of the user who runs the command, for the log."""
    try:
        # A variable may hold bytes that are not UTF-8, which no database stores.
        return one_line(f"{getpass.getuser()} (shell)")
    except (KeyError, OSError):
        # A user ID in a container may have no name.
        return f"uid {os.getuid()} (shell)" if hasattr(os, "getuid") else "shell"
