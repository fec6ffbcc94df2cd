"""PostgreSQL's vacuum settings are set on new tables, and on those of earlier versions."""

from __future__ import annotations

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, text

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.db.create import create_tables, missing_storage, set_storage
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.models.columns import VACUUM_OFTEN
from tests.marks import on_postgresql

WANTED = {f"{name}={value}" for name, value in VACUUM_OFTEN.items()}
FORGET = f"ALTER TABLE job_runs RESET ({', '.join(VACUUM_OFTEN)})"


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def options(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        result = connection.execute(
            text("SELECT reloptions FROM pg_class WHERE oid = CAST('job_runs' AS regclass)")
        )
        return set(result.scalar_one() or ())


@pytest.fixture
def old(engine: Engine) -> Engine:
    """A database whose tables an earlier version has made."""
    create_tables(engine)
    assert options(engine) == WANTED
    assert not set_storage(engine)
    execute(engine, FORGET)
    return engine


@on_postgresql
def test_old_table_gets_them_once_while_reads_and_writes_go_on(old: Engine) -> None:
    with old.begin() as app:
        app.execute(text("INSERT INTO job_runs (job_type) VALUES ('task')"))
        assert set_storage(old)
    assert options(old) == WANTED
    assert not set_storage(old)


@on_postgresql
def test_settings_made_by_hand_stay(old: Engine) -> None:
    execute(old, "ALTER TABLE job_runs SET (autovacuum_vacuum_threshold = 7, fillfactor = 90)")
    create_tables(old)
    own = {"autovacuum_vacuum_threshold=7", "fillfactor=90"}
    rest = {option for option in WANTED if not option.startswith("autovacuum_vacuum_threshold")}
    assert options(old) == rest | own


@on_postgresql
def test_table_of_another_owner_is_left_alone(old: Engine) -> None:
    with old.begin() as connection:
        connection.execute(text("CREATE ROLE cronjobs_stranger"))
        connection.execute(text("SET LOCAL ROLE cronjobs_stranger"))
        assert missing_storage(connection) == {}
        connection.execute(text("RESET ROLE"))
        assert missing_storage(connection) == VACUUM_OFTEN
        connection.rollback()


@on_postgresql
def test_create_all_sets_them_too_and_doctor_and_init_mend_an_old_table(
    app: Flask, db: SQLAlchemy
) -> None:
    CronJobs(app)
    with app.app_context():
        db.create_all()
        assert options(db.engine) == WANTED
        execute(db.engine, FORGET)
        (finding,) = [row for row in examine(state_of(app)) if row.id == "vacuum"]
    assert (finding.level, finding.todo) == ("warning", "Run: flask jobs admin init")
    runner = app.test_cli_runner()
    output = "All tables exist.\nSet how often PostgreSQL vacuums job_runs.\n"
    assert runner.invoke(args=["jobs", "admin", "init"]).output == output
    assert runner.invoke(args=["jobs", "admin", "init"]).output == "All tables exist.\n"
    with app.app_context():
        assert "vacuum" not in {row.id for row in examine(state_of(app))}
