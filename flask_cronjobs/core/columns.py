"""What is written to a run when it is new, begins or ends: each list of columns is here once."""

from __future__ import annotations

from collections.abc import Mapping

from ..db.dialect import Dialect
from ..types import Claim
from .new_run import TYPES


def parameter(d: Dialect, name: str) -> str:
    """Return SQL for the parameter *name*, with the type of that field of a new run."""
    return d.typed(f":{name}", TYPES[name])


def due_sql(d: Dialect) -> str:
    """Return SQL for the parameter ``run_at``, or ``delay`` seconds from now."""
    return f"COALESCE({parameter(d, 'run_at')}, {d.later(':delay')})"


def insert_into_runs(values: Mapping[str, str], due: str, now: str, source: str) -> str:
    """Return the INSERT of new runs.

    One with a rate is marked as waiting.

    :param values: SQL for each column that is given, ``strict`` among them.
    :param due: SQL for when they are due; their slot is the same, unless *values* have another.
    :param source: the statement from its FROM on.
    """
    columns = {
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
    status: str, now: str, error: str, error_type: str, fingerprint: str = "NULL"
) -> dict[str, str]:
    """Return SQL for each column that the end of a run sets.

    :param status: SQL, as are the others.
    """
    return {
        "status": status,
        "finished_at": now,
        "last_error": error,
        "error_type": error_type,
        "fingerprint": fingerprint,
        **dict.fromkeys(("locked_by", "locked_until", "concurrency_share"), "NULL"),
        **dict.fromkeys(("gate", "rate_mark"), "NULL"),
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


_STORED_AS = {"attempt": "attempts", "stored_payload": "payload", "stored_slot": "scheduled_for"}
#: The columns of a claim, in the order of `Claim`'s fields, and then those by which it is sorted.
CLAIMED = (
    *(_STORED_AS.get(name, name) for name in Claim._fields if name != "token"),
    *("rank", "run_at"),
)
NO_CLAIM = ", ".join(f"NULL AS {name}" for name in CLAIMED)


def returned(d: Dialect) -> str:
    """Return the columns that a claim returns."""
    # These two are only for sorting, and one odd value must not make the rows unsortable.
    simple = {
        "rank": "-CAST(job_runs.priority AS bigint)",
        "run_at": d.sortable("job_runs.run_at"),
        "payload": d.unparsed("job_runs.payload"),
    }
    if d.parses:  # It reads a number faster than a time.
        simple["scheduled_for"] = d.sortable("job_runs.scheduled_for")
    return ", ".join(f"{simple.get(name, f'job_runs.{name}')} AS {name}" for name in CLAIMED)


def most_attempts(most: object, attempts: object) -> int:
    """Return ``max_attempts``; if it is no number, which SQLite accepts, the attempts so far."""
    return most if isinstance(most, int) else int(str(attempts))
