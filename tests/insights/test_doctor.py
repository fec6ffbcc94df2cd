"""The doctor finds each fault by its id, suggests a remedy, and exits 1 for an error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.core.tasks.options import TaskOptions
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.health_checks import Finding
from flask_cronjobs.insights.queues import list_hosts
from flask_cronjobs.task import Task
from tests.rows import Rows, ago


@pytest.fixture
def state_on() -> Iterator[Callable[..., State]]:
    """Return a function that makes an app on a database, with options of its engine."""
    states: list[State] = []

    def make(url: str, **options: Any) -> State:
        app, db = Flask("another"), SQLAlchemy()
        app.config.update(SQLALCHEMY_DATABASE_URI=url, SQLALCHEMY_ENGINE_OPTIONS=options)
        db.init_app(app)
        CronJobs(app)
        states.append(state_of(app))
        return states[-1]

    yield make
    for made_state in states:
        made_state.engine.dispose()


def declare(state: State, name: str, schedule: str | None = None) -> None:
    task = Task(lambda: None, name, TaskOptions(), state.registry)
    state.registry.add(task)
    if schedule is not None:
        task.schedule(schedule, name=name)


def found(state: State) -> dict[str, Finding]:
    return {finding.id: finding for finding in examine(state)}


def bad(state: State) -> set[str]:
    return {name for name, finding in found(state).items() if finding.level in ("warning", "error")}


def execute(state: State, *statements: str) -> None:
    with state.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def test_a_sound_app_has_no_complaint(state: State, rows: Rows) -> None:
    declare(state, "daily", "@daily")
    rows.definition("daily")
    rows.tick(clock_offset=0.1)
    rows.run("succeeded", finished_at=ago(days=14, minutes=50))  # Pruning is not behind yet.
    assert bad(state) <= {"journal"}
    findings = found(state)
    assert findings["ticks"].level == "ok"
    assert findings["ticks"].what.endswith(", by `flask jobs tick`")
    assert str(state.engine.url.database) in findings["database"].what
    assert "Flask-SQLAlchemy" in findings["versions"].what
    assert all(finding.todo for finding in findings.values() if finding.level == "error")


@pytest.mark.parametrize(
    ("resident", "version", "message"),
    [
        (False, "0.1.0", "by `flask jobs tick`"),
        (True, "0.1.0", "by `flask jobs work`"),
        (True, None, "by `flask jobs work`"),
        (True, "0.1.0 gunicorn", "by `flask jobs work`, which gunicorn started"),
    ],
)
def test_what_ticked_last_is_named(
    state: State, rows: Rows, resident: bool, version: str | None, message: str
) -> None:
    rows.tick(resident=resident, version=version)
    assert found(state)["ticks"].what.endswith(f"from web-1, {message}")
    assert list_hosts(state).rows[0].version == (version and "0.1.0")


def test_tables_made_by_the_app_are_sound_as_well(
    app: Flask, db: SQLAlchemy, jobs: CronJobs
) -> None:
    """`db.create_all()` creates them from the plain copies."""
    findings = found(state_of(app))
    assert findings["tables"].level == "ok"
    assert not {"columns", "indexes"} & findings.keys()


@pytest.mark.parametrize(
    ("statements", "id_", "level", "message"),
    [
        (["ALTER TABLE job_ticks DROP COLUMN clock_offset"], "columns", "error", "clock_offset"),
        (["DROP INDEX uq_job_runs_slot"], "indexes", "error", "uq_job_runs_slot"),
        (["DROP INDEX ix_job_runs_ready"], "indexes", "warning", "ix_job_runs_ready"),
        (
            [
                "DROP INDEX uq_job_definitions_name",
                "CREATE INDEX uq_job_definitions_name ON job_definitions (name)",
            ],
            *("indexes", "error", "not unique"),
        ),
        (
            [
                "DROP INDEX ix_job_ticks_started_at",
                "CREATE UNIQUE INDEX ix_job_ticks_started_at ON job_ticks (started_at)",
            ],
            *("indexes", "error", "unique, but must not be"),
        ),
        (
            ["DROP INDEX ix_job_runs_rate", "CREATE INDEX ix_job_runs_rate ON job_runs (rate_key)"],
            *("indexes", "warning", "ix_job_runs_rate does not have the columns"),
        ),
    ],
)
def test_missing_parts_of_the_tables_are_found(
    state: State, statements: list[str], id_: str, level: str, message: str
) -> None:
    execute(state, *statements)
    findings = found(state)
    assert (findings[id_].level, message in findings[id_].what) == (level, True)
    assert ("ticks" in findings) == (id_ != "columns")


@pytest.mark.parametrize(("age", "message"), [(None, "another database"), (3600, "by hand")])
def test_ticks_that_do_not_come_are_an_error_that_names_the_crontab(
    state: State, rows: Rows, age: float | None, message: str
) -> None:
    if age is not None:
        rows.tick(age=age)
    finding = found(state)["ticks"]
    assert finding.level == "error"
    assert "admin crontab" in finding.todo
    assert message in finding.todo


def test_this_host_s_clock_is_compared(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_cronjobs.insights.doctor.time.time", lambda: ago(-90).timestamp())
    finding = found(state)["clock"]
    assert (finding.level, "ahead of" in finding.what) == ("warning", True)


def test_clocks_of_other_hosts_are_compared(state: State, rows: Rows) -> None:
    rows.tick(host="good", clock_offset=0.2)
    rows.tick(age=120, host="mended", clock_offset=90.0)
    rows.tick(age=1, host="mended", clock_offset=0.01)
    rows.tick(host="skewed", clock_offset=-90.0)
    (finding,) = (row for row in examine(state) if row.id == "host-clock")
    assert (
        finding.what == "The clock of skewed was 1 min 30 s behind the database's at its last tick"
    )


def test_problems_of_the_verdict_are_findings(state: State, rows: Rows) -> None:
    rows.tick()
    rows.run("dead", age=60)
    rows.effect("old", state="done", done_at=ago(days=90, minutes=70))
    findings = found(state)
    assert {name for name in findings if name in ("dead", "pruning")} == {"dead", "pruning"}
    assert "flask jobs admin prune" in findings["pruning"].todo


def test_advice_about_dead_runs_is_to_retry_those_that_are_counted(
    app: Flask, state: State, rows: Rows
) -> None:
    """Older dead runs, up to 90 days, are not retried."""
    runs = [rows.run("dead", finished_at=ago(hours=hours)) for hours in (1, 23, 25, 2000)]
    advice = found(state)["dead"]
    assert advice.what.startswith("2 runs died")
    listed = app.test_cli_runner().invoke(args=[*advised(advice, "list"), "--json"])
    assert {row["id"] for row in json.loads(listed.stdout)["runs"]} == set(runs[:2])
    app.test_cli_runner().invoke(args=[*advised(advice, "retry"), "--yes"])
    assert [rows.get(run_id).status for run_id in runs] == ["queued", "queued", "dead", "dead"]


def advised(finding: Finding, verb: str) -> list[str]:
    """Return the arguments of the command that *finding* suggests, as a user would copy it."""
    (command,) = re.findall(rf"flask (jobs admin {verb}[^`.]*)", finding.todo)
    return shlex.split(command)


def test_a_database_that_does_not_answer_is_a_finding(
    postgresql_url: str, state_on: Callable[..., State]
) -> None:
    findings = examine(state_on(f"{postgresql_url}_that_is_not_there"))
    assert [(finding.id, finding.level) for finding in findings] == [("database", "error")]
    assert "_that_is_not_there" in findings[0].todo
    assert findings[0].what.startswith("The database cannot be used: ")
    assert "doctor" not in findings[0].what


def test_sqlite_without_wal_is_a_warning(app: Flask, jobs: CronJobs) -> None:
    if state_of(app).engine.dialect.name == "sqlite":
        assert found(state_of(app))["journal"].level == "warning"
        create_tables(state_of(app).engine)
        assert found(state_of(app))["journal"].level == "ok"


@pytest.mark.pgbouncer
@pytest.mark.parametrize(
    ("arguments", "level"), [({}, "warning"), ({"prepare_threshold": None}, "ok")]
)
def test_pgbouncer_is_seen(
    pgbouncer_url: str, state_on: Callable[..., State], arguments: dict[str, Any], level: str
) -> None:
    state = state_on(pgbouncer_url, connect_args=arguments)
    create_tables(state.engine)
    assert found(state)["pooler"].level == level


def test_the_command_exits_1_for_an_error_and_0_without(
    app: Flask, state: State, rows: Rows
) -> None:
    runner = app.test_cli_runner()
    result = runner.invoke(args=["jobs", "admin", "doctor"])
    assert result.exit_code == 1
    assert "error   ticks: " in result.output
    assert len(result.output.splitlines()) == 2 * result.output.count(" -> ") + sum(
        not finding.todo for finding in examine(state)
    )
    rows.tick()
    result = runner.invoke(args=["jobs", "admin", "doctor", "--json"])
    assert result.exit_code == 0, result.output
    findings = json.loads(result.output)["findings"]
    named = {"id", "level", "what", "todo", "since", "link", "act", "by", "number"}
    assert set(findings[0]) == named
    strict = ["jobs", "admin", "doctor", "--strict"]
    warned = runner.invoke(args=strict)
    assert warned.exit_code == ("warning" in warned.output)
    rows.run("dead", age=60)
    assert runner.invoke(args=strict[:-1]).exit_code == 0
    assert runner.invoke(args=strict).exit_code == 1


def test_a_connection_that_may_only_read_is_an_error(
    postgresql_url: str, state_on: Callable[..., State]
) -> None:
    read_only = {"options": "-c default_transaction_read_only=on"}
    finding = found(state_on(postgresql_url, connect_args=read_only))["read-only"]
    assert finding.level == "error"
    assert finding.what == (
        "The connection is set to read-only: nothing can be written, so no run can start"
    )
    assert "default_transaction_read_only" in finding.todo
