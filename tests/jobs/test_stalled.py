"""Work that waits for what does not come is named once it has waited for too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.health import (
    findings_of,
    headline_of,
    read_verdict,
    read_verdict_and_figures,
    verdict_tone,
)
from flask_cronjobs.jobs.overview import list_orphans
from flask_cronjobs.jobs.stalled import REASONS
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobBatch, JobPause
from tests.rows import Rows, ago

HOUR = 3600.0
DAY = 24 * HOUR
ORDERED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "on_dead": "skip"}


@pytest.fixture(autouse=True)
def _ticks(jobs: CronJobs, rows: Rows) -> None:
    """The app declares the task ``send``, and a tick was just now."""
    jobs.task(name="send")(lambda: None)
    rows.tick()


def holder(rows: Rows, age: float, **values: Any) -> int:
    share = {"concurrency_key": "k", "concurrency_limit": 1, "concurrency_share": 1}
    return rows.run("running", age=age, **(share | values))


def behind(rows: Rows, age: float, **values: Any) -> int:
    return rows.run(age=age, **(ORDERED | {"order_mark": "waits"} | values))


def head_without_code(rows: Rows, age: float) -> None:
    rows.run(age=age, job_type="gone", **ORDERED)
    behind(rows, age)


def held_share(rows: Rows, age: float) -> None:
    holder(rows, age)
    rows.run(age=HOUR, concurrency_key="k", concurrency_limit=1)


def held_turn(rows: Rows, age: float) -> None:
    holder(rows, age, on_dead="skip")
    behind(rows, HOUR)


def no_share(rows: Rows, age: float) -> None:
    rows.run(age=age, concurrency_key="k", concurrency_limit=0)


def no_code(rows: Rows, age: float) -> None:
    rows.run(age=age, job_type="gone")


#: A run that waits for its rate.
RATED: dict[str, Any] = {"rate_key": "r", "rate_mark": "waits"}


def no_code_at_a_rate(rows: Rows, age: float) -> None:
    rows.run(age=60, **RATED)
    rows.run(age=age, job_type="gone", **RATED)


def rated_head_without_code(rows: Rows, age: float) -> None:
    rows.run(age=age, job_type="gone", **ORDERED, **RATED)
    behind(rows, age)


def snoozes(rows: Rows, age: float, number: int = 5000) -> None:
    rows.run(run_at=ago(-HOUR), scheduled_for=ago(age), snoozes=number)


def open_batch(rows: Rows, age: float) -> None:
    rows._insert(JobBatch, {"key": "closed", "opened_at": ago(age), "closed_at": ago(age)})
    rows._insert(JobBatch, {"key": "it's", "opened_at": ago(age)})


class Case(NamedTuple):
    """Work that stands still.

    :ivar age: from when on it is named, in seconds.
    :ivar early: an age at which it is not.
    """

    kind: str
    make: Callable[[Rows, float], None]
    age: float
    early: float
    said: str
    todo: str


HELD = "run 2 waits for run 1, which has held the concurrency key 'k' for 3 h"
ORDER = "run 2 waits in strict order behind run 1, whose task 'gone' this app's code does not"
SHARE = "runs of 'send' have waited for a share of their concurrency key for 2 d"
CODE = "runs of 'gone' have waited for 2 d: this app's code does not declare that task"
AGAIN = "run 1 of 'send' was due 2 d ago and has been snoozed 5,000 times"
OPEN = 'the batch "it\'s" was opened 2 d ago and not closed'
CASES = [
    Case("order", head_without_code, HOUR, 300, ORDER, "flask jobs admin cancel 1"),
    Case("order", rated_head_without_code, HOUR, 300, ORDER, "flask jobs admin cancel 1"),
    Case("held", held_share, 3 * HOUR, HOUR, HELD, "flask jobs admin show 1"),
    Case("held", held_turn, 3 * HOUR, HOUR, HELD, "flask jobs admin show 1"),
    Case("share", no_share, 2 * DAY, 23 * HOUR, SHARE, "list --status running"),
    Case("undeclared", no_code, 2 * DAY, 23 * HOUR, CODE, "jobs admin cancel --task gone"),
    Case("undeclared", no_code_at_a_rate, 2 * DAY, 23 * HOUR, CODE, "admin cancel --task gone"),
    Case("snoozes", snoozes, 2 * DAY, 23 * HOUR, AGAIN, "flask jobs admin show 1"),
    Case("batch", open_batch, 2 * DAY, 23 * HOUR, OPEN, """admin batches 'it'"'"'s' --close"""),
]
RED = {"order", "held"}
of_each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.make.__name__)


def test_each_reason_has_a_case() -> None:
    assert list(dict.fromkeys(case.kind for case in CASES)) == [each.kind for each in REASONS]


@of_each_case
def test_what_stands_still_is_named_and_what_no_tick_ends_makes_the_verdict_red(
    state: State, rows: Rows, case: Case
) -> None:
    case.make(rows, case.age)
    verdict, figures = read_verdict_and_figures(state)
    (found,) = verdict.stalled
    assert (found.kind, found.overdue) == (case.kind, case.kind in RED)
    assert case.said in found.what
    assert case.todo in found.todo
    assert found.seconds == pytest.approx(case.age, abs=60)
    findings = findings_of(verdict, figures)
    tone, headline = verdict_tone(verdict, findings), headline_of(verdict, findings)
    if case.kind in RED:
        assert (verdict.word, tone, headline) == ("overdue", "bad", "Work stands still")
        assert case.said in verdict.sentence
    else:
        assert (verdict.word, tone) == ("ok", "warn")
        assert case.said in headline
    (finding,) = (each for each in examine(state) if case.todo in each.todo)
    assert finding.level == ("error" if case.kind in RED else "warning")


@of_each_case
def test_nothing_is_named_before_its_time(state: State, rows: Rows, case: Case) -> None:
    case.make(rows, case.early)
    snoozes(rows, 2 * DAY, number=99)
    verdict, figures = read_verdict_and_figures(state)
    assert (verdict.word, verdict.stalled) == ("ok", ())
    assert headline_of(verdict, findings_of(verdict, figures)) == "All is well"


def test_a_key_at_whose_shares_others_have_just_begun_does_not_stand_still(
    state: State, rows: Rows
) -> None:
    two: dict[str, Any] = {"concurrency_limit": 2}
    holder(rows, 5 * HOUR, **two)
    younger = holder(rows, 60, concurrency_share=2, **two)
    rows.run(age=2 * HOUR, concurrency_key="k", **two)
    assert read_verdict(state).stalled == ()
    with state.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE job_runs SET started_at = (SELECT min(started_at) FROM job_runs)"
            f" WHERE id = {younger}"
        )
    assert [each.kind for each in read_verdict(state).stalled] == ["held"]


def test_a_task_with_a_long_timeout_may_hold_its_key_for_longer(state: State, rows: Rows) -> None:
    jobs = CronJobs()
    jobs.task(name="slow", timeout=5 * HOUR)(lambda: None)
    state.registry.add(jobs.get("slow"))
    held_share(rows, 5 * HOUR)
    assert read_verdict(state).stalled == ()


@pytest.mark.parametrize("kind", ["task", "queue"])
def test_what_is_paused_waits_for_somebody_to_resume_it(
    state: State, rows: Rows, kind: str
) -> None:
    for case in (CASES[0], CASES[2], *CASES[4:6], CASES[7]):
        case.make(rows, case.age)
    assert {each.kind for each in read_verdict(state).stalled} > {"order", "undeclared"}
    for name in ("send", "gone", "default"):
        rows._insert(JobPause, {"kind": kind, "name": name})
    assert read_verdict(state).stalled == ()


def test_the_most_urgent_is_named_first(state: State, rows: Rows) -> None:
    for make in (open_batch, snoozes, no_code, no_share):
        make(rows, 2 * DAY)
    rows.run(age=HOUR, job_type="gone", **(ORDERED | {"concurrency_key": "o"}))
    behind(rows, HOUR, concurrency_key="o")
    verdict = read_verdict(state)
    kinds = [each.kind for each in verdict.stalled]
    assert kinds == ["order", "share", "undeclared", "snoozes", "batch"]
    assert "waits in strict order" in verdict.sentence


def test_the_run_that_waits_is_named_with_its_label(state: State, rows: Rows) -> None:
    rows.run(age=HOUR, job_type="gone", **ORDERED)
    behind(rows, HOUR, label="invoice 5,\ncustomer 9")
    (found,) = read_verdict(state).stalled
    assert found.what.startswith("run 2 (invoice 5, customer 9) waits in strict order behind run 1")


def test_rated_runs_without_code_are_counted_as_those_of_the_task(state: State, rows: Rows) -> None:
    for key in ("r", "s"):
        rows.run(job_type="gone", rate_key=key, rate_mark="waits")
        rows.run(rate_key=key, rate_mark="waits")
    rows.run("failed", job_type="gone", age=100)
    rows.run("succeeded", job_type="gone")
    rows.run(job_type="gone", concurrency_key="k", concurrency_limit=1)
    ((orphan,), _) = list_orphans(state)
    assert (orphan.task, orphan.count.value) == ("gone", 4)
