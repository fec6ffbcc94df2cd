"""Flask-Migrate sees the tables, and the migrations that it generates run unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from flask_cronjobs.db.create import set_storage
from flask_cronjobs.models import JobRun
from flask_cronjobs.models.columns import storage_options
from tests.marks import on_both
from tests.python import python
from tests.tables import ASIDE

#: SQLAlchemy 2.0, where migrations can do less.
OLD_SQLALCHEMY = not storage_options()
APP = """
import os

from flask import Flask
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["URL"]
db = SQLAlchemy(app)


class User(db.Model):
    id = db.Column(db.Integer, primary_key=True)


jobs = CronJobs(app)
Migrate(app, db)


@jobs.task
def hello(name):
    return "hello " + name
"""
#: Settings of an app, in `SQLAlchemy` and in `Migrate`, that change what Alembic writes.
SETTINGS = {
    "schema": ('metadata=MetaData(schema="app")', ""),
    "schema and all schemas": ('metadata=MetaData(schema="app")', "include_schemas=True"),
    "naming convention": (
        "metadata=MetaData(naming_convention={"
        '"pk": "pk_%(table_name)s", "uq": "uq_%(table_name)s_%(column_0_name)s", '
        '"ix": "ix_%(column_0_label)s", "ck": "ck_%(table_name)s_%(constraint_name)s", '
        '"fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s"})',
        "compare_server_default=True",
    ),
    "batch": ("", "render_as_batch=True"),
    "two binds": ("", ""),
}
NOTHING = "No changes in schema detected"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an app and an empty migration environment."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def flask(project: Path, url: str, *args: str) -> str:
    """Run ``flask`` with *args*; return what it printed."""
    result = python("-m", "flask", "--app", "app", *args, cwd=project, URL=url)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("generated_on", ["sqlite", "postgresql"])
def test_migration_generated_on_either_database_runs_on_both(
    project: Path, sqlite_url: str, postgresql_url: str, generated_on: str
) -> None:
    urls = {"sqlite": sqlite_url, "postgresql": postgresql_url}
    url = urls.pop(generated_on)
    (second,) = urls.values()
    flask(project, url, "db", "init")
    flask(project, url, "db", "migrate", "-m", "jobs")
    (script,) = (project / "migrations/versions").glob("*.py")
    assert "flask_cronjobs" not in script.read_text()
    for table in JobRun.metadata.tables.values():
        for index in table.indexes:
            assert f"'{index.name}'" in script.read_text()

    # In SQLAlchemy 2.0, SQLite has no JSONB, so a migration for PostgreSQL runs only there.
    for_one = OLD_SQLALCHEMY and generated_on == "postgresql"
    for target in (url,) if for_one else (url, second):
        flask(project, target, "db", "upgrade")
        works(project, target)
    assert NOTHING in flask(project, url, "db", "migrate", "-m", "nothing")
    assert [script] == list((project / "migrations/versions").glob("*.py"))

    flask(project, url, "db", "downgrade", "base")
    engine = create_engine(url)
    assert [name for name in inspect(engine).get_table_names() if name.startswith("job_")] == []
    engine.dispose()


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("what", SETTINGS)
def test_migration_of_an_app_that_changes_its_metadata_makes_the_tables_that_jobs_use(
    project: Path, database_url: str, what: str
) -> None:
    """Some of these apps have a column that refers to a run. A second migration is empty."""
    of_metadata, of_migrate = SETTINGS[what]
    source = APP.replace("db = SQLAlchemy(app)", f"db = SQLAlchemy(app, {of_metadata})")
    source = source.replace("Migrate(app, db)", f"Migrate(app, db, {of_migrate})")
    if "schema" in what and "sqlite" in database_url:
        pytest.skip("SQLite has no schemas")
    if "schema" in what:
        # Tests share a database, and this app's migrations include every schema in it.
        for schema in ("app", ASIDE):
            execute(database_url, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        execute(database_url, "CREATE SCHEMA app")
    if what == "two binds":
        second = f"sqlite:///{project / 'other.sqlite'}"
        source = source.replace(
            "db = SQ", f"app.config['SQLALCHEMY_BINDS'] = {{'other': {second!r}}}\ndb = SQ"
        )
    elif "schema" not in what:  # There, the app's own tables are in another schema.
        source = source.replace(
            "primary_key=True)",
            "primary_key=True)\n    run_id = db.Column(db.ForeignKey('job_runs.id'))",
        )
    (project / "app.py").write_text("from sqlalchemy import MetaData\n" + source)
    flask(project, database_url, "db", "init", *(["--multidb"] if what == "two binds" else []))
    flask(project, database_url, "db", "migrate", "-m", "jobs")
    flask(project, database_url, "db", "upgrade")
    works(project, database_url)
    assert f"all {len(JobRun.metadata.tables)} tables exist" in flask(
        project, database_url, "jobs", "admin", "doctor"
    )
    if what != "schema":  # Without include_schemas, Alembic misses the app's own table there.
        flask(project, database_url, "db", "check")
    flask(project, database_url, "db", "downgrade", "base")


def execute(url: str, statement: str) -> None:
    """Execute *statement* in the database at *url*."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def works(project: Path, url: str) -> None:
    """Run a job on the migrated tables, and check the ids, the keys and the settings of storage."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO job_runs (job_type, payload) VALUES ('hello', '{\"name\": \"you\"}')")
        )
    printed = flask(project, url, "jobs", "tick")
    assert "succeeded  hello" in printed
    with engine.connect() as connection:
        (row,) = connection.execute(text("SELECT status, attempts FROM job_runs")).all()
    types = {
        column["name"]: str(column["type"]) for column in inspect(engine).get_columns("job_runs")
    }
    indexes = {index["name"] for index in inspect(engine).get_indexes("job_runs")}
    primary_key = inspect(engine).get_pk_constraint("job_runs")["name"]
    unset = set_storage(engine)
    engine.dispose()
    assert tuple(row) == ("succeeded", 1)
    # SQLAlchemy 2.0 cannot set them; the doctor reports this, and `flask jobs admin init` sets
    # them.
    left_out = OLD_SQLALCHEMY and url.startswith("postgresql")
    assert unset == left_out, "the migration sets when to vacuum"
    assert {"uq_job_runs_slot", "ix_job_runs_ready", "ix_job_runs_lease"} <= indexes
    if url.startswith("postgresql"):
        assert types["id"] == types["definition_id"] == "BIGINT"
        assert primary_key == "pk_job_runs"
