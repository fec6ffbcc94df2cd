"""Each check reports a problem once it has lasted too long, and no sooner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.health_checks import CHECKS, Finding, findings
from flask_cronjobs.models import JobBatch, JobPause
from tests.rows import Rows, ago

HOUR = 3600.0
DAY = 24 * HOUR
ORDERED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "strict": True}


@pytest.fixture(autouse=True)
def _ticks(jobs: CronJobs, rows: Rows) -> None:
    """Declare the task ``send``, and insert a recent tick."""
    jobs.task(name="send")(lambda: None)
    rows.tick()


def holder(rows: Rows, age: float, **values: Any) -> int:
    share = {"concurrency_key": "k", "concurrency_limit": 1, "concurrency_share": 1}
    return rows.run("running", age=age, **(share | values))


def behind(rows: Rows, age: float, **values: Any) -> int:
    return rows.run(age=age, **(ORDERED | {"gate": "order"} | values))


def head_without_code(rows: Rows, age: float) -> None:
    rows.run(age=age, job_type="gone", **ORDERED)
    behind(rows, age)


def held_share(rows: Rows, age: float) -> None:
    holder(rows, age)
    rows.run(age=HOUR, concurrency_key="k", concurrency_limit=1, gate="keys")


def held_turn(rows: Rows, age: float) -> None:
    holder(rows, age, strict=True)
    behind(rows, HOUR)


def no_share(rows: Rows, age: float) -> None:
    rows.run(age=age, concurrency_key="k", concurrency_limit=0)


def no_code(rows: Rows, age: float) -> None:
    rows.run(age=age, job_type="gone")


#: This run waits for its rate.
RATED: dict[str, Any] = {"rate_key": "r", "gate": "rate"}


def no_code_at_a_rate(rows: Rows, age: float) -> None:
    rows.run(age=60, **RATED)
    rows.run(age=age, job_type="gone", **RATED)


def rated_head_without_code(rows: Rows, age: float) -> None:
    rows.run(age=age, job_type="gone", **ORDERED, **RATED)
    behind(rows, age)


def snoozes(rows: Rows, age: float, number: int = 5000) -> None:
    rows.run(run_at=ago(-HOUR), scheduled_for=ago(age), snoozes=number)


def open_batch(rows: Rows, age: float) -> None:
    rows.insert(JobBatch(key="closed", opened_at=ago(age), closed_at=ago(age)))
    rows.insert(JobBatch(key="it's", opened_at=ago(age)))


class Case(NamedTuple):
    """A case of stuck work.

    :ivar id: the check that finds it.
    :ivar age: an age at which it is reported, in seconds.
    :ivar early: an age at which it is not.
    """

    id: str
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
OPEN = 'the batch "it\'s" was opened 2 d ago and has not been closed'
CASES = [
    Case("undeclared-order", head_without_code, HOUR, 300, ORDER, "jobs admin cancel 1"),
    Case("undeclared-order", rated_head_without_code, HOUR, 300, ORDER, "jobs admin cancel 1"),
    Case("held-key", held_share, 3 * HOUR, HOUR, HELD, "flask jobs admin show 1"),
    Case("held-key", held_turn, 3 * HOUR, HOUR, HELD, "flask jobs admin show 1"),
    Case("no-share", no_share, 2 * DAY, 23 * HOUR, SHARE, "list --status running"),
    Case("orphaned-task", no_code, 2 * DAY, 23 * HOUR, CODE, "jobs admin cancel --task gone"),
    Case("orphaned-task", no_code_at_a_rate, 2 * DAY, 23 * HOUR, CODE, "cancel --task gone"),
    Case("snoozed", snoozes, 2 * DAY, 23 * HOUR, AGAIN, "flask jobs admin show 1"),
    Case("open-batch", open_batch, 2 * DAY, 23 * HOUR, OPEN, """batches --close 'it'"'"'s'"""),
]
RED = {"undeclared-order", "held-key"}
of_each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.make.__name__)


def stalled(state: State) -> list[Finding]:
    """Return the findings of stuck work, except those of work that waits for a worker."""
    ids = {case.id for case in CASES}
    return [row for row in findings(state) if row.id in ids]


def test_each_check_has_an_id_of_its_own_and_the_worst_come_first() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    levels = [check.level for check in CHECKS]
    assert levels == sorted(levels), "errors come before warnings"
    assert {case.id for case in CASES if case.id in RED} == RED


@of_each_case
def test_what_stands_still_is_named_and_what_no_tick_ends_makes_the_verdict_red(
    state: State, rows: Rows, case: Case
) -> None:
    case.make(rows, case.age)
    verdict = read_verdict(state)
    (finding,) = verdict.findings
    assert (finding.id, finding.level) == (case.id, "error" if case.id in RED else "warning")
    assert case.said in finding.what
    assert case.todo in finding.todo
    assert finding.since is not None
    assert (verdict.now - finding.since).total_seconds() == pytest.approx(case.age, abs=60)
    if case.id in RED:
        assert (verdict.word, verdict.tone) == ("overdue", "bad")
        assert case.said in verdict.sentence
    else:
        assert (verdict.word, verdict.tone) == ("ok", "warn")


@of_each_case
def test_nothing_is_named_before_its_time(state: State, rows: Rows, case: Case) -> None:
    case.make(rows, case.early)
    snoozes(rows, 2 * DAY, number=99)
    verdict = read_verdict(state)
    assert (verdict.word, verdict.findings, verdict.headline) == ("ok", (), "All is well")


def test_a_key_of_which_one_share_has_just_begun_is_not_stuck(state: State, rows: Rows) -> None:
    two: dict[str, Any] = {"concurrency_limit": 2}
    holder(rows, 5 * HOUR, **two)
    younger = holder(rows, 60, concurrency_share=2, **two)
    rows.run(age=2 * HOUR, concurrency_key="k", gate="keys", **two)
    assert stalled(state) == []
    with state.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE job_runs SET started_at = (SELECT min(started_at) FROM job_runs)"
            f" WHERE id = {younger}"
        )
    assert [finding.id for finding in stalled(state)] == ["held-key"]


def test_a_task_with_a_long_timeout_may_hold_its_key_for_longer(state: State, rows: Rows) -> None:
    jobs = CronJobs()
    jobs.task(name="slow", timeout=5 * HOUR)(lambda: None)
    state.registry.add(jobs.get("slow"))
    held_share(rows, 5 * HOUR)
    assert stalled(state) == []


@pytest.mark.parametrize("kind", ["task", "queue"])
def test_paused_work_waits_until_it_is_resumed(state: State, rows: Rows, kind: str) -> None:
    for case in (CASES[0], CASES[2], *CASES[4:6], CASES[7]):
        case.make(rows, case.age)
    assert {finding.id for finding in stalled(state)} > {"undeclared-order", "orphaned-task"}
    for name in ("send", "gone", "default"):
        rows.insert(JobPause(kind=kind, name=name))
    assert stalled(state) == []


def test_a_late_definition_that_is_broken_leads_to_what_is_wrong_with_it(
    state: State, rows: Rows
) -> None:
    rows.definition("late", next_run_at=ago(HOUR), schedule="0 7 * *")
    (finding,) = findings(state)
    assert finding.id == "late-definition"
    assert "'0 7 * *' cannot be used: it has 4 fields" in finding.todo
    assert finding.todo.endswith("or pause it: flask jobs admin pause late")
    assert "FLASK_APP" not in finding.todo


def test_the_most_urgent_is_named_first(state: State, rows: Rows) -> None:
    for make in (open_batch, snoozes, no_code, no_share):
        make(rows, 2 * DAY)
    rows.run(age=HOUR, job_type="gone", **(ORDERED | {"concurrency_key": "o"}))
    behind(rows, HOUR, concurrency_key="o")
    ids = [finding.id for finding in stalled(state)]
    assert ids == ["undeclared-order", "no-share", "orphaned-task", "snoozed", "open-batch"]
    assert "waits in strict order" in read_verdict(state).sentence
