"""How long a run in a list took and had waited."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from flask_cronjobs.jobs.runs.rows import RunRow

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def _row(status: str = "succeeded", took: float = 1.0, waited: float = 0.5, **more: Any) -> RunRow:
    """A run that waited and ran for so many seconds."""
    started = NOW + timedelta(seconds=waited)
    values: dict[str, Any] = dict.fromkeys(RunRow.__dataclass_fields__)
    values |= {"status": status, "scheduled_for": NOW, "run_at": NOW, "started_at": started}
    values |= {"finished_at": started + timedelta(seconds=took)}
    return RunRow(**(values | more))


def test_times_that_a_retry_or_a_cancel_has_changed_do_not_count() -> None:
    row = _row("failed", run_at=NOW + timedelta(hours=1))
    assert (row.waited, row.took) == (None, None)
    assert _row("cancelled").took is None
    assert _row("queued").waited is None
    assert _row("running", waited=7.0).waited == 7.0
    assert _row("succeeded", started_at=None).waited is None


def test_a_clock_that_went_back_makes_no_negative_times() -> None:
    row = _row(took=-3.0, waited=-2.0)
    assert (row.waited, row.took) == (0.0, 0.0)
