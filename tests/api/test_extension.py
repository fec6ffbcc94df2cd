"""The extension and its apps: the order of calls, and errors. It stores nothing of an app."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import ConfigError, CronJobs, SetupError
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.models import JobRun

pytestmark = pytest.mark.flask_sqlalchemy


def test_app_without_a_default_database_is_a_clear_error() -> None:
    app = Flask("x")
    app.config["SQLALCHEMY_BINDS"] = {"other": "sqlite://"}
    SQLAlchemy(app)
    with pytest.raises(SetupError, match="Set SQLALCHEMY_DATABASE_URI"):
        CronJobs(app)


def test_second_initialization_is_refused(app: Flask) -> None:
    jobs = CronJobs(app)
    with pytest.raises(SetupError, match=r"on the app 'tests' already\. Remove the second"):
        jobs.init_app(app)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("authorize", True),
        ("authorize", lambda: True),
        ("authorize", lambda *, action: True),
        ("authorize", lambda action, user: True),
        ("actor", True),
        ("actor", lambda action: "name"),
    ],
)
def test_a_function_that_cannot_take_its_arguments_is_refused(
    app: Flask, name: str, wrong: Any
) -> None:
    options: Any = {name: wrong}
    for initialize in (CronJobs, lambda app, **options: CronJobs(**options).init_app(app)):
        with pytest.raises(SetupError, match=rf"^{name} is .*\. Give a function that takes"):
            initialize(app, **options)


def with_the_user(function: Callable[[str, str], bool]) -> Callable[..., bool]:
    """Return a decorated function with other parameters and the same name."""

    @wraps(function)
    def call(*values: str) -> bool:
        return function("somebody", *values)

    return call


@pytest.mark.parametrize(
    "authorize",
    [
        bool,
        with_the_user(lambda user, action: True),
        lambda *any_number: True,
        lambda action, user=None: True,
        {"read": True}.get,
    ],
)
def test_whatever_can_be_called_with_one_value_may_authorize(app: Flask, authorize: Any) -> None:
    CronJobs(app, authorize=authorize, actor=str)
    assert state_of(app).authorize is authorize


class Refusal:
    """A callable whose truth value is false, like an empty collection of rights."""

    def __call__(self, action: str = "") -> Any:
        return action == "never"

    def __len__(self) -> int:
        return 0


@pytest.mark.pages
def test_arguments_for_an_app_override_the_instance_s_even_if_false(app: Flask) -> None:
    authorize, actor = Refusal(), Refusal()
    jobs = CronJobs(authorize=lambda action: True, actor=lambda: "instance")
    jobs.init_app(app, authorize=authorize, actor=actor)
    state = state_of(app)
    assert state.authorize is authorize
    assert state.actor is actor
    assert app.test_client().get("/jobs/").status_code == 403


def test_secrets_of_the_settings_are_in_no_repr(app: Flask) -> None:
    token, url = "a-token-of-some-length", "https://monitor.example/hidden-uuid"
    app.config.update(CRONJOBS_TICK_TOKEN=token, CRONJOBS_PING_URL=url)
    CronJobs(app)
    assert state_of(app).settings.tick_token == token
    assert token not in repr(state_of(app))
    assert "hidden-uuid" not in repr(state_of(app))


def test_bad_value_fails_at_initialization_and_leaves_no_trace(app: Flask) -> None:
    app.config.update(CRONJOBS_LEASE="soon")
    with pytest.raises(ConfigError, match="CRONJOBS_LEASE is 'soon'"):
        CronJobs(app)
    assert "cronjobs" not in app.extensions
    app.config["CRONJOBS_LEASE"] = 60
    CronJobs(app)


def test_call_outside_an_app_or_in_one_without_the_extension_is_a_clear_error() -> None:
    jobs = CronJobs()

    @jobs.task
    def hello() -> None: ...

    for call in (hello.enqueue, lambda: hello.enqueue_many([{}]), jobs.tick, jobs.health):
        with pytest.raises(SetupError, match=r"with app\.app_context\(\)"):
            call()
    with Flask("x").app_context(), pytest.raises(SetupError, match=r"jobs\.init_app\(app\)"):
        hello.enqueue()


def test_two_apps_in_one_process_share_tasks_and_nothing_else(
    app: Flask, db: SQLAlchemy, another: tuple[Flask, SQLAlchemy]
) -> None:
    jobs = CronJobs()
    calls: list[str] = []

    @jobs.task
    def hello(name: str) -> None:
        calls.append(name)

    other_app, other_db = another
    for one_app, attempts in ((app, 3), (other_app, 5)):
        one_app.config["CRONJOBS_MAX_ATTEMPTS"] = attempts
        jobs.init_app(one_app)
    with app.app_context():
        db.create_all()
        assert hello.using(commit=True).enqueue("one").max_attempts == 3
    with other_app.app_context():
        other_db.create_all()
        assert other_db.session.scalars(select(JobRun)).all() == []
        assert hello.using(commit=True).enqueue("two").max_attempts == 5
        assert jobs.tick().succeeded == 1
    assert calls == ["two"]
    with app.app_context():
        assert jobs.tick().succeeded == 1
    assert calls == ["two", "one"]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
@pytest.mark.parametrize("migrating", [False, True])
def test_database_in_memory_is_said_to_be_one_by_each_command(url: str, migrating: bool) -> None:
    """Creating tables does not help: the next command would not find them."""
    app = Flask("x")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    SQLAlchemy(app)
    jobs = CronJobs(app)
    if migrating:
        app.extensions["migrate"] = object()
    with app.app_context(), pytest.raises(SetupError, match=r"SQLite in memory.*Use a file"):
        jobs.tick()
    for command in ("", "list", "init", "doctor", "doctor --json"):
        result = app.test_cli_runner().invoke(args=["jobs", "admin", *command.split()])
        assert result.exit_code == 1
        output = " ".join(result.output.split())
        assert "SQLite in memory, where all code shares one connection" in output
        assert "Use a file" in output
        assert "admin init" not in output
        assert "migrat" not in output
