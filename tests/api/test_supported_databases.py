"""An engine that the extension cannot use is refused in one sentence, wherever it is used first."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine

from flask_cronjobs import CronJobs, SetupError

URLS = {
    "postgresql+pg8000": "postgresql+pg8000://u:hidden@localhost/shop",
    "mysql+pymysql": "mysql+pymysql://u:hidden@localhost/shop",
}


def the_sentence(name: str) -> str:
    return (
        f"The database URL names {name}, but Flask-CronJobs supports only SQLite, and PostgreSQL "
        "with psycopg 3. For PostgreSQL: pip install 'Flask-CronJobs[postgres]', and begin the URL "
        "with postgresql+psycopg://"
    )


class Driver(ModuleType):
    """A driver that need not be installed, and connects to nothing."""

    paramstyle = "pyformat"
    __version__ = "2.9.9"
    ISOLATION_LEVEL_AUTOCOMMIT = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


@pytest.fixture(autouse=True)
def drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pg8000", "pymysql"):
        monkeypatch.setitem(sys.modules, name, Driver(name))


@pytest.fixture(params=URLS)
def name(request: pytest.FixtureRequest) -> str:
    """Return the dialect and driver that the URL names."""
    return str(request.param)


def test_another_driver_is_refused_where_the_extension_is_initialized(name: str) -> None:
    app, db = Flask("shop"), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = URLS[name]
    db.init_app(app)
    with pytest.raises(SetupError) as refused:
        CronJobs(app)
    assert str(refused.value) == the_sentence(name)
    assert app.extensions.keys() == {"sqlalchemy"}
    assert "jobs" not in app.cli.commands


class TestAnEngineThatComesLater:
    """An app replaces its first engine after ``init_app``."""

    @pytest.fixture
    def app(self, name: str, tmp_path: Path) -> Flask:
        app, db = Flask("shop"), SQLAlchemy()
        app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'x.sqlite'}"
        db.init_app(app)
        jobs = CronJobs(app, authorize=lambda action: True)
        jobs.task(name="send")(lambda: None)
        with app.app_context():
            db.engine.dispose()
            db._app_engines[app][None] = create_engine(URLS[name])
        return app

    def test_each_command_says_the_same(self, app: Flask, name: str) -> None:
        for command in ("tick", "work", "admin", "admin show 1", "admin definitions", "admin init"):
            result = app.test_cli_runner().invoke(args=["jobs", *command.split()])
            assert (result.exit_code, result.output) == (1, f"Error: {the_sentence(name)}\n")
        result = app.test_cli_runner().invoke(args=["jobs", "admin", "doctor"])
        assert result.exit_code == 1
        assert the_sentence(name) in " ".join(result.output.split())

    def test_health_is_down_and_the_log_says_why(
        self, app: Flask, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR, "flask_cronjobs"):
            assert app.test_client().get("/jobs/health").text == "down\n"
        assert the_sentence(name) in caplog.text
