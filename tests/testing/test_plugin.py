"""The fixtures, in a separate pytest process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.python import python

APP = """
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs

db, jobs = SQLAlchemy(), CronJobs()

@jobs.task(schedule="@daily")
def greet(name: str = "world") -> str:
    return f"Hello, {name}"

@pytest.fixture
def app(tmp_path):
    app = Flask("greeter")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db.init_app(app)
    jobs.init_app(app)
    with app.app_context():
        db.create_all()
        greet.using(commit=True, delay=3600).enqueue("from before")

    @app.post("/greet/<name>")
    def view(name):
        greet.using(commit=True).enqueue(name)
        return "soon"

    yield app
    with app.app_context():
        db.engine.dispose()
"""
TESTS = """
from datetime import timedelta

def test_fixtures(app, jobs_drain, jobs_enqueued, jobs_run, jobs_fire, jobs_travel):
    assert jobs_enqueued() == []
    app.test_client().post("/greet/Ada")
    (run,) = jobs_enqueued("greet")
    assert run.payload == {"name": "Ada"}
    assert jobs_drain().succeeded == 1
    assert jobs_run("greet", name="Bob").result == "Hello, Bob"
    assert jobs_fire("greet").result == "Hello, world"
    jobs_travel(timedelta(hours=2))
    assert jobs_drain().succeeded == 1

def test_clock_is_set_back(app, jobs_drain):
    assert jobs_drain().succeeded == 0
    with app.app_context():
        assert jobs_drain(with_delayed=True).succeeded == 1
"""


def pytest_in(folder: Path, tests: str, conftest: str = APP) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(tests)
    plugin = ("-p", "flask_cronjobs.testing.plugin", "-p", "no:cacheprovider")
    arguments = ("-m", "pytest", "-q", "-W", "error", *plugin)
    return python(*arguments, cwd=folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def imported_with(module: str, folder: Path) -> set[str]:
    """Return the modules that importing *module* imports."""
    script = f"import {module}, sys; print(*sys.modules)"
    return set(python("-c", script, cwd=folder).stdout.split())


def test_fixtures_use_the_app_of_the_tests(tmp_path: Path) -> None:
    result = pytest_in(tmp_path, TESTS)
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout


def test_missing_app_is_said_plainly(tmp_path: Path) -> None:
    result = pytest_in(tmp_path, "def test_it(jobs_drain): ...", conftest="")
    assert "The fixture jobs_drain needs a fixture `app` that returns your Flask" in result.stdout
    assert "Traceback" not in result.stdout


def test_plugin_imports_nothing_until_it_is_used(tmp_path: Path) -> None:
    modules = imported_with("flask_cronjobs.testing.plugin", tmp_path)
    heavy = ("flask", "werkzeug", "sqlalchemy", "flask_sqlalchemy", "blinker", "asyncio")
    assert modules.isdisjoint(heavy)
    ours = {name for name in modules if name.startswith("flask_cronjobs")}
    assert ours == {
        *("flask_cronjobs", "flask_cronjobs.testing", "flask_cronjobs.testing.plugin"),
    }


def test_helpers_need_no_pytest(tmp_path: Path) -> None:
    assert "pytest" not in imported_with("flask_cronjobs.testing.helpers", tmp_path)
