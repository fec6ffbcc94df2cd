"""Odd rows, with values that no user of the package would write.

Only they may suffer: all other rows behave as if there were none, and each odd row is reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text


@dataclass
class Odd:
    """An odd row.

    :ivar table: ``job_runs`` or ``job_definitions``.
    :ivar name: what a report calls it: a definition's name, or ``run N``.
    :ivar waits: whether it may wait forever without a report, for a time that never comes.
    :ivar handled: whether it has ended, or continues as it should.
    :ivar reported: whether a log or `doctor` names it.
    """

    what: str
    table: str
    id: int
    name: str
    waits: bool = False
    handled: bool = False
    reported: bool = False


#: A column and the SQL of its value, by the name of what is odd.
Kinds = Mapping[str, tuple[str, str]]

_DEEP = '\'{"a": ' + "[" * 2000 + "]" * 2000 + "}'"
_LONG = '\'{"a": ' + "9" * 5000 + "}'"
_LONG_AGO = "'2020-01-01 00:00:00.000000'"

_POSTGRESQL_RUNS: Kinds = {
    "run_at -infinity": ("run_at", "'-infinity'"),
    "run_at infinity": ("run_at", "'infinity'"),
    "run_at in the year 20000": ("run_at", "'20000-01-01'"),
    "scheduled_for infinity": ("scheduled_for", "'infinity'"),
    "scheduled_for before Christ": ("scheduled_for", "'0044-03-15 BC'"),
    "payload null": ("payload", "'null'"),
    "payload of 2,000 levels": ("payload", _DEEP),
    "payload with 5,000 digits": ("payload", _LONG),
}
_POSTGRESQL_DEFINITIONS: Kinds = {
    "next_run_at infinity": ("next_run_at", "'infinity'"),
    "next_run_at -infinity": ("next_run_at", "'-infinity'"),
    "next_run_at in the year 20000": ("next_run_at", "'20000-01-01'"),
    "next_run_at before Christ": ("next_run_at", "'0044-03-15 BC'"),
    "payload of a definition 3": ("payload", "'3'"),
}
_SQLITE_RUNS: Kinds = {
    "priority a text": ("priority", "'high'"),
    "run_at empty": ("run_at", "''"),
    "run_at a blob": ("run_at", "x'00'"),
    "scheduled_for a number": ("scheduled_for", "5"),
    "max_attempts a text": ("max_attempts", "'y'"),
    "payload a blob": ("payload", "x'00'"),
    "payload null": ("payload", "'null'"),
    "payload of 2,000 levels": ("payload", _DEEP),
    "payload with 5,000 digits": ("payload", _LONG),
}
_SQLITE_DEFINITIONS: Kinds = {
    "next_run_at a blob": ("next_run_at", "x'00'"),
    "next_run_at in the year 1": ("next_run_at", "'0001-01-01 00:00:00.000000'"),
    "payload of a definition 3": ("payload", "'3'"),
    "schedule a number": ("schedule", "5"),
    "timezone a number": ("timezone", "5"),
    "priority of a definition a text": ("priority", "'q'"),
}
# To SQLite, a blob is later than any text.
_WAIT = {"run_at infinity", "run_at in the year 20000", "run_at a blob"}
_WAIT |= {"next_run_at infinity", "next_run_at in the year 20000"}


def kinds(sqlite: bool) -> list[str]:
    """Return the names of what can be odd on this database."""
    runs = _SQLITE_RUNS if sqlite else _POSTGRESQL_RUNS
    return [*runs, *(_SQLITE_DEFINITIONS if sqlite else _POSTGRESQL_DEFINITIONS)]


def insertion(sqlite: bool, what: str, number: int) -> tuple[str, Odd]:
    """Return the statement that inserts an odd row and returns its id, and the row without an id.

    :param number: makes the name of a definition unique.
    """
    runs = _SQLITE_RUNS if sqlite else _POSTGRESQL_RUNS
    if what in runs:
        column, value = runs[what]
        insert = f"INSERT INTO job_runs (job_type, {column}) VALUES ('plain', {value})"
        return f"{insert} RETURNING id", Odd(what, "job_runs", 0, "", what in _WAIT)
    column, value = (_SQLITE_DEFINITIONS if sqlite else _POSTGRESQL_DEFINITIONS)[what]
    values = {"schedule": "'* * * * *'", "next_run_at": _LONG_AGO, column: value}
    insert = (
        f"INSERT INTO job_definitions (name, job_type, origin, {', '.join(values)})"
        f" VALUES ('odd-{number}', 'scheduled', 'database', {', '.join(values.values())})"
    )
    odd = Odd(what, "job_definitions", 0, f"odd-{number}", what in _WAIT)
    return f"{insert} RETURNING id", odd


def look_after(connection: Connection, odd: list[Odd], reports: str) -> None:
    """Note how each odd row has ended, and whether *reports* name it."""
    for row in odd:
        row.reported = re.search(rf"\b{re.escape(row.name)}\b", reports) is not None
        state = connection.execute(text(_STATE[row.table]), {"id": row.id}).scalar()
        row.handled = _is_settled(row.table, state)


_STATE = {
    "job_runs": "SELECT status FROM job_runs WHERE id = :id",
    "job_definitions": "SELECT CAST(next_run_at AS varchar) FROM job_definitions WHERE id = :id",
}


def _is_settled(table: str, state: Any) -> bool:
    if table == "job_runs":
        return state in {"succeeded", "dead", "cancelled", "skipped", None}
    return re.match(r"2\d\d\d-", str(state)) is not None and not str(state).startswith("2020-01-01")


def ids(odd: list[Odd], table: str) -> set[int]:
    """Return the ids of the odd rows of one table."""
    return {row.id for row in odd if row.table == table}
