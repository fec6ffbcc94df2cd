"""Without fork and SIGALRM, as on Windows, there is one worker, and one notice says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from flask import Flask

from flask_cronjobs import CronJobs, __version__
from tests.python import python

NOTICE = "no handler can be interrupted, at its timeout or when it is cancelled"

WITHOUT = """
import faulthandler, os, signal, sys
from importlib import import_module
from pathlib import Path
import flask_migrate, flask_sqlalchemy, psycopg  # They look for themselves what there is.
for module, names in (
    (os, ("fork", "getppid", "getuid", "killpg", "register_at_fork", "uname", "waitpid")),
    (signal, ("SIGALRM", "SIGKILL", "SIGUSR1", "SIGHUP", "ITIMER_REAL", "alarm", "setitimer",
              "pthread_kill", "pthread_sigmask", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

import flask_cronjobs
package = Path(flask_cronjobs.__file__).parent
celery = package / "executors" / "celery.py"  # Not on Windows.
for path in sorted(set(package.rglob("*.py")) - {celery}):
    import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
app = Flask("x")
app.config["SQLALCHEMY_DATABASE_URI"] = sys.argv[1]
db = SQLAlchemy(app)
jobs = flask_cronjobs.CronJobs(app)

@jobs.task
def hello(): ...

with app.app_context():
    db.create_all()
    hello.using(commit=True).enqueue_many([{}, {}])
done = app.test_cli_runner().invoke(args=["jobs", "tick", "--workers", "3"])
print(done.output)
sys.exit(done.exit_code)
"""


def test_package_imports_and_ticks_without_what_windows_lacks(tmp_path: Path) -> None:
    result = python("-c", WITHOUT, f"sqlite:///{tmp_path / 'x.sqlite'}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "tick: 2 succeeded" in result.stdout
    assert (result.stdout + result.stderr).count(NOTICE) == 1
    assert "one worker runs instead of 3" in result.stdout + result.stderr


def test_idle_tick_is_silent_there_too(
    app: Flask, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delattr(os, "fork")
    monkeypatch.delattr(signal, "setitimer")
    result = app.test_cli_runner().invoke(args=["jobs", "tick", "--workers", "3"])
    assert (result.exit_code, result.output, caplog.text) == (0, "", "")


UNINSTALLED = """
import importlib.metadata as metadata

found = metadata.version

def version(name):
    if name.lower() == "flask-cronjobs":
        raise metadata.PackageNotFoundError(name)
    return found(name)

metadata.version = version
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs

app = Flask("x")
app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
db = SQLAlchemy(app)
CronJobs(app, authorize=lambda action: True)
with app.app_context():
    db.create_all()
print(app.test_client().get("/jobs/").status_code)
"""


def test_pages_are_served_from_a_source_tree_that_is_not_installed() -> None:
    assert python("-c", UNINSTALLED).stdout.strip().endswith("200")


def test_version_is_the_one_that_is_declared() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert f'version = "{__version__}"' in pyproject.read_text()
