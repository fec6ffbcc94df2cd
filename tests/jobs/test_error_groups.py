"""Failed attempts in groups: which are alike, what is counted of them, and what is decided."""

from __future__ import annotations

from itertools import pairwise

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import insert

from flask_cronjobs import CronJobs, NotFound
from flask_cronjobs.jobs import error_groups as views
from flask_cronjobs.jobs import reader
from flask_cronjobs.jobs.error_groups import (
    ErrorGroup,
    decide,
    list_errors,
)
from flask_cronjobs.jobs.operations import list_operations
from flask_cronjobs.jobs.reader import Count
from flask_cronjobs.jobs.runs.actions import CANCEL, RETRY, retrying
from flask_cronjobs.jobs.runs.filters import RunFilter
from flask_cronjobs.jobs.runs.list import list_runs
from flask_cronjobs.jobs.runs.outcomes import fingerprint, pattern_of
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobFailure
from flask_cronjobs.testing import drain
from tests.rows import Rows, ago

DAY = 86400.0


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ("no invoice 4711", "no invoice …"),
        ("took 3.5 s at 12:30:05", "took … s at …"),
        ("job 0c9f2a1e-77b1-4c1d-9d1e-5b2f6a7c8d9e is gone", "job … is gone"),
        ("at 0x7f3a9c, digest 9f86d081884c", "at …, digest …"),
        ("no user 'ada lovelace' in \"eu\"", "no user … in …"),
        ("decade faded; added", "decade faded; added"),
        ("  first line\nsecond line 3", "first line"),
        ("a\tb  c", "a b c"),
        ("x" * 400 + " tail", "x" * 300),
        (None, ""),
    ],
)
def test_pattern_leaves_out_what_varies(error: str | None, pattern: str) -> None:
    assert pattern_of(error) == pattern


def test_fingerprint_is_of_task_type_and_pattern() -> None:
    first = fingerprint("send", "ValueError", "no invoice 1")
    assert fingerprint("send", "ValueError", "no invoice 22") == first
    others = [("send", "KeyError", "no invoice 1"), ("read", "ValueError", "no invoice 1")]
    assert first not in {fingerprint(*each) for each in others}
    assert len(first) == 16


def fail(rows: Rows, error: str, *ages: float, status: str = "dead", task: str = "send") -> int:
    """A run with a failed attempt for each age, the latest of which it ended with; its id."""
    known = fingerprint(task, "ValueError", error)
    made = rows.run(status, age=ages[-1], job_type=task, fingerprint=known)
    for attempt, age in enumerate(ages, 1):
        rows.failure(made, attempt, error=error, fingerprint=known, failed_at=ago(age))
    return made


def named(error: str) -> str:
    return fingerprint("send", "ValueError", error)


def the_group(state: State) -> ErrorGroup:
    (found,) = list_errors(state).rows
    return found


def test_worker_records_the_group_of_an_error(
    state: State, jobs: CronJobs, db: SQLAlchemy, context: None
) -> None:
    numbers = iter(range(10))

    @jobs.task(retry=False)
    def send() -> None:
        raise ValueError(f"no invoice {next(numbers)}")

    for _ in range(2):
        send.enqueue()
        db.session.commit()
    drain(raise_errors=False)
    found = the_group(state)
    assert (found.task, found.error_type, found.pattern) == ("send", "ValueError", "no invoice …")
    assert found.message == "no invoice 1"
    assert (found.count, found.dead) == (Count(2), Count(2))
    assert found.days == (*[0] * 13, 2)
    dead = RunFilter(status="dead", fingerprint=found.fingerprint)
    assert len(list_runs(state, dead).rows) == 2
    run_id = list_runs(state, dead).rows[0].id
    RETRY.one(state, run_id)
    CANCEL.one(state, run_id)  # One that ends otherwise is of no group.
    assert len(list_runs(state, RunFilter(fingerprint=found.fingerprint)).rows) == 1


def test_group_says_since_when_and_on_which_days(state: State, rows: Rows) -> None:
    fail(rows, "no invoice 1", 20 * DAY, 3.5 * DAY, 60)
    other = fail(rows, "no invoice 2", 30, status="succeeded")
    fail(rows, "no customer", 7200)
    first, second = list_errors(state).rows
    assert (first.run_id, first.message, first.pattern) == (other, "no invoice 2", "no invoice …")
    assert first.count == Count(4)
    assert first.dead == Count(1)
    assert first.days == (*[0] * 10, 1, 0, 0, 2)
    assert abs((ago(20 * DAY) - first.first).total_seconds()) < 60
    assert abs((ago(30) - first.last).total_seconds()) < 60
    assert second.message == "no customer"


