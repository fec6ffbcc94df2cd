"""The numbers of each hour: written once it is over, once only, and kept; marks of what changed."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from flask_cronjobs.config import Settings
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.errors import NotFound
from flask_cronjobs.jobs.history import (
    BOUNDS,
    GRACE,
    HOUR,
    HOURS_A_TICK,
    add_mark,
    counted,
    cumulative,
    ended_in_hour,
    list_marks,
    percentile,
    remove_mark,
    write_hours,
)
from flask_cronjobs.jobs.pruning import prune
from flask_cronjobs.jobs.state import State
from flask_cronjobs.jobs.ticks import begin
from flask_cronjobs.models import JobHour
from tests.kit import Kit
from tests.rows import ago

NINE = datetime(2026, 11, 18, 9, tzinfo=timezone.utc)
OVER = NINE + HOUR + GRACE
EIGHT = NINE - HOUR


def ended(kit: Kit, at: datetime, took: float = 1.0, waited: float = 0.5, **values: Any) -> int:
    started = at - timedelta(seconds=took)
    times: dict[str, Any] = {"started_at": started, "run_at": started - timedelta(seconds=waited)}
    times |= {"finished_at": at, "status": "succeeded", "attempts": 1}
    return kit.run(**(times | values))


def hours(kit: Kit) -> dict[tuple[datetime, str], JobHour]:
    with Session(kit.engine) as session:
        return {(row.hour, row.job_type): row for row in session.scalars(select(JobHour))}


def test_hour_that_is_over_is_written_by_task_and_in_all(kit: Kit) -> None:
    ended(kit, NINE, took=1, waited=0)
    ended(kit, NINE + HOUR - timedelta(microseconds=1), took=3, waited=4, status="dead")
    ended(kit, NINE, took=5, job_type="other")
    ended(kit, NINE - timedelta(microseconds=1))
    ended(kit, NINE + HOUR)
    for status in ("cancelled", "skipped"):
        ended(kit, NINE, status=status)
    kit.run(started_at=NINE)

    assert write_hours(kit.books, EIGHT, OVER) == 1
    rows = hours(kit)
    assert set(rows) == {(NINE, ""), (NINE, "task"), (NINE, "other")}
    task, both = rows[NINE, "task"], rows[NINE, ""]
    assert (task.ended, task.dead, both.ended, both.dead) == (2, 1, 3, 1)
    assert task.took_seconds == pytest.approx(4, abs=0.001)
    assert task.waited_seconds == pytest.approx(4, abs=0.001)
    assert counted(both.took) == Counter({40: 1, 47: 1, 50: 1})
    assert counted(task.waited) == Counter({0: 1, 48: 1})


def test_hour_waits_for_late_commits_and_is_written_once(kit: Kit) -> None:
    ended(kit, NINE)
    assert write_hours(kit.books, EIGHT, OVER - timedelta(seconds=1)) == 0
    assert write_hours(kit.books, EIGHT, OVER) == 1
    ended(kit, NINE)
    # A second tick, which began before the first one had written it.
    assert write_hours(kit.books, EIGHT, OVER) == 1
    assert hours(kit)[NINE, "task"].ended == 1
    assert write_hours(kit.books, NINE, OVER) == 0
    given = {"start": kit.books.dialect.instant(NINE), "end": kit.books.dialect.instant(OVER)}
    assert not kit.books.rows(ended_in_hour(kit.books.dialect), given)


def test_hour_is_of_one_tick_though_another_saw_other_runs(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(kit, NINE, job_type="seen before")
    read = kit.books.rows

    def overtaken(*given: Any) -> Any:
        found = read(*given)
        kit.sql("UPDATE job_runs SET job_type = 'seen after'")
        with Bookkeeping(kit.engine) as other:
            assert write_hours(other, EIGHT, OVER) == 1
        return found

    monkeypatch.setattr(kit.books, "rows", overtaken)
    assert write_hours(kit.books, EIGHT, OVER) == 1
    assert set(hours(kit)) == {(NINE, ""), (NINE, "seen after")}


def test_hours_that_were_left_are_made_up_step_by_step(kit: Kit) -> None:
    ended(kit, NINE)
    late = NINE + (HOURS_A_TICK + 5) * HOUR
    assert write_hours(kit.books, None, late) == HOURS_A_TICK
    assert min(hours(kit)) == (NINE, "")
    last = max(hour for hour, _ in hours(kit))
    assert write_hours(kit.books, last, late) == 4


def test_table_that_is_new_begins_with_the_last_hour_where_nothing_has_ended(kit: Kit) -> None:
    assert write_hours(kit.books, None, OVER) == 1
    assert list(hours(kit)) == [(NINE, "")]


def test_tick_begins_with_the_last_hour_and_forgets_hours_to_come(kit: Kit) -> None:
    assert begin(kit.books, "host:7", "host", 7).last_hour is None
    write_hours(kit.books, EIGHT, OVER)
    assert begin(kit.books, "host:7", "host", 7).last_hour == NINE
    write_hours(kit.books, datetime(2999, 1, 1, tzinfo=timezone.utc), datetime.max.replace(
        year=2999, tzinfo=timezone.utc))  # fmt: skip
    kit.sql("UPDATE job_ticks SET started_at = '2999-01-01 00:00:00'")
    begin(kit.books, "host:7", "host", 7)
    assert begin(kit.books, "host:7", "host", 7).last_hour == NINE


def test_hours_outlive_their_runs_for_their_own_retention(kit: Kit) -> None:
    ended(kit, NINE)
    write_hours(kit.books, EIGHT, OVER)
    age = (datetime.now(timezone.utc) - NINE).total_seconds()
    for _ in prune(kit.books, Settings(retention=0, retention_statistics=age + 60)):
        pass
    assert not kit.all_rows()
    assert set(hours(kit)) == {(NINE, ""), (NINE, "task")}
    for _ in prune(kit.books, Settings(retention_statistics=age - 60)):
        pass
    assert not hours(kit)


def test_odd_times_of_a_row_keep_no_hour_from_being_written(kit: Kit) -> None:
    id_ = ended(kit, NINE)
    odd = "'-infinity'" if kit.books.dialect.name == "postgresql" else "'never'"
    kit.sql(f"UPDATE job_runs SET started_at = {odd}, run_at = {odd} WHERE id = :id", id=id_)
    never_began = ended(kit, NINE, started_at=None, status="dead")
    kit.sql(f"UPDATE job_runs SET job_type = 'other' WHERE id = {never_began}")
    ended(kit, NINE, took=-5, job_type="third", waited=5 * 366 * 86400)
    assert write_hours(kit.books, EIGHT, OVER) == 1
    rows = hours(kit)
    assert rows[NINE, "task"].ended == 1
    other, third = rows[NINE, "other"], rows[NINE, "third"]
    assert (other.took, other.took_seconds, other.waited, other.waited_seconds) == (
        {"0": 1}, 0, {"0": 1}, 0)  # fmt: skip
    assert (third.took, third.took_seconds) == ({"0": 1}, 0)
    assert (third.waited, third.waited_seconds) == ({"113": 1}, 366 * 86400)


@pytest.mark.parametrize("at", [0, 1, 40, len(BOUNDS) - 1])
def test_bucket_has_its_upper_bound(kit: Kit, at: int) -> None:
    d = kit.books.dialect
    given = f"SELECT {BOUNDS[at]} AS seconds, {BOUNDS[at] + 0.00001} AS above"
    typed = ", ".join(f"{d.typed(name, 'float8')} AS {name}" for name in ("seconds", "above"))
    seconds, above, none = (d.bucket(name, BOUNDS) for name in ("seconds", "above", "missing"))
    (row,) = kit.sql(
        f"SELECT {seconds}, {above}, {none}"
        f" FROM (SELECT {typed}, {d.typed('NULL', 'float8')} AS missing FROM ({given}) AS g) AS t"
    )
    assert tuple(row) == (at, at + 1, 0)


def test_percentile_is_near_the_value() -> None:
    of = Counter({40: 94, 48: 6})
    assert percentile(of, 50) == pytest.approx(1.024, rel=0.1)
    assert percentile(of, 94) == pytest.approx(1.024, rel=0.1)
    assert percentile(of, 95) == pytest.approx(4.096, rel=0.1)
    assert percentile(Counter(), 50) is None
    assert percentile(Counter({0: 1}), 50) == 0


def test_buckets_of_an_edited_row_are_read_as_far_as_they_tell() -> None:
    assert counted({"1": 2, "x": 1, "3": "4", "4": -1, "999": 1}) == {1: 2, len(BOUNDS): 1}
    assert counted(["1"]) == counted(None) == Counter()


def test_cumulative_counts_reach_what_took_as_long_as_a_bound() -> None:
    found = dict(cumulative(Counter({0: 1, 8: 2, 9: 4}), 8))
    assert [found[BOUNDS[at]] for at in (0, 8, 16)] == [1, 3, 7]


def test_latest_marks_come_newest_first(state: State) -> None:
    old = add_mark(state, "v811", ago(days=2), "alice")
    new = add_mark(state, "v812\nx" + "y" * 200)
    assert abs(new.at - ago()) < timedelta(minutes=1)
    assert new.name == "v812 x" + "y" * 94
    assert list_marks(state).rows == [new, old]
    assert list_marks(state, since=ago(days=1)).rows == list_marks(state, 1).rows == [new]
    assert list(list_marks(state, 1, list_marks(state, 1).next).rows) == [old]

    assert remove_mark(state, old.id) == "v811"
    assert list_marks(state).rows == [new]
    with pytest.raises(NotFound):
        remove_mark(state, old.id)
