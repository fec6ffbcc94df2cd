"""PostgreSQL is told when to vacuum: for new tables, and for those that were there before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, create_engine, text

from flask_cronjobs import CronJobs
from flask_cronjobs.db.create import create_tables, missing_storage, set_storage
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.models.columns import VACUUM_OFTEN

WANTED = {f"{name}={value}" for name, value in VACUUM_OFTEN.items()}
FORGET = f"ALTER TABLE job_runs RESET ({', '.join(VACUUM_OFTEN)})"


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    """A database with the job tables."""
    made = create_engine(postgresql_url)
    create_tables(made)
    yield made
    made.dispose()


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def options(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT reloptions FROM pg_class WHERE oid = CAST('job_runs' AS regclass)")
        )
        return set(found.scalar_one() or ())


def test_new_table_has_them(engine: Engine) -> None:
    assert options(engine) == WANTED
    assert set_storage(engine) == []


def test_old_table_gets_them_once(engine: Engine) -> None:
    execute(engine, FORGET)
    assert set_storage(engine) == ["job_runs"]
    assert options(engine) == WANTED
    assert set_storage(engine) == []


def test_what_somebody_has_set_stays(engine: Engine) -> None:
    execute(engine, FORGET)
    execute(engine, "ALTER TABLE job_runs SET (autovacuum_vacuum_threshold = 7, fillfactor = 90)")
    create_tables(engine)
    kept = {"autovacuum_vacuum_threshold=7", "fillfactor=90"}
    left = {each for each in WANTED if not each.startswith("autovacuum_vacuum_threshold")}
    assert options(engine) == left | kept


def test_reads_and_writes_go_on_meanwhile(engine: Engine) -> None:
    execute(engine, FORGET)
    with engine.begin() as app:
        app.execute(text("INSERT INTO job_runs (job_type) VALUES ('task')"))
        assert set_storage(engine) == ["job_runs"]


def test_table_of_another_owner_is_left_alone(engine: Engine) -> None:
    execute(engine, FORGET)
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE cronjobs_stranger"))
        connection.execute(text("SET LOCAL ROLE cronjobs_stranger"))
        assert missing_storage(connection) == {}
        connection.execute(text("RESET ROLE"))
        assert list(missing_storage(connection)) == ["job_runs"]
        connection.rollback()


def test_sqlite_has_none(sqlite_url: str) -> None:
    made = create_engine(sqlite_url)
    create_tables(made)
    assert set_storage(made) == []
    made.dispose()


def test_create_all_sets_them_too(postgresql_url: str) -> None:
    app = Flask("new")
    app.config["SQLALCHEMY_DATABASE_URI"] = postgresql_url
    db = SQLAlchemy(app)
    CronJobs(app)
    with app.app_context():
        db.create_all()
        assert options(db.engine) == WANTED
        db.engine.dispose()


class TestCommands:
    @pytest.fixture
    def app(self, postgresql_url: str) -> Iterator[Flask]:
        """An app, its tables as an earlier version made them."""
        app = Flask("old")
        app.config["SQLALCHEMY_DATABASE_URI"] = postgresql_url
        db = SQLAlchemy(app)
        CronJobs(app)
        with app.app_context():
            db.create_all()
            execute(db.engine, FORGET)
            yield app
            db.engine.dispose()

    def test_doctor_names_the_table_and_init_mends_it(self, app: Flask) -> None:
        with app.app_context():
            (finding,) = [each for each in examine(state_of(app)) if each.id == "vacuum"]
        assert (finding.level, finding.todo) == ("warning", "Run: flask jobs admin init")
        runner = app.test_cli_runner()
        said = "All tables exist.\nSet when to vacuum job_runs.\n"
        assert runner.invoke(args=["jobs", "admin", "init"]).output == said
        assert runner.invoke(args=["jobs", "admin", "init"]).output == "All tables exist.\n"
        with app.app_context():
            assert "vacuum" not in {each.id for each in examine(state_of(app))}
