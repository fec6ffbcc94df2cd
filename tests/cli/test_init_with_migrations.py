"""Where migrations make the tables, nothing says ``flask jobs admin init``, and it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result
from flask import Flask
from flask_migrate import Migrate  # type: ignore[import-untyped]
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import inspect, text

from flask_cronjobs import CronJobs, TablesMissing
from flask_cronjobs.jobs.doctor import examine
from flask_cronjobs.jobs.state import state_of

Run = Callable[..., Result]
MIGRATE = "flask db migrate, then: flask db upgrade"


@pytest.fixture
def jobs(app: Flask) -> CronJobs:
    """The extension, without its tables."""
    return CronJobs(app, authorize=lambda action: True)


@pytest.fixture(params=["extension", "table"])
def migrating(request: pytest.FixtureRequest, app: Flask, db: SQLAlchemy, jobs: CronJobs) -> None:
    """An app with Flask-Migrate, or with a database that Alembic has seen."""
    if request.param == "extension":
        Migrate(app, db)
        return
    with app.app_context():
        db.session.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        db.session.commit()


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    return lambda *args: app.test_cli_runner().invoke(args=["jobs", *args])


def _todo(app: Flask) -> str:
    return next(finding.todo for finding in examine(state_of(app)) if finding.id == "tables")


@pytest.mark.usefixtures("migrating")
@pytest.mark.pages
def test_every_advice_is_to_migrate(app: Flask, jobs: CronJobs, run: Run) -> None:
    jobs.task(name="it")(lambda: None)
    app.testing = False
    with app.app_context(), pytest.raises(TablesMissing) as missing:
        jobs.enqueue("it")
    said = [
        str(missing.value),
        run("tick").output,
        run("admin").output,
        _todo(app),
        app.test_client().get("/jobs/").text,
    ]
    for each in said:
        assert MIGRATE in each
        assert "jobs admin init" not in each


@pytest.mark.usefixtures("migrating")
def test_init_refuses_to_create_what_a_migration_creates(
    app: Flask, db: SQLAlchemy, run: Run
) -> None:
    refused = run("admin", "init")
    assert refused.exit_code == 1
    assert MIGRATE in refused.output
    with app.app_context():
        assert "job_runs" not in inspect(db.engine).get_table_names()
    assert "job_runs" in run("admin", "init", "--force").output
    assert run("admin", "init").output == "All tables exist.\n"


def test_without_migrations_the_advice_is_init(app: Flask, run: Run) -> None:
    for output in (run("tick").output, run("admin", "doctor").output):
        assert "flask jobs admin init" in output
        assert "flask db" not in output
    assert "job_runs" in run("admin", "init").output
