"""The columns that are written when a run is created, begins or ends."""

from __future__ import annotations

from collections.abc import Mapping

from ..db.dialect import Dialect
from ..types import Claim
from .new_run import TYPES


def parameter(d: Dialect, name: str) -> str:
    """Return SQL for the parameter *name*, cast to the type of that field of a new run."""
    return d.typed(f":{name}", TYPES[name])


def due_sql(d: Dialect) -> str:
    """Return SQL for the time when a new run is due: ``run_at``, or ``delay`` seconds from now."""
    return f"COALESCE({parameter(d, 'run_at')}, {d.later(':delay')})"


def insert_into_runs(values: Mapping[str, str], due: str, now: str, source: str) -> str:
    """Return the INSERT of new runs.

    A run with a rate waits at a gate for its start.

    :param values: SQL for the columns that differ between callers.
    :param due: SQL for the time when the runs are due, and for their slot unless *values* has one.
    :param source: the rest of the statement, from FROM on.
    """
    columns = {
        "gate": rate_gate(values.get("rate_key", "NULL")),
        **dict.fromkeys(("scheduled_for", "run_at"), due),
        **dict.fromkeys(("created_at", "updated_at"), now),
        **values,
    }
    return (
        f"INSERT INTO job_runs ({', '.join(columns)}) SELECT {', '.join(columns.values())} {source}"
    )


def rate_gate(rate_key: str) -> str:
    """Return SQL for the gate of a waiting run; *rate_key* is SQL for its rate key or NULL."""
    return f"CASE WHEN {rate_key} IS NOT NULL THEN 'rate' END"


def ended(
    status: str, now: str, error: str, error_type: str, fingerprint: str = "NULL"
) -> dict[str, str]:
    """Return SQL for each column that the end of a run sets.

    :param status: SQL, as all parameters are.
    """
    return {
        "status": status,
        "finished_at": now,
        "last_error": error,
        "error_type": error_type,
        "fingerprint": fingerprint,
        **dict.fromkeys(("locked_by", "locked_until", "concurrency_share", "gate"), "NULL"),
        "updated_at": now,
    }


def assigned(values: Mapping[str, str]) -> str:
    """Return the list after SET that assigns *values*, SQL by column."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def leased(d: Dialect) -> dict[str, str]:
    """Return SQL for each column that gives a worker the lease of a run under ``token``."""
    return {
        "locked_by": ":token",
        "locked_until": d.clock_after(":lease"),
        **dict.fromkeys(("started_at", "updated_at"), d.clock),
    }


def claimed(d: Dialect) -> dict[str, str]:
    """Return SQL for each column that a claim sets, besides the share of the run's key."""
    return {
        "status": "'running'",
        "attempts": "job_runs.attempts + 1",
        **leased(d),
        **dict.fromkeys(("progress", "progress_message"), "NULL"),
    }


_STORED_AS = {"attempt": "attempts", "stored_payload": "payload", "stored_slot": "scheduled_for"}
#: The columns of a claim in the order of `Claim`'s fields, followed by its sort keys.
CLAIMED = (
    *(_STORED_AS.get(name, name) for name in Claim._fields if name != "token"),
    *("rank", "run_at"),
)


def returned(d: Dialect) -> str:
    """Return the columns that a claim returns."""
    # `rank` and `run_at` are sort keys, and one odd value must not make the rows unsortable.
    expressions = {
        "rank": "-CAST(job_runs.priority AS bigint)",
        "run_at": d.sortable("job_runs.run_at"),
        "payload": d.unparsed("job_runs.payload"),
    }
    if not d.one_writer:  # Reading a number is faster than reading a time.
        expressions["scheduled_for"] = d.sortable("job_runs.scheduled_for")
    return ", ".join(
        f"{expressions[name]} AS {name}" if name in expressions else f"job_runs.{name}"
        for name in CLAIMED
    )


def most_attempts(most: object, attempts: object) -> int:
    """Return *most*, the value of ``max_attempts``, or *attempts* if SQLite returned no number."""
    return most if isinstance(most, int) else int(str(attempts))
