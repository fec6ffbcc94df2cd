"""Where migrations make the tables, nothing suggests ``flask jobs admin init``, which refuses."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest
from flask import Flask
from flask_alembic import Alembic
from flask_migrate import Migrate  # type: ignore[import-untyped]
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import MetaData, inspect, text

from flask_cronjobs import CronJobs, TablesMissing
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.insights.doctor import examine
from tests.layers import lite_extension

from .conftest import Run

#: The command of each tool that makes the migration.
MAKE = {
    "migrate": "flask db migrate, then: flask db upgrade",
    "alembic": "flask db revision 'job tables', then: flask db upgrade",
    "table": "alembic revision --autogenerate -m 'job tables', then: alembic upgrade head",
}


@pytest.fixture
def jobs(app: Flask) -> CronJobs:
    """The extension, without its tables."""
    return CronJobs(app, authorize=lambda action: True)


@pytest.fixture(params=MAKE)
def make(
    request: pytest.FixtureRequest, app: Flask, db: SQLAlchemy, jobs: CronJobs, tmp_path: Path
) -> str:
    """The command that makes a migration: Flask-Migrate's, Flask-Alembic's or Alembic's."""
    if request.param == "migrate":
        Migrate(app, db)
    elif request.param == "alembic":
        app.config["ALEMBIC"] = {"script_location": str(tmp_path)}
        Alembic(app, run_mkdir=False)
    else:
        with app.app_context():
            db.session.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
            db.session.commit()
    return MAKE[request.param]


@pytest.mark.pages
def test_every_advice_is_to_migrate(app: Flask, jobs: CronJobs, run: Run, make: str) -> None:
    jobs.task(name="it")(lambda: None)
    app.testing = False
    with app.app_context(), pytest.raises(TablesMissing) as missing:
        jobs.enqueue("it")
    doctor = next(finding.todo for finding in examine(state_of(app)) if finding.id == "tables")
    messages = [str(missing.value), run("tick").output, run("admin").output, doctor]
    for message in [*messages, app.test_client().get("/jobs/").text]:
        assert make in unescape(message)
        assert "jobs admin init" not in message


def test_init_refuses_to_create_what_a_migration_creates(
    app: Flask, db: SQLAlchemy, run: Run, make: str
) -> None:
    refused = run("admin", "init")
    assert refused.exit_code == 1
    assert make in refused.output
    with app.app_context():
        assert "job_runs" not in inspect(db.engine).get_table_names()
    assert "job_runs" in run("admin", "init", "--force").output
    assert run("admin", "init").output == "All tables exist.\n"


def test_without_migrations_the_advice_is_init(app: Flask, run: Run) -> None:
    for output in (run("tick").output, run("admin", "doctor").output):
        assert "flask jobs admin init" in output
        assert "flask db" not in output
    assert "job_runs" in run("admin", "init").output


@pytest.mark.flask_sqlalchemy
@pytest.mark.parametrize("metadata", [None, MetaData()])
def test_for_migrations_that_see_no_job_tables_the_advice_is_the_metadata(
    tmp_path: Path, metadata: MetaData | None
) -> None:
    """Otherwise they would create no tables, and later drop those that ``init`` has created."""
    app = Flask("blind")
    app.config["SQLALCHEMY_ENGINES"] = {"default": f"sqlite:///{tmp_path / 'app.sqlite'}"}
    db = lite_extension()(app)
    CronJobs(app, metadata=metadata)
    Migrate(app, db)
    refused = app.test_cli_runner().invoke(args=["jobs", "admin", "init"])
    assert refused.exit_code == 1
    assert ("CronJobs(app, metadata=" in refused.output) == (metadata is None)
