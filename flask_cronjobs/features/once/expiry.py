"""Delete the records of effects that were done long ago."""

from __future__ import annotations

from ...core.prune import Kind
from ...db.dialect import Dialect
from ...models.conditions import DONE_EFFECT


def _is_of_success(_: Dialect) -> str:
    """Return SQL for: the run of the effect ``one`` has succeeded, or its row is gone."""
    run = "SELECT r.status FROM job_runs r WHERE r.id = one.run_id"
    return f"COALESCE(({run}), 'succeeded') IN ('succeeded', 'skipped')"


# The effects of a run that has not succeeded stay while its row exists, since a retry must find
# them.
DONE_EFFECTS = Kind("job_effects", DONE_EFFECT, "done_at", "retention_dead", _is_of_success)