def test_group_says_for_whom(state: State, rows: Rows) -> None:
    known = named("no invoice 1")
    for label in ("a", None, "b", "b", "c", "d"):
        failed = rows.run("dead", label=label, fingerprint=known)
        rows.failure(failed, 1, error="no invoice 1", fingerprint=known, failed_at=ago(60))
    fail(rows, "no customer", 600)
    new, old = list_errors(state).rows
    assert len(new.labels) == len({*new.labels} & {*"abcd"}) == 3
    assert old.labels == ()


def test_attempts_from_before_there_were_groups_are_left_out(state: State, rows: Rows) -> None:
    rows.failure(rows.run("dead"), 1)
    assert list_errors(state).rows == ()
    assert list_runs(state, RunFilter(status="dead", fingerprint="")).rows != ()


def test_at_most_200_groups_are_shown(state: State, rows: Rows) -> None:
    made = {"run_id": rows.run("dead"), "worker": "web-1:7:token", "stack": ""}
    made |= {"error_type": "E", "error": "boom", "started_at": ago(9), "failed_at": ago(8)}
    with state.engine.begin() as connection:
        each = [made | {"attempt": at, "fingerprint": f"{at:016}"} for at in range(201)]
        connection.execute(insert(JobFailure), each)
    assert [len(list_errors(state, limit=limit).rows) for limit in (0, 7, 1_000)] == [1, 7, 200]


def test_counts_and_groups_are_capped(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest failures' groups are there, however many groups there are."""
    monkeypatch.setattr(views, "CAP", 2)
    monkeypatch.setattr(reader, "CAP", 2)
    monkeypatch.setattr(views, "MOST_GROUPS", 2)
    monkeypatch.setattr(views, "LOOKED_AT", 1)
    words = ("one", "two", "three", "four", "five")
    for number, word in enumerate(
        sorted(words, key=lambda w: fingerprint("send", "ValueError", w))
    ):
        fail(rows, word, *(100 - number - each for each in (0.3, 0.2, 0.1)))
    found = list_errors(state, limit=2)
    assert found.total == Count(4, capped=True)
    assert found.cut("group") == "2 of 4+ groups"
    latest, _ = found.rows
    assert latest.count == Count(2, capped=True)
    last = list_runs(state).rows[0].id
    assert latest.run_id == last


def test_resolved_group_comes_back_when_it_is_seen_again(state: State, rows: Rows) -> None:
    fail(rows, "no invoice 1", 60)
    group = the_group(state).fingerprint
    decide(state, "resolved", group, "ada")
    found = list_errors(state, "resolved")
    assert [(row.fingerprint, row.changed_by) for row in found.rows] == [(group, "ada")]
    assert found.numbers == {"open": Count(0), "resolved": Count(1), "muted": Count(0)}
    fail(rows, "no invoice 2", -1)
    assert the_group(state).came_back
    assert list_errors(state, "resolved").rows == ()
    decide(state, "reopened", group, "ada")
    assert not the_group(state).came_back
    done = [(each.what, each.target) for each in list_operations(state).rows]
    assert done == [(what, f"errors of group {group}") for what in ("reopened", "resolved")]


def test_muted_group_stays_away_until_its_time(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(rows, "no invoice 1", 60)
    group = the_group(state).fingerprint
    decide(state, "muted", group, "ada")
    fail(rows, "no invoice 2", -1)
    (found,) = list_errors(state, "muted").rows
    assert found.muted_until is not None
    assert 6.9 * DAY < (found.muted_until - ago()).total_seconds() < 7.1 * DAY
    assert list_errors(state).rows == ()
    monkeypatch.setattr(views, "MUTED_FOR", 0.0)
    decide(state, "muted", group)
    assert the_group(state).muted_until is None


def test_decision_about_an_unknown_group_is_refused(state: State) -> None:
    with pytest.raises(NotFound, match="flask jobs admin errors"):
        decide(state, "resolved", "unknown")
    assert not list_operations(state).rows


@pytest.mark.parametrize("spread", [0.0, 600.0])
def test_retry_takes_the_dead_of_one_group_and_spreads_them(
    state: State, rows: Rows, spread: float
) -> None:
    dead = [fail(rows, f"no invoice {number}", 60) for number in range(20)]
    others = fail(rows, "no customer", 60), fail(rows, "no invoice 9", 60, status="cancelled")
    group = RunFilter(status="dead", fingerprint=named("no invoice 1"))
    result = retrying(spread).many(state, group)
    assert result.changed == 20
    due = sorted((rows.get(each).run_at - ago()).total_seconds() for each in dead)
    assert -30 < due[0] <= due[-1] <= spread
    steps = {round(after - before) for before, after in pairwise(due)}
    assert steps == ({1} if spread else {0})
    assert [rows.get(each).status for each in others] == ["dead", "cancelled"]
