"""What is written to a run when it is new, begins or ends: each list of columns is here once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache

from ..db.dialect import Dialect
from ..registry import DefinitionSpec

#: The columns that a new run is given, and their types in PostgreSQL. A task option that a claim
#: obeys is one more, here and in `DefinitionSpec`.
NEW_RUN = {
    "job_type": "text",
    "queue": "text",
    "priority": "integer",
    "max_attempts": "integer",
    "on_dead": "text",
    "payload": "jsonb",
    "concurrency_key": "text",
    "concurrency_limit": "integer",
    "rate_key": "text",
    "idempotency_key": "text",
    "label": "text",
    "unique_while": "text",
    "batch_id": "bigint",
    "definition_id": "bigint",
}
#: Those of them that a definition has for its runs, beside the payload.
RUN_COLUMNS = tuple(name for name in NEW_RUN if name in {*DefinitionSpec._fields} - {"payload"})
_TYPES = {**NEW_RUN, "run_at": "timestamptz", "delay": "double precision"}


def parameter(d: Dialect, name: str) -> str:
    """Return SQL for the parameter *name*, with the type of the column of that name."""
    return d.typed(f":{name}", _TYPES[name])


def due_sql(d: Dialect) -> str:
    """Return SQL for the parameter ``run_at``, or ``delay`` seconds from now."""
    return f"COALESCE({parameter(d, 'run_at')}, {d.later(':delay')})"


def insert_into_runs(values: Mapping[str, str], due: str, now: str, source: str) -> str:
    """Return the INSERT of new runs.

    A run in strict order is marked as new, so that somebody looks whose turn it is, and one with a
    rate as waiting.

    :param values: SQL for each column that is given, ``on_dead`` among them.
    :param due: SQL for when they are due; their slot is the same, unless *values* have another.
    :param source: the statement from its FROM on.
    """
    columns = {
        "order_mark": f"CASE WHEN {values['on_dead']} IS NOT NULL THEN 'new' END",
        "rate_mark": rate_mark(values.get("rate_key", "NULL")),
        **dict.fromkeys(("scheduled_for", "run_at"), due),
        **dict.fromkeys(("created_at", "updated_at"), now),
        **values,
    }
    return (
        f"INSERT INTO job_runs ({', '.join(columns)}) SELECT {', '.join(columns.values())} {source}"
    )


def rate_mark(rate_key: str) -> str:
    """Return SQL for the mark of a run that waits with *rate_key* (SQL)."""
    return f"CASE WHEN {rate_key} IS NOT NULL THEN 'waits' END"


def ended(
    status: str, now: str, error: str, error_type: str, run: str = "", fingerprint: str = "NULL"
) -> dict[str, str]:
    """Return SQL for each column that the end of a run sets.

    In strict order it is marked, so that somebody looks whose turn it is then.

    :param status: SQL, as are the others.
    :param run: the table's name with a dot, where others are at hand.
    """
    return {
        "status": status,
        "finished_at": now,
        "order_mark": f"CASE WHEN {run}on_dead IS NOT NULL THEN 'over' END",
        "last_error": error,
        "error_type": error_type,
        "fingerprint": fingerprint,
        **dict.fromkeys(("locked_by", "locked_until", "concurrency_share", "rate_mark"), "NULL"),
        "updated_at": now,
    }


def assigned(values: Mapping[str, str]) -> str:
    """Return *values*, SQL by column, as what follows SET."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def begun(d: Dialect) -> str:
    """Return what a worker sets that begins a run, under ``token`` for ``lease`` seconds."""
    return f"""
        locked_by = :token, locked_until = {d.clock_after(":lease")},
        started_at = {d.clock}, updated_at = {d.clock}
    """


#: How many characters of the first line of a message tell whether errors are the same.
_HEAD = 300


@cache
def _varying() -> re.Pattern[str]:
    """Return the pattern of what differs from one error to the next: most processes need none."""
    return re.compile(
        r"""(?x)
        '[^']{0,200}' | "[^"]{0,200}" | `[^`]{0,200}`  # Quoted.
        | \b [0-9a-fA-F]{8} (?: -[0-9a-fA-F]{4} ){3} -[0-9a-fA-F]{12} \b  # A UUID.
        | 0[xX][0-9a-fA-F]+
        | \b (?=[0-9a-fA-F]*[0-9]) [0-9a-fA-F]{6,} \b  # Hex: a digest, an id.
        | [0-9]+ (?: [.,:][0-9]+ )*"""
    )


def pattern_of(error: str | None) -> str:
    """Return the first line of the message *error*, with ``…`` for numbers, hex and what is quoted.

    Errors with the same pattern, task and type are of one group.
    """
    head = (error or "").strip().partition("\n")[0][:_HEAD]
    return " ".join(_varying().sub("…", head).split())


def fingerprint(task: str, error_type: str | None, error: str | None) -> str:
    """Return the fingerprint of an error: 16 hex digits."""
    said = "\0".join((task, error_type or "", pattern_of(error)))
    return hashlib.blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()
