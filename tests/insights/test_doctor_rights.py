"""The doctor tries each right that jobs need; a tick that lacks one gives the same message."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, create_engine, make_url, text

from flask_cronjobs import CronJobs, DatabaseTrouble
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.health_checks import Finding
from flask_cronjobs.models import JobRun
from tests.marks import on_postgresql

TABLES = [*JobRun.metadata.tables]


class Web:
    """An app whose role has all rights that jobs need, until a test revokes one."""

    def __init__(self, owner: Engine, role: str, app: Flask, jobs: CronJobs) -> None:
        self.owner, self.role, self.app, self.jobs = owner, role, app, jobs

    def execute(self, *statements: str) -> None:
        """Let the owner of the tables execute a statement; ``{role}`` is the app's role."""
        with self.owner.begin() as connection:
            for statement in statements:
                connection.execute(text(statement.format(role=self.role)))

    def errors(self) -> list[Finding]:
        """Return the doctor's errors about rights."""
        findings = examine(state_of(self.app))
        assert [row.level for row in findings if row.id == "rights"]
        return [row for row in findings if row.id == "rights" and row.level == "error"]

    def trouble_of_tick(self) -> str:
        """Return the message of a tick that fails."""
        with self.app.app_context(), pytest.raises(DatabaseTrouble) as caught:
            self.jobs.tick()
        return str(caught.value)


@pytest.fixture
def web(postgresql_url: str) -> Iterator[Web]:
    owner, role = create_engine(postgresql_url), f"web_{uuid.uuid4().hex[:8]}"
    create_tables(owner)
    app, db = Flask("web"), SQLAlchemy()
    url = make_url(postgresql_url).set(username=role, password="web")
    app.config["SQLALCHEMY_DATABASE_URI"] = url.render_as_string(hide_password=False)
    db.init_app(app)
    web = Web(owner, role, app, CronJobs(app))
    web.execute(
        "CREATE ROLE {role} LOGIN PASSWORD 'web'",
        "GRANT USAGE ON SCHEMA public TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    yield web
    with app.app_context():
        db.engine.dispose()
    web.execute("DROP OWNED BY {role}", "DROP ROLE {role}")
    web.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    owner.dispose()


def test_role_with_all_rights_is_well_and_nothing_is_left_behind(web: Web) -> None:
    assert web.errors() == []
    with web.app.app_context():
        web.jobs.tick()
    with web.owner.connect() as connection:
        numbers = [connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in TABLES]
    assert sum(map(int, filter(None, numbers))) == 1  # This is the tick.


@pytest.mark.parametrize("right", ["SELECT", "INSERT", "UPDATE", "DELETE"])
def test_each_right_on_each_table_is_tried(web: Web, right: str) -> None:
    for name in TABLES:
        web.execute(f"REVOKE {right} ON {name} FROM {{role}}")
    errors = web.errors()
    assert [(error.what, error.todo) for error in errors] == [
        (
            f"permission denied for table {table.name}",
            "Let its owner run: GRANT SELECT, INSERT, UPDATE, DELETE ON "
            f"{table.name} TO {web.role}",
        )
        for table in JobRun.metadata.sorted_tables
    ]
    web.execute(*(error.todo.partition(": ")[2] for error in errors))
    assert web.errors() == []


def test_each_sequence_is_tried(web: Web) -> None:
    for name in TABLES:
        web.execute(f"REVOKE USAGE ON SEQUENCE {name}_id_seq FROM {{role}}")
    errors = web.errors()
    assert len(errors) == len(TABLES)
    assert all(error.what.startswith("permission denied for sequence") for error in errors)
    web.execute(*(error.todo.partition(": ")[2] for error in errors))
    assert web.errors() == []


@pytest.mark.parametrize(
    "takes",
    [
        "REVOKE INSERT ON job_ticks FROM {role}",
        "REVOKE USAGE ON SEQUENCE job_ticks_id_seq FROM {role}",
        "ALTER TABLE job_ticks ENABLE ROW LEVEL SECURITY",
    ],
)
def test_tick_that_fails_says_what_the_doctor_says(web: Web, takes: str) -> None:
    web.execute(takes)
    (finding,) = web.errors()
    message = web.trouble_of_tick()
    assert finding.todo in message
    assert f"TO {web.role}" in message
    assert "doctor" not in message
    web.execute(finding.todo.partition(": ")[2])
    assert web.errors() == []
    with web.app.app_context():
        web.jobs.tick()


@pytest.mark.parametrize(
    ("policies", "number"),
    [
        (["CREATE POLICY own ON job_runs USING (queue = 'mine')"], 1),
        (["CREATE POLICY all_of ON job_runs USING (true)"], 0),
        (["CREATE POLICY other ON job_runs TO postgres USING (true)"], 1),
        (
            [
                "CREATE POLICY reads ON job_runs FOR SELECT USING (true)",
                "CREATE POLICY inserts ON job_runs FOR INSERT WITH CHECK (true)",
                "CREATE POLICY updates ON job_runs FOR UPDATE USING (true)",
            ],
            1,  # It has no right to delete.
        ),
        (
            [
                "CREATE POLICY all_of ON job_runs USING (true)",
                "CREATE POLICY fewer ON job_runs AS RESTRICTIVE USING (priority = 0)",
            ],
            1,
        ),
    ],
)
def test_policies_that_may_hide_rows_are_found(web: Web, policies: list[str], number: int) -> None:
    web.execute("ALTER TABLE job_runs ENABLE ROW LEVEL SECURITY", *policies)
    errors = web.errors()
    assert len(errors) == number
    assert all("hide rows of job_runs from the role" in error.what for error in errors)


def test_right_by_columns_is_a_right(web: Web) -> None:
    columns = ", ".join(JobRun.__table__.columns.keys())
    web.execute(
        "REVOKE UPDATE ON job_runs FROM {role}", f"GRANT UPDATE ({columns}) ON job_runs TO {{role}}"
    )
    assert web.errors() == []


def test_schema_in_which_nothing_can_be_created_is_named(web: Web) -> None:
    web.execute("DROP TABLE job_pauses", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with web.app.app_context(), pytest.raises(DatabaseTrouble) as caught:
        create_tables(state_of(web.app).engine)
    assert f"GRANT USAGE, CREATE ON SCHEMA public TO {web.role}" in str(caught.value)


def test_rights_are_tried_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    """Earlier, a read-only file was reported as sound."""
    create_tables(engine := create_engine(sqlite_url))
    engine.dispose()
    app, db = Flask("web"), SQLAlchemy()
    file = f"sqlite:///file:{tmp_path / 'test.sqlite'}"
    app.config["SQLALCHEMY_DATABASE_URI"] = f"{file}?mode=ro&uri=true"
    db.init_app(app)
    CronJobs(app)
    rights = [row for row in examine(state_of(app)) if row.id == "rights"]
    with app.app_context():
        db.engine.dispose()
    (finding,) = rights
    assert "readonly database" in finding.what
    assert "may the user of this process write to both?" in finding.todo


@on_postgresql
def test_app_s_owner_is_well(app: Flask, jobs: CronJobs) -> None:
    (finding,) = (row for row in examine(state_of(app)) if row.id == "rights")
    assert finding.level == "ok"
