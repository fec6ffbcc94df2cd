"""Durations, waits and successes of some runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from flask_cronjobs.jobs.definitions.detail import Spread, statistics
from flask_cronjobs.jobs.runs.list import RunRow

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def _row(status: str = "succeeded", took: float = 1.0, waited: float = 0.5, **more: Any) -> RunRow:
    """A run that waited and ran for so many seconds."""
    started = NOW + timedelta(seconds=waited)
    values: dict[str, Any] = dict.fromkeys(RunRow.__dataclass_fields__)
    values |= {"status": status, "scheduled_for": NOW, "run_at": NOW, "started_at": started}
    values |= {"finished_at": started + timedelta(seconds=took)}
    return RunRow(**(values | more))


def test_nothing_is_known_of_no_runs() -> None:
    found = statistics([])
    assert (found.runs, found.since, found.success_rate) == (0, None, None)
    assert (found.took, found.waited) == (None, None)


def test_percentiles_are_of_values_that_there_were() -> None:
    found = statistics([_row(took=second, waited=second / 10) for second in range(1, 101)])
    assert found.took == Spread(50.0, 95.0, 100.0)
    assert found.waited == Spread(5.0, 9.5, 10.0)
    assert statistics([_row(took=3.0)]).took == Spread(3.0, 3.0, 3.0)
    assert statistics([_row(took=3.0), _row(took=1.0)]).took == Spread(1.0, 3.0, 3.0)


def test_the_success_rate_is_of_runs_that_ended_by_themselves() -> None:
    others = [_row(status) for status in ("failed", "running", "queued", "cancelled", "skipped")]
    found = statistics([_row(), _row(), _row(), _row("dead"), *others])
    assert (found.runs, found.ended, found.succeeded, found.success_rate) == (9, 4, 3, 0.75)


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
