"""The statements of `Definitions`."""

from __future__ import annotations

from ..models.conditions import LIVE, SCHEDULED
from ..types import RUN_COLUMNS, DefinitionSpec
from .columns import insert_into_runs
from .dialect import Dialect

SPEC_COLUMNS = DefinitionSpec._fields
_STATE = (
    *("origin", "paused_at", "next_run_at"),
    *("considered_until", "undeclared_since", "app"),
)
COLUMNS = ", ".join(("id", *SPEC_COLUMNS, *_STATE))
_SLOT_COLUMNS = {
    **dict.fromkeys(("at", "reason", "kind", "note"), "text"),
    "definition_id": "bigint",
    "skipped": "integer",
}
_ONE_SKIPPED = """'{"skipped": 1}'"""
# A failed run that waits for its retry does not count as an overlap. The condition still contains
# LIVE: SQLite uses a partial index only if the query repeats the index's condition literally.
_OVERLAPS = f"{LIVE} AND live.status <> 'failed'"
# No two runs of a definition with overlap='skip' are at work at once: each takes the first share of
# the definition's key, and if it has none, of one made of its name.
_KEY = "COALESCE(d.concurrency_key, CASE WHEN d.overlap = 'skip' THEN 'definition:' || d.name END)"
_LIMIT = "CASE WHEN d.overlap = 'skip' THEN 1 ELSE d.concurrency_limit END"


def read_definitions(d: Dialect) -> str:
    """Return the SELECT of `Definitions.read`."""
    due = f"{SCHEDULED} AND next_run_at <= {d.now}"
    # The plus keeps SQLite from reading all definitions by id instead of only those that are due.
    return f"""
    SELECT * FROM (
        SELECT {COLUMNS}, {d.now} AS now FROM job_definitions
        WHERE {due} AND {_ours(d)} AND +id > :after ORDER BY +id LIMIT :chunk
    ) AS due
    UNION ALL
    SELECT {COLUMNS}, {d.now} AS now FROM job_definitions
    WHERE :all AND origin = 'code' AND {d.one_of("name", "declared")}
        AND (paused_at IS NOT NULL OR next_run_at IS NULL OR next_run_at > {d.now})
    UNION ALL
    SELECT * FROM (
        SELECT {COLUMNS}, {d.now} AS now FROM job_definitions
        WHERE :all AND {SCHEDULED} AND next_run_at > {d.now}
            AND next_run_at <= {d.later(":near")} AND timezone <> 'UTC'
            AND origin = 'database' AND {d.one_of("job_type", "tasks")}
        ORDER BY random() LIMIT :some
    ) AS near
    """


def _ours(d: Dialect) -> str:
    return (
        f"((origin = 'code' AND {d.one_of('name', 'declared')})"
        f" OR (origin = 'database' AND {d.one_of('job_type', 'tasks')}))"
    )


def _moment(d: Dialect, value: str) -> str:
    return f"CAST({value} AS timestamptz)" if d.name == "postgresql" else value


def move_watermarks(d: Dialect) -> str:
    """Return the UPDATE that moves each watermark from ``expected`` to ``following``.

    A definition that another transaction has locked is left to the next tick on PostgreSQL.
    """
    free = ""
    if d.skip_locked:
        planned = f"SELECT definition_id FROM {d.table('plans', definition_id='bigint')} AS p"
        found = f"SELECT id FROM job_definitions WHERE {d.any_of('id', planned)} {d.skip_locked}"
        free = f"AND {d.any_of('job_definitions.id', found)}"
    plans = d.table(
        "plans", definition_id="bigint", expected="text", following="text", considered="text"
    )
    return f"""
    UPDATE job_definitions SET next_run_at = {_moment(d, "p.following")},
        considered_until = COALESCE({_moment(d, "p.considered")}, considered_until),
        undeclared_since = NULL, updated_at = {d.now}
    FROM {plans} AS p
    WHERE job_definitions.id = p.definition_id AND job_definitions.paused_at IS NULL
        AND {d.same_instant("job_definitions.next_run_at", "p.expected")}
        {free}
    RETURNING job_definitions.id AS id
    """


def insert_slots(d: Dialect, moved: str) -> str:
    """Return the INSERT of slots as runs; *moved* is SQL for the ids of their definitions."""
    # Not by EXISTS, for which PostgreSQL may choose to read all live runs instead.
    overlapping = (
        "(d.overlap = 'skip' AND (SELECT live.id FROM job_runs live"
        f" WHERE live.definition_id = d.id AND live.{_OVERLAPS} LIMIT 1) IS NOT NULL)"
    )
    at = _moment(d, "s.at")
    skipped = f"(s.skipped > 0 OR {overlapping})"
    overlap = "'overlap: an earlier run was not finished'"
    values = {
        **{name: f"d.{name}" for name in ("payload", *RUN_COLUMNS)},
        "definition_id": "d.id",
        "concurrency_key": _KEY,
        "concurrency_limit": _LIMIT,
        "status": f"CASE WHEN {skipped} THEN 'skipped' ELSE 'queued' END",
        "finished_at": f"CASE WHEN {skipped} THEN {d.now} END",
        "turn": f"CASE WHEN d.on_dead IS NOT NULL AND NOT {skipped} THEN 'new' END",
        **{
            name: f"CASE WHEN s.skipped > 0 THEN {given} WHEN {overlapping} THEN {by_overlap} END"
            for name, given, by_overlap in (
                ("last_error", "s.reason", overlap),
                ("error_type", "s.kind", "'Overlap'"),
                ("result", d.json("s.note"), d.json(_ONE_SKIPPED)),
            )
        },
    }
    source = f"""
    FROM {d.table("slots", **_SLOT_COLUMNS)} AS s JOIN job_definitions d ON d.id = s.definition_id
    WHERE {d.any_of("d.id", moved)}
    ORDER BY s.at
    ON CONFLICT DO NOTHING
    RETURNING id, definition_id, job_type, scheduled_for, status, result, last_error
    """
    return insert_into_runs(values, at, d.now, source)


def mark_undeclared(d: Dialect) -> str:
    """Return the UPDATE of `Definitions.mark_undeclared`."""
    # "= ANY" with thousands of names would compare each with each.
    declared = (
        "SELECT unnest(CAST(:declared AS text[]))"
        if d.name == "postgresql"
        else "SELECT value FROM json_each(:declared)"
    )
    undeclared = f"""
        SELECT id FROM job_definitions
        WHERE origin = 'code' AND undeclared_since IS NULL AND (app IS NULL OR app = :app)
            AND name NOT IN ({declared})
        LIMIT :chunk {d.skip_locked}
    """
    return f"""
    UPDATE job_definitions SET undeclared_since = {d.now} WHERE {d.any_of("id", undeclared)}
    """


def record_at_once(d: Dialect) -> str:
    """Return PostgreSQL's one statement for both steps."""
    return f"WITH moved AS ({move_watermarks(d)}) {insert_slots(d, 'SELECT id FROM moved')}"
