"""Read and write the tokens of runs that wait in a broker, and identify their database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from sqlalchemy import TextClause, text

from ...core.outcome import is_ours, ours
from ...db.connection import Bookkeeping
from ...db.dialect import Dialect
from ...models.conditions import HANDED, RUNNING
from ...types import NO_SUCH_TASK, Claim


def give_tokens(books: Bookkeeping, claims: Iterable[Claim], tokens: Iterable[str]) -> list[Claim]:
    """Replace the token of each of *claims* with one of *tokens*; return those that were held.

    A claim is held if its run still has the claim's old token.

    :raises DatabaseTrouble: it is unknown which tokens the runs have.
    """
    pairs = list(zip(claims, tokens, strict=True))
    values = [{"id": claim.id, "token": claim.token, "fresh": token} for claim, token in pairs]
    rows = books.rows(_give_tokens(books.dialect), {"held": json.dumps(values)}, repeat=False)
    written_ids = {row.id for row in rows}
    return [claim._replace(token=token) for claim, token in pairs if claim.id in written_ids]


@lru_cache(maxsize=2)
def _give_tokens(d: Dialect) -> TextClause:
    return text(f"""
    WITH {ours(d, d.table("held", id="bigint", token="text", fresh="text"))}
    UPDATE job_runs SET locked_by = given.fresh FROM given WHERE {is_ours(d)}
    RETURNING job_runs.id
    """)


_IN_BROKERS = text(f"""
    SELECT count(*) AS number FROM (
        SELECT queue FROM job_runs WHERE {HANDED} ORDER BY locked_until
    ) AS handed WHERE queue = :queue
""")


#: Seconds until a run is due again after a worker with older code has refused it.
REFUSED_SECONDS = 60


def refuse(
    books: Bookkeeping, run_id: int, handed: str, tasks: tuple[str, ...], error: str
) -> str | None:
    """Postpone a handed run and record *error* if its task is not one of *tasks*.

    The run stays handed; the caller releases it.

    :param handed: the token with which the run was handed over.
    :returns: the run's task; None if it is one of *tasks*, or if the run has another token now.
    """
    d = books.dialect
    statement = f"""
        UPDATE job_runs SET error_type = '{NO_SUCH_TASK}', last_error = :error,
            run_at = {d.clock_after(":delay")}
        WHERE id = :id AND locked_by = :handed AND ({RUNNING}) IS TRUE
            AND NOT {d.one_of("job_type", "tasks")}
        RETURNING job_type
    """
    values = {"id": run_id, "handed": handed, "tasks": d.many(tasks), "error": error}
    rows = books.rows(text(statement), {**values, "delay": REFUSED_SECONDS})
    return rows[0].job_type if rows else None


def in_brokers(books: Bookkeeping, queue: str) -> int:
    """Return how many runs of *queue* were handed to an executor and have not begun there."""
    return int(books.rows(_IN_BROKERS, {"queue": queue})[0].number)


#: The query for the database's id in its cluster, the table's id, and whether this role may call
#: the function of `_CLUSTER`.
_POSTGRESQL = """
    SELECT oid, to_regclass('job_runs')::oid,
        has_function_privilege('pg_control_system()', 'EXECUTE') AS may_ask
    FROM pg_database WHERE datname = current_database()
"""
#: The query for the id of the cluster. It is separate, since a role may lack the right to send it.
_CLUSTER = "SELECT system_identifier FROM pg_control_system()"
_SQLITE = "SELECT file FROM pragma_database_list WHERE name = 'main'"


def database_fingerprint(books: Bookkeeping) -> str:
    """Return a text that identifies the database, whatever its URL, but reveals nothing about it.

    The text changes if the database is restored or moved. On SQLite, it is made from the ids of the
    file and its disk.
    """
    ids: tuple[object, ...]
    if books.dialect.one_writer:
        file = Path(books.rows(text(_SQLITE))[0].file).stat()
        ids = file.st_dev, file.st_ino
    else:
        (row,) = books.rows(text(_POSTGRESQL))
        ids = tuple(row) + (tuple(books.rows(text(_CLUSTER))[0]) if row.may_ask else ())
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:8]
