"""Keep what handlers print and log."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import TextClause, text

from ..types import Claim
from .connection import Bookkeeping
from .dialect import Dialect
from .failures import FAILURES_KEPT

_FORGET = text("DELETE FROM job_outputs WHERE run_id = :id AND attempt <= :attempt")


class Outputs:
    """The writes of outputs.

    :param books: the worker's bookkeeping connection.
    """

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books

    def write(self, claim: Claim, output: str) -> bool:
        """Write what the attempt of *claim* has printed and logged so far.

        The lease may be lost, or the run may have ended: an attempt's output is kept all the same,
        but never in the place of another claim's.

        :returns: False if the run is gone, or if another transaction has locked its row.
        """
        if claim.attempt > FAILURES_KEPT:
            old = {"id": claim.id, "attempt": claim.attempt - FAILURES_KEPT}
            self._books.rows(_FORGET, old)
        values = {"id": claim.id, "attempt": claim.attempt, "token": claim.token, "output": output}
        return bool(self._books.rows(_write(self._books.dialect), values))


@lru_cache(maxsize=2)
def _write(d: Dialect) -> TextClause:
    # The foreign key takes this lock, and would wait for it.
    lock = "FOR KEY SHARE SKIP LOCKED" if d.skip_locked else ""
    return text(f"""
    INSERT INTO job_outputs (run_id, attempt, worker, output, written_at)
    SELECT id, :attempt, :token, :output, {d.clock} FROM job_runs WHERE id = :id {lock}
    ON CONFLICT (run_id, attempt) DO UPDATE
    SET worker = excluded.worker, output = excluded.output, written_at = excluded.written_at
    WHERE job_outputs.worker = excluded.worker OR EXISTS (
        SELECT 1 FROM job_runs AS r WHERE r.id = excluded.run_id AND r.locked_by = excluded.worker
    )
    RETURNING run_id
    """)
