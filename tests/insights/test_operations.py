"""An operator's action is a row, in the transaction that does it, and shows its progress."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from flask_cronjobs import CronJobs, DatabaseTrouble, TablesMissing, run_cancelled
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.tasks.registry import DefinitionSpec
from flask_cronjobs.db.errors import LockWait
from flask_cronjobs.errors import StateConflict
from flask_cronjobs.insights.effects import effect_done, effect_redo
from flask_cronjobs.insights.operations import OperationView, list_operations, operations_on
from flask_cronjobs.insights.prune_actions import prune_all
from flask_cronjobs.insights.run_actions import CANCEL, DISCARD, RETRY
from flask_cronjobs.insights.run_detail import facts_of
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import list_runs
from flask_cronjobs.insights.run_payloads import retry_with, run_again
from flask_cronjobs.insights.schedule_actions import (
    Target,
    add_definition,
    pause,
    queue_run,
    remove_definition,
    resume,
)
from tests.kit import received
from tests.marks import on_postgresql
from tests.rows import Rows, ago, view_of


def operations(state: State) -> list[OperationView]:
    """Return all operations, oldest first."""
    return [*reversed(list_operations(state, limit=100).rows)]


def sql(state: State, statement: str) -> None:
    with state.engine.begin() as connection:
        connection.execute(text(statement))


@pytest.fixture
def lose(state: State) -> Callable[..., None]:
    """Return a function that lets an answer be lost.

    It is that to the first statement containing *at* after one containing *behind*.
    """
    parts: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        while parts and parts[0] in " ".join(statement.split()):
            if len(parts) == 1:
                parts.clear()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            del parts[0]

    event.listen(state.engine, "after_cursor_execute", note)
    return lambda behind, at="COMMIT": parts.extend((behind, at))


#: Actions, by a part of their statements.
BY_STATEMENT: dict[str, Callable[[State, int], object]] = {
    "INSERT INTO job_runs": lambda state, _: queue_run(state, "send"),
    "INSERT INTO job_runs (": run_again,
    "UPDATE job_runs": RETRY.one,
    "INSERT INTO job_pauses": lambda state, _: pause(state, Target("queue", "mail")),
}


@on_postgresql
@pytest.mark.parametrize("statement", BY_STATEMENT)
def test_no_act_is_done_twice_or_denied_if_its_answer_is_lost(
    state: State, rows: Rows, jobs: CronJobs, lose: Callable[..., None], statement: str
) -> None:
    jobs.task(name="send")(lambda: None)
    dead = rows.run("dead")
    lose(statement)
    with pytest.raises(DatabaseTrouble, match="It is not known whether the change was committed"):
        BY_STATEMENT[statement](state, dead)
    assert len(operations(state)) == 1


@on_postgresql
@pytest.mark.parametrize("statement", BY_STATEMENT)
def test_an_act_whose_connection_breaks_before_its_commit_is_done(
    state: State, rows: Rows, jobs: CronJobs, lose: Callable[..., None], statement: str
) -> None:
    jobs.task(name="send")(lambda: None)
    dead = rows.run("dead")
    lose("BEGIN", statement)
    BY_STATEMENT[statement](state, dead)
    assert len(operations(state)) == 1


@on_postgresql
def test_runs_count_as_changed_though_the_answer_was_lost(
    state: State, rows: Rows, lose: Callable[..., None]
) -> None:
    dead = [rows.run("dead") for _ in range(3)]
    lose("UPDATE job_runs")
    assert (RETRY.many(state, dead).changed, rows.get(dead[0]).status) == (3, "queued")
    assert [(row.done, row.asked) for row in operations(state)] == [(3, 3)]


@on_postgresql
def test_bulk_action_announces_what_it_changed_though_the_answer_was_lost(
    state: State, rows: Rows, lose: Callable[..., None]
) -> None:
    keyed: dict[str, Any] = {"concurrency_key": "key", "concurrency_limit": 1}
    waiting, parked = rows.run(**keyed), rows.run(gate="keys", **keyed)
    running = rows.run("running")
    lose("UPDATE job_runs")
    with received(run_cancelled) as outcomes:
        result = CANCEL.many(state, [waiting, running])
    assert (result.changed, result.asked) == (2, 1)
    assert [outcome.id for outcome in outcomes] == [waiting]
    assert rows.get(parked).gate is None


@on_postgresql
def test_bulk_action_that_fails_has_announced_what_it_changed(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wait: LockWait) -> bool:
        raise DatabaseTrouble("gone")

    monkeypatch.setattr(LockWait, "pause", fail)
    free, locked = rows.run(), rows.run()
    with state.engine.connect() as holder:
        holder.execute(text(f"SELECT 1 FROM job_runs WHERE id = {locked} FOR UPDATE"))
        with received(run_cancelled) as outcomes, pytest.raises(DatabaseTrouble, match="gone"):
            CANCEL.many(state, [free, locked])
    assert [outcome.id for outcome in outcomes] == [free]


def test_each_act_is_a_row_and_lines_in_the_log_with_who(
    state: State, rows: Rows, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    jobs.task(name="send")(lambda **_: None)
    rows.definition("a", job_type="send")
    rows.effect("e", state="in_doubt")
    rows.effect("f\nforged line", state="in_doubt")
    dead = rows.run("dead", payload={"secret": "hush"})
    RETRY.one(state, dead, "ada")
    CANCEL.one(state, dead, "ada")
    retry_with(state, dead, {"x": 1}, "ada")
    again = run_again(state, dead, actor="ada")
    new = queue_run(state, "a", actor="ada").id
    DISCARD.many(state, [rows.run("dead"), rows.run("dead")], "ada")
    RETRY.many(state, RunFilter(status="dead", task="send"), "ada")
    for target in (Target("definition", "a"), Target("queue", "mail")):
        pause(state, target, "ada")
        resume(state, target, "ada")
    effect_done(state, "e", "ada")
    effect_redo(state, "f\nforged line", "ada")
    daily = DefinitionSpec(
        name="own", job_type="send", schedule="@daily", timezone="UTC", payload={}
    )
    add_definition(state, daily, "ada")
    add_definition(state, daily, "ada")
    add_definition(state, replace(daily, schedule="@hourly"), "ada")
    remove_definition(state, "own", "ada")
    prune_all(state, actor="ada")
    log = operations(state)
    assert {row.actor for row in log} == {"ada"}
    assert all(row.finished_at is not None and not row.stopped for row in log)
    assert [(row.what, row.target, row.run_id, row.done) for row in log] == [
        ("retried", f"run {dead}", dead, 1),
        ("cancelled", f"run {dead}", dead, 1),
        ("retried with another payload", f"run {dead}", dead, 1),
        ("ran again", f"run {dead}", again, 1),
        ("ran now", "a", new, 1),
        ("discarded", "2 runs", None, 2),
        ("retried", "0 runs of send, status dead", None, 0),
        ("paused", "definition a", None, None),
        ("resumed", "definition a", None, None),
        ("paused", "queue mail", None, None),
        ("resumed", "queue mail", None, None),
        ("marked as done", "effect e", None, None),
        ("marked to be done again", "effect f\nforged line", None, None),
        ("added", "definition own", None, None),
        ("changed", "definition own", None, None),
        ("removed", "definition own", None, None),
        ("pruned", "0 runs", None, 0),
    ]
    lines = "\n".join(caplog.messages).splitlines()
    # An action on many runs is logged at the beginning, for each run, and at the end.
    assert len(lines) == len(log) + 2 + 2
    assert all("by ada" in line for line in lines)
    assert "hush" not in caplog.text
    assert lines[0].startswith(f"retried by ada: task send, run {dead}, attempt 1, worker ")


def test_what_changes_nothing_is_no_row(state: State, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="send")(lambda: None)
    finished = rows.run("succeeded")
    with pytest.raises(StateConflict):
        RETRY.one(state, finished)
    resume(state, Target("queue", "mail"))
    assert operations(state) == []


ACTS: dict[str, Callable[[State, int], object]] = {
    "retry": lambda state, run_id: RETRY.one(state, run_id),
    "retry many": lambda state, run_id: RETRY.many(state, [run_id]),
    "pause": lambda state, _: pause(state, Target("queue", "mail")),
    "run again": lambda state, run_id: run_again(state, run_id),
    "prune": lambda state, _: prune_all(state),
}


@pytest.mark.parametrize("name", ACTS)
def test_action_that_cannot_be_recorded_is_not_done(
    state: State, rows: Rows, jobs: CronJobs, name: str
) -> None:
    jobs.task(name="send")(lambda: None)
    dead = rows.run("dead", finished_at=ago(days=1000))
    sql(state, "DROP TABLE job_operations")
    with pytest.raises(TablesMissing):
        ACTS[name](state, dead)
    assert [run.status for run in list_runs(state).rows] == ["dead"]
    with state.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM job_pauses")).scalar() == 0


def test_bulk_action_that_was_stopped_says_how_far_it_came(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    monkeypatch.setattr("flask_cronjobs.insights.run_actions.CHANGED_AT_ONCE", 2)
    ids = [rows.run("dead") for _ in range(5)]
    progress: list[str] = []

    def stop(_: int) -> None:
        progress.extend(row.progress for row in operations(state))
        if len(progress) == 2:
            raise SystemExit(1)

    with pytest.raises(SystemExit):
        RETRY.many(state, ids, "ada", stop)
    assert progress == ["2 of 5, running", "4 of 5, running"]
    assert caplog.messages[-1].endswith("by ada: 4 runs")
    sql(state, f"UPDATE job_operations SET seen_at = '{ago(61):%Y-%m-%d %H:%M:%S.%f%z}'")
    (operation,) = operations(state)
    assert operation.progress == "4 of 5, stopped"


def test_prune_that_was_stopped_says_how_far_it_came(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.core.ticks.DELETED_AT_ONCE", 2)
    for _ in range(5):
        rows.run("succeeded", finished_at=ago(days=1000))

    def stop(_: int) -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        prune_all(state, actor="ada", progress=stop)
    (operation,) = operations(state)
    assert (operation.what, operation.target, operation.actor) == ("pruned", "5 runs", "ada")
    assert operation.progress == "2 of 5, running"


def test_run_says_who_touched_it(state: State, rows: Rows) -> None:
    """A run shows only its own operations."""
    first, second = rows.run("dead"), rows.run("queued")
    RETRY.one(state, first, "ada")
    CANCEL.many(state, [first], "eve")
    CANCEL.one(state, second, "bob")
    assert [(row.actor, row.what) for row in operations_on(state, first)] == [("ada", "retried")]
    assert operations_on(state, rows.run("dead")) == ()
    facts = {fact.label: fact.value for fact in facts_of(view_of(state, second))}
    assert facts["cancelled"] == "by bob"
