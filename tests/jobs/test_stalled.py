"""Work that waits for what does not come is named once it has waited for too long."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.health import headline_of, read_verdict, read_verdict_and_figures, tone_of
from flask_cronjobs.jobs.state import State, state_of
from flask_cronjobs.models import JobBatch, JobPause
from tests.rows import Rows, ago
from tests.tables import make_tables

HOUR = 3600.0
DAY = 24 * HOUR
ORDERED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "on_dead": "skip"}


@pytest.fixture
def state(app: Flask, db: SQLAlchemy) -> State:
    """An app that declares the task ``send``, and in whose database a tick was just now."""
    CronJobs(app, authorize=lambda action: True).task(name="send")(lambda: None)
    make_tables(app, db)
    Rows(app, db).tick()
    return state_of(app)


@pytest.fixture
def rows(app: Flask, db: SQLAlchemy, state: State) -> Rows:
    return Rows(app, db)


def holder(rows: Rows, age: float, **values: Any) -> int:
    share = {"concurrency_key": "k", "concurrency_limit": 1, "concurrency_share": 1}
    return rows.run("running", age=age, **(share | values))


def behind(rows: Rows, age: float, **values: Any) -> int:
    return rows.run(age=age, **(ORDERED | {"order_mark": "waits"} | values))


def head_without_code(rows: Rows, age: float = HOUR) -> None:
    rows.run(age=age, job_type="gone", **ORDERED)
    behind(rows, age)


def held_share(rows: Rows, age: float = 3 * HOUR) -> None:
    holder(rows, age)
    rows.run(age=HOUR, concurrency_key="k", concurrency_limit=1)


def held_turn(rows: Rows, age: float = 3 * HOUR) -> None:
    holder(rows, age, on_dead="skip")
    behind(rows, HOUR)


def no_share(rows: Rows, age: float = 2 * DAY) -> None:
    rows.run(age=age, concurrency_key="k", concurrency_limit=0)


def no_code(rows: Rows, age: float = 2 * DAY) -> None:
    rows.run(age=age, job_type="gone")


def snoozes(rows: Rows, age: float = 2 * DAY, number: int = 5000) -> None:
    rows.run(run_at=ago(-HOUR), scheduled_for=ago(age), snoozes=number)


def open_batch(rows: Rows, age: float = 2 * DAY) -> None:
    rows._insert(JobBatch, {"key": "import", "opened_at": ago(age)})


#: What stands still, its kind, what is said of it, and a part of what to do.
RED: dict[str, tuple[Callable[[Rows], None], str, str, str]] = {
    "behind a head that no code declares": (
        head_without_code,
        "order",
        "run 2 waits in strict order behind run 1, whose task 'gone' this app's code does not",
        "flask jobs admin cancel 1",
    ),
    "for a share of a run that hangs": (
        held_share,
        "held",
        "run 2 waits for run 1, which has held the concurrency key 'k' for 3 h",
        "flask jobs admin show 1",
    ),
    "for the turn of a run that hangs": (
        held_turn,
        "held",
        "run 2 waits for run 1, which has held the concurrency key 'k' for 3 h",
        "flask jobs admin show 1",
    ),
}
AMBER = {
    "for a share that there is not": (
        no_share,
        "share",
        "runs of 'send' have waited for a share of their concurrency key for 2 d",
        "list --status running",
    ),
    "for code": (
        no_code,
        "undeclared",
        "runs of 'gone' have waited for 2 d: this app's code does not declare that task",
        "flask jobs admin cancel --task gone",
    ),
    "again and again": (
        snoozes,
        "snoozes",
        "run 1 of 'send' was due 2 d ago and has been snoozed 5,000 times",
        "flask jobs admin show 1",
    ),
    "to be closed": (
        open_batch,
        "batch",
        "the batch 'import' was opened 2 d ago and not closed",
        "flask jobs admin batches import --close",
    ),
}


@pytest.mark.parametrize("what", RED)
@pytest.mark.pages
def test_what_no_tick_ends_makes_the_verdict_red_wherever_it_is_told(
    app: Flask, state: State, rows: Rows, what: str
) -> None:
    make, kind, said, todo = RED[what]
    make(rows)
    verdict, figures = read_verdict_and_figures(state)
    assert [each.kind for each in verdict.stalled] == [kind]
    assert (verdict.word, tone_of(verdict, figures)) == ("overdue", "bad")
    assert said in verdict.sentence
    client, command = app.test_client(), app.test_cli_runner().invoke
    answer = client.get("/jobs/health")
    assert (answer.status_code, answer.text) == (503, "overdue\n")
    page = client.get("/jobs/").text.replace("&#39;", "'")
    assert "<h1>Work stands still</h1>" in page
    assert said in page
    assert todo in page
    assert f'cronjobs_stalled_seconds{{kind="{kind}"}}' in client.get("/jobs/metrics").text
    assert "cronjobs_healthy 0.0" in client.get("/jobs/metrics").text
    printed = command(args=["jobs", "admin"]).output
    assert said in printed.splitlines()[0]
    assert todo in printed.splitlines()[1]
    (finding,) = (each for each in examine(state) if each.id == "stalled")
    assert (finding.level, finding.what[1:]) == ("error", verdict.stalled[0].what[1:])
    assert todo in finding.todo
    told = json.loads(command(args=["jobs", "admin", "--json"]).output)["verdict"]
    assert told["stalled"][0]["kind"] == kind


@pytest.mark.parametrize("what", AMBER)
@pytest.mark.pages
def test_what_somebody_may_want_makes_it_amber(
    app: Flask, state: State, rows: Rows, what: str
) -> None:
    make, kind, said, todo = AMBER[what]
    make(rows)
    verdict, figures = read_verdict_and_figures(state)
    assert [each.kind for each in verdict.stalled] == [kind]
    assert (verdict.word, tone_of(verdict, figures)) == ("ok", "warn")
    client = app.test_client()
    assert client.get("/jobs/health").text == "ok\n"
    assert said in client.get("/jobs/").text.replace("&#39;", "'")
    assert f'cronjobs_stalled_seconds{{kind="{kind}"}}' in client.get("/jobs/metrics").text
    assert said in app.test_cli_runner().invoke(args=["jobs", "admin"]).output.splitlines()[0]
    findings = [each for each in examine(state) if todo in each.todo]
    assert [each.level for each in findings] == ["warning"]


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: head_without_code(rows, 300),
        lambda rows: held_share(rows, HOUR),
        lambda rows: held_turn(rows, HOUR),
        lambda rows: no_share(rows, 23 * HOUR),
        lambda rows: no_code(rows, 23 * HOUR),
        lambda rows: snoozes(rows, 23 * HOUR),
        lambda rows: snoozes(rows, number=99),
        lambda rows: open_batch(rows, 23 * HOUR),
    ],
)
def test_nothing_is_named_before_its_time(
    state: State, rows: Rows, make: Callable[[Rows], None]
) -> None:
    make(rows)
    verdict, figures = read_verdict_and_figures(state)
    assert (verdict.word, verdict.stalled) == ("ok", ())
    assert headline_of(verdict, figures) == "All is well"


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


@pytest.mark.parametrize("make", [head_without_code, held_share, no_share, no_code, snoozes])
def test_what_is_paused_waits_for_somebody_to_resume_it(
    state: State, rows: Rows, make: Callable[[Rows], None]
) -> None:
    make(rows)
    for task in ("send", "gone"):
        rows._insert(JobPause, {"kind": "task", "name": task})
    assert read_verdict(state).stalled == ()


def test_the_most_urgent_is_named_first(state: State, rows: Rows) -> None:
    for make in (open_batch, snoozes, no_code, no_share):
        make(rows)
    rows.run(age=HOUR, job_type="gone", **(ORDERED | {"concurrency_key": "o"}))
    behind(rows, HOUR, concurrency_key="o")
    verdict = read_verdict(state)
    kinds = [each.kind for each in verdict.stalled]
    assert kinds == ["order", "share", "undeclared", "snoozes", "batch"]
    assert "waits in strict order" in verdict.sentence
