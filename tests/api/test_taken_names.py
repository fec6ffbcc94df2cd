"""An app that has its own commands, tables or pages under names that the extension uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Blueprint, Flask
from flask.cli import AppGroup
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Column, Integer, Table

from flask_cronjobs import CronJobs, SetupError
from tests.marks import on_both
from tests.tables import copy_tables

pytestmark = pytest.mark.flask_sqlalchemy


def a_group(app: Flask) -> None:
    app.cli.add_command(AppGroup("jobs"))


def a_command(app: Flask) -> None:
    app.cli.command("jobs")(lambda: None)


def a_blueprint(app: Flask) -> None:
    offers = Blueprint("jobs", __name__)
    offers.cli.command("import")(lambda: None)
    app.register_blueprint(offers)


COMMANDS = pytest.mark.parametrize("take", [a_group, a_command, a_blueprint])


@COMMANDS
def test_a_command_of_that_name_is_refused_and_stays(
    app: Flask, db: SQLAlchemy, take: Callable[[Flask], None]
) -> None:
    take(app)
    theirs = app.cli.commands["jobs"]
    with pytest.raises(SetupError, match=r"group 'jobs' already.*cli_group='other'"):
        CronJobs(app)
    assert app.cli.commands["jobs"] is theirs
    assert "cronjobs" not in app.extensions


def test_a_blueprint_of_that_name_without_commands_is_fine(app: Flask, db: SQLAlchemy) -> None:
    app.register_blueprint(Blueprint("jobs", __name__))
    CronJobs(app)
    assert app.test_cli_runner().invoke(args=["jobs", "tick", "--help"]).exit_code == 0


def test_a_table_of_that_name_is_refused(app: Flask, db: SQLAlchemy) -> None:
    Table("job_runs", db.metadata, Column("id", Integer, primary_key=True))
    with pytest.raises(SetupError, match=r"a table 'job_runs' of its own.* __tablename__"):
        CronJobs(app)
    assert "cronjobs" not in app.extensions


@on_both
def test_tables_that_the_app_has_reflected_are_ours(
    app: Flask, db: SQLAlchemy, database_url: str
) -> None:
    copy_tables(database_url)
    with app.app_context():
        db.reflect()
    assert "job_runs" in db.metadata.tables
    CronJobs(app)
