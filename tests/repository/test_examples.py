"""The examples in docstrings run as shown, and each function and method of the API has one."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

import flask_cronjobs
from flask_cronjobs import CronJobs, testing
from flask_cronjobs.core.app_state import state_of

from .pages import named

API = named("api.md").read_text()
#: The examples of `CronJobs.batch`, `signal` and `executors.celery`'s page show these.
SHOWN_BY_OTHERS = {"Batch.__enter__", "Batch.__exit__", "CronJobs.wait", "executors.celery.init"}

_MEMBERS = re.compile(r"^   :(?:special-)?members:(.*)", re.MULTILINE)


def of_the_api() -> Iterator[tuple[str, Any]]:
    """Yield each class, function and method that ``api.md`` documents, with its name."""
    directive = re.compile(
        r"^\.\. auto(?:class|function|exception):: flask_cronjobs\.([\w.]+)(.*\n(?:   .+\n)*)",
        re.MULTILINE,
    )
    for name, options in directive.findall(API):
        value = resolve(name)
        yield name, value
        if inspect.isclass(value) and (members := _MEMBERS.findall(options)):
            listed = ",".join(members).replace(" ", "").strip(",")
            for member in listed.split(",") if listed else methods(value):
                yield f"{name}.{member}", inspect.getattr_static(value, member)


def resolve(name: str) -> Any:
    """Return the object called *name* in the package."""
    module, _, attribute = f"flask_cronjobs.{name}".rpartition(".")
    return getattr(import_module(module), attribute)


def methods(owner: type) -> list[str]:
    """Return the names of the public methods and properties of a class of ours."""
    bases = [base for base in owner.__mro__ if base.__module__.startswith("flask_cronjobs")]
    return [name for base in bases for name in vars(base) if not name.startswith("_")]


DOCUMENTED = dict(of_the_api())


def examples(value: Any) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")


def test_each_function_and_method_of_the_api_has_an_example() -> None:
    called = {name for name, value in DOCUMENTED.items() if inspect.isfunction(value)}
    lacking = {name for name in called if not examples(DOCUMENTED[name])}
    assert len(called) > 40
    assert lacking == SHOWN_BY_OTHERS


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def names(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The names with which examples begin, as the docstring of `CronJobs` says."""
    monkeypatch.chdir(tmp_path)
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = request.getfixturevalue(f"{request.param}_url")
    app.config["CRONJOBS_URL_PREFIX"] = None  # Adding the pages takes time.
    db = SQLAlchemy(app)
    jobs = CronJobs(app)

    @jobs.task
    def send_report(user_id: int, week: str) -> str:
        return f"sent {week} to {user_id}"

    def send_mail(address: str) -> None:
        print("To:", address)

    names = {name: getattr(flask_cronjobs, name) for name in flask_cronjobs.__all__}
    names |= {name: getattr(testing, name) for name in testing.__all__}
    names |= {"datetime": datetime, "timedelta": timedelta, "timezone": timezone}
    names |= {"Flask": Flask, "SQLAlchemy": SQLAlchemy, "app": app, "db": db}
    names |= {"jobs": jobs, "send_report": send_report, "send_mail": send_mail}
    with app.app_context():
        db.create_all()
        yield names
        db.session.remove()
        for engine in (db.engine, state_of().engine):
            engine.dispose()


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if examples(DOCUMENTED[name])])
def test_example_runs_as_shown(name: str, names: dict[str, Any]) -> None:
    lines = list[str]()
    case = doctest.DocTest(examples(DOCUMENTED[name]), names, name, None, None, None)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(case, out=lines.append)
    assert failed == 0, "".join(lines)
    assert tried > 0
