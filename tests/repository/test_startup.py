"""A web worker at its start, and a tick without work, import and start only what they need."""

from __future__ import annotations

from functools import cache

from tests.python import python
from tests.tables import copy_tables

PLAIN = """
import os, sys, threading
started = []
start = threading.Thread.start
threading.Thread.start = lambda thread: (started.append(thread.name), start(thread))[1]
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

app = Flask("tests")
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app)

class User(db.Model):
    id = db.Column(db.Integer, primary_key=True)

@app.get("/")
def home():
    return "home"

def told():
    print(*sys.modules)
    print(*started)
"""
WITHOUT = f"""{PLAIN}
assert app.test_client().get("/").text == "home"
told()
"""
APP = f"""{PLAIN}
from flask_cronjobs import CronJobs
jobs = CronJobs(app)

@jobs.task(schedule="0 7 1 1 *")
def yearly(): ...
"""
WEB = f"""{APP}
assert app.test_client().get("/").text == "home"
told()
"""
COMMAND = f"""{APP}
done = app.test_cli_runner().invoke(args=["jobs", *sys.argv[1:]])
assert done.exit_code == 0, done.output
told()
"""
#: Modules that are needed only for runs, for pages, for other commands, or to enqueue.
IDLE = {
    *("croniter", "alembic", "prometheus_client", "asyncio", "urllib.request", "zoneinfo"),
    *("celery", "redis"),
    *("flask_cronjobs.models.tables", "flask_cronjobs.core.enqueue"),
    *("flask_cronjobs.features.once.once", "flask_cronjobs.features.rates.rates"),
    "flask_cronjobs.features.batches",
    *("flask_cronjobs.insights.reader", "flask_cronjobs.insights.run_actions"),
    *("flask_cronjobs.insights.operations", "flask_cronjobs.db.create"),
    *("flask_cronjobs.core.prune", "flask_cronjobs.core.claim"),
    *("flask_cronjobs.web.pages", "flask_cronjobs.web.actions", "flask_cronjobs.cli.overview"),
    *("flask_cronjobs.core.processes", "flask_cronjobs.core.worker.worker"),
    *("flask_cronjobs.core.worker.runner", "flask_cronjobs.core.worker.keeper"),
}
WEB_ONLY = {
    *("flask_cronjobs.core.tick", "flask_cronjobs.core.worker", "flask_cronjobs.cli.tick"),
}
#: The dialect and the driver that the app does not use.
OTHER = {
    "sqlite": ("sqlalchemy.dialects.postgresql", "psycopg"),
    "postgresql": ("sqlalchemy.dialects.sqlite",),
}


def run(script: str, url: str, *arguments: str) -> tuple[set[str], list[str]]:
    """Run a script in a process; return the modules that it imported, and its started threads."""
    result = python("-c", script, *arguments, DATABASE_URL=url)
    assert result.returncode == 0, result.stderr
    modules, threads = result.stdout.split("\n")[:2]
    return set(modules.split()), threads.split()


def unwanted(url: str) -> set[str]:
    """Return the modules that the process must not import, apart from those of a plain app."""
    return _unwanted(url.partition(":")[0])


@cache
def _unwanted(scheme: str) -> set[str]:
    # A plain app opens no connection, so its database need not exist.
    other = OTHER[scheme.partition("+")[0]]
    return {*IDLE, *other} - run(WITHOUT, f"{scheme}:///nowhere")[0]


def test_web_worker_imports_little(database_url: str) -> None:
    modules, threads = run(WEB, database_url)
    assert modules & (unwanted(database_url) | WEB_ONLY) == set()
    assert threads == []


def test_idle_tick_imports_little_and_starts_few_threads(database_url: str) -> None:
    copy_tables(database_url)
    run(COMMAND, database_url, "tick")  # The first tick writes the definition.
    modules, threads = run(COMMAND, database_url, "tick", "--workers", "4")
    assert modules & unwanted(database_url) == set()
    # On PostgreSQL, a thread watches the deadlines of statements.
    watched = [] if database_url.startswith("sqlite") else ["cronjobs-deadlines"]
    assert threads == watched


def test_command_searches_no_garbage_in_the_app(sqlite_url: str) -> None:
    """A collection at the end of a process takes as long as a fifth of an idle tick."""
    copy_tables(sqlite_url)
    script = f"""{APP}
import gc
loaded = len(gc.get_objects())
done = app.test_cli_runner().invoke(args=["jobs", *sys.argv[1:]])
assert done.exit_code == 0, done.output
print(loaded, gc.get_freeze_count())
"""
    for command in (["tick"], ["admin", "doctor"]):
        result = python("-c", script, *command, DATABASE_URL=sqlite_url)
        assert result.returncode == 0, result.stderr
        loaded, frozen = map(int, result.stdout.split())
        assert frozen >= loaded
