"""The statements about runs that are handed to an engine."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import TextClause, text

from ...models.conditions import DONE, HANDED, RUNNABLE, RUNNING
from ...types import NO_SUCH_TASK
from ..dialect import Dialect
from .exchange import returned
from .turns import COMES_FIRST


@lru_cache(maxsize=2)
def begin(d: Dialect) -> TextClause:
    """Return the statement by which an engine's worker begins a run.

    It trades the token with which the run was handed on, so only the first of two that bring the
    same token begins it. A run that is paused by now, whose task this code does not have, or before
    which an earlier one of its strict order has come back, does not begin.
    """
    # Each a look into an index. NOT EXISTS would become a join.
    by_task = "SELECT id FROM job_pauses WHERE kind = 'task' AND name = job_runs.job_type"
    by_queue = "SELECT id FROM job_pauses WHERE kind = 'queue' AND name = job_runs.queue"
    return text(f"""
    UPDATE job_runs SET
        locked_by = :token, locked_until = {d.clock_after(":lease")},
        started_at = {d.clock}, updated_at = {d.clock}
    WHERE id = :id AND locked_by = :handed AND ({RUNNING}) IS TRUE
        AND cancel_requested_at IS NULL AND {d.one_of("job_type", "tasks")}
        AND ({by_task}) IS NULL AND ({by_queue}) IS NULL AND {COMES_FIRST}
    RETURNING {returned(d)}
    """)


@lru_cache(maxsize=2)
def refuse(d: Dialect) -> TextClause:
    """Return the statement by which an engine's worker says in a run's row that it lacks its task.

    The run stays handed; it is to be released.
    """
    return text(f"""
    UPDATE job_runs SET error_type = '{NO_SUCH_TASK}', last_error = :error
    WHERE id = :id AND locked_by = :handed AND ({RUNNING}) IS TRUE
        AND NOT {d.one_of("job_type", "tasks")}
    RETURNING job_type
    """)


#: Whether a run that was refused before still ``waits`` in a broker, is ``refused`` again, or has
#: ``begun``.
REFUSED = f"""
    SELECT CASE WHEN {HANDED} THEN 'waits'
                WHEN {RUNNABLE} AND error_type = '{NO_SUCH_TASK}' THEN 'refused'
                ELSE 'begun' END AS state, last_error
    FROM job_runs WHERE id = :id
"""


@lru_cache(maxsize=2)
def in_brokers(d: Dialect) -> TextClause:
    """Return the query for how many runs of a queue were handed on and have not begun."""
    handed = f"SELECT queue FROM job_runs WHERE {HANDED} ORDER BY locked_until"
    return text(f"SELECT count(*) AS number FROM ({handed}) AS handed WHERE queue = :queue")


#: Among how many runs `ended_since` counts.
LATEST = 2000


@lru_cache(maxsize=2)
def ended_since(d: Dialect) -> TextClause:
    """Return the query for how many runs of a queue have succeeded lately, among the latest few.

    Of those alone, since other queues may have ended hundreds of thousands in that time.
    """
    lately = f"{DONE} AND finished_at > {d.later(':seconds')} ORDER BY finished_at DESC"
    latest = f"SELECT queue, status FROM job_runs WHERE {lately} LIMIT {LATEST}"
    of_queue = "queue = :queue AND status = 'succeeded'"
    return text(f"SELECT count(*) AS number FROM ({latest}) AS latest WHERE {of_queue}")
