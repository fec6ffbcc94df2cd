"""Insert runs in the user's own transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from sqlalchemy import TextClause, bindparam, select, text
from sqlalchemy.orm import Session, scoped_session

from ..models import JobRun
from ..models.columns import UTCDateTime
from .dialect import Dialect, dialect_of, insert_into

#: How many rows one INSERT carries.
BATCH = 1000
_SHARED = ("job_type", "queue", "priority", "max_attempts")

Sessions: TypeAlias = scoped_session[Any] | Session


def insert_run(session: Sessions, values: Mapping[str, Any]) -> tuple[JobRun, bool]:
    """Insert a run in *session*'s transaction; return it, and whether it is new.

    If the idempotency key exists, return the run that has it. If two transactions insert the same
    key at once, the second waits until the first ends and then finds its row; neither fails.
    """
    insert = insert_into(JobRun, session.get_bind().dialect.name).values(**values)
    if values.get("idempotency_key") is None:
        return session.scalars(insert.returning(JobRun)).one(), True
    statement = insert.on_conflict_do_nothing(
        index_elements=["idempotency_key"], index_where=JobRun.idempotency_key.is_not(None)
    ).returning(JobRun)
    existing = select(JobRun).where(JobRun.idempotency_key == values["idempotency_key"])
    while True:
        for query in (statement, existing):
            run = session.scalars(query).one_or_none()
            if run is not None:
                return run, query is statement
        # The row that has the key was deleted between the two statements: insert again.


def insert_runs(
    session: Sessions, shared: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Insert many runs in *session*'s transaction, `BATCH` to a statement.

    :param shared: the columns that they share, and ``delay`` in seconds where ``run_at`` is None.
    :param rows: ``payload``, ``concurrency_key`` and ``concurrency_limit`` of each.
    :returns: their ids, in the order of *rows*.
    """
    dialect = dialect_of(session.get_bind().engine)
    statement = _insert_many(dialect)
    ids: list[int] = []
    for start in range(0, len(rows), BATCH):
        batch = [{**row, "place": place} for place, row in enumerate(rows[start : start + BATCH])]
        parameters = {**shared, "rows": json.dumps(batch)}
        ids += sorted(session.execute(statement, parameters).scalars())
    return ids


@lru_cache(maxsize=2)
def _insert_many(d: Dialect) -> TextClause:
    # One JSON parameter is several times faster than a thousand rows of VALUES.
    own = {"payload": "jsonb", "concurrency_key": "text", "concurrency_limit": "integer"}
    given = "CAST(:run_at AS timestamptz)" if d.name == "postgresql" else ":run_at"
    when = f"COALESCE({given}, {d.later(':delay')})"
    return text(
        f"""
        INSERT INTO job_runs ({", ".join((*_SHARED, *own))},
            scheduled_for, run_at, created_at, updated_at)
        SELECT {", ".join(f":{name}" for name in _SHARED)}, {", ".join(own)},
            {when}, {when}, {d.now}, {d.now}
        FROM {d.table("rows", place="integer", **own)} AS r WHERE true ORDER BY place
        RETURNING id
        """
    ).bindparams(bindparam("run_at", type_=UTCDateTime()))
