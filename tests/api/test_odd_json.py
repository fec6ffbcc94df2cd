"""Apps whose engine or driver has its own JSON functions do not change our columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs, Retry, current_run
from flask_cronjobs.models import JobRun
from tests.marks import on_both

pytestmark = [pytest.mark.usefixtures("context"), on_both]

#: The app's own functions turn floats, and texts that look like dates, into other values.
ODD: dict[str, Any] = {"f": 1.5, "day": "2026-01-02"}
AGAIN = Retry(max_attempts=2, base=0)
Command = Callable[..., Any]


def loads(text: str | bytes) -> Any:
    """Read floats as decimals, and texts that look like dates as dates."""

    def dates(members: dict[str, Any]) -> dict[str, Any]:
        return {
            name: date.fromisoformat(value) if name == "day" and isinstance(value, str) else value
            for name, value in members.items()
        }

    return json.loads(text, parse_float=Decimal, object_hook=dates)


def dumps(value: Any) -> str:
    """Wrap *value* in an object, so that the column shows who wrote it."""
    return json.dumps({"written": value}, default=str)


@pytest.fixture(params=["engine", "driver"])
def engine_options(
    request: pytest.FixtureRequest, database_url: str, layer: str
) -> Iterator[dict[str, Any]]:
    """The options of an engine that has such functions, or whose driver has them."""
    if layer in ("lite", "plain"):
        pytest.skip("the engines of these layers take no options in tests")
    if request.param == "engine":
        yield {"json_deserializer": loads, "json_serializer": dumps}
    elif database_url.startswith("sqlite"):
        sqlite3.register_converter("JSON", loads)
        yield {"connect_args": {"detect_types": sqlite3.PARSE_DECLTYPES}}
        del sqlite3.converters["JSON"]
    elif layer == "psycopg2":
        pytest.skip("SQLAlchemy sets the functions of psycopg2, for each connection")
    else:
        psycopg_json = pytest.importorskip("psycopg.types.json")
        psycopg_json.set_json_loads(loads)
        psycopg_json.set_json_dumps(dumps)
        yield {}
        psycopg_json.set_json_loads(json.loads)
        psycopg_json.set_json_dumps(json.dumps)


@pytest.fixture
def admin(app: Flask) -> Command:
    """Return a function that runs an admin command and returns its output, or its JSON."""

    def run(*args: str) -> Any:
        result = app.test_cli_runner().invoke(args=["jobs", "admin", *args])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if "--json" in args else result.stdout

    return run


def test_app_s_own_json_differs_from_ours(db: SQLAlchemy, database_url: str) -> None:
    """If this did not hold, the other tests could not fail."""

    class Own(db.Model):  # type: ignore[name-defined,misc]
        __tablename__ = "own"
        id = db.Column(db.Integer, primary_key=True)
        value = db.Column(db.JSON)

    Own.__table__.create(db.engine)
    db.session.add(Own(id=1))
    db.session.commit()
    update = 'UPDATE own SET value = \'{"f": 1.5, "day": "2026-01-02"}\''
    db.session.execute(db.text(update))
    db.session.commit()
    (value,) = db.session.execute(db.text("SELECT value FROM own")).one()
    if isinstance(value, str):  # SQLite applies the engine's functions to typed columns only.
        value = db.session.scalars(db.select(Own.value)).one()
    assert value == {"f": Decimal("1.5"), "day": date(2026, 1, 2)}


def test_runs_have_plain_json(db: SQLAlchemy, jobs: CronJobs, admin: Command) -> None:
    payloads: list[object] = []

    @jobs.task(retry=AGAIN, unique="{f}")
    def work(f: float, day: str) -> dict[str, object]:
        payloads.append((f, day))
        return {"f": f, "day": day}

    run = work.using(commit=True).enqueue(**ODD)
    second = work.using(commit=True).enqueue(**ODD)
    assert (second.id, second.payload) == (run.id, ODD)
    assert jobs.tick().succeeded == 1
    assert repr(payloads) == "[(1.5, '2026-01-02')]"
    db.session.refresh(run)
    assert (run.payload, run.result) == (ODD, ODD)
    assert repr(run.result) == repr(ODD)
    assert db.session.execute(db.select(JobRun.payload, JobRun.result)).one() == (ODD, ODD)
    assert db.session.scalar(db.select(JobRun.result["day"].as_string())) == "2026-01-02"
    page = admin("show", str(run.id), "--json")
    assert (page["payload"], page["result"]) == (ODD, ODD)
    assert '"2026-01-02"' in admin("show", str(run.id))
    again = admin("again", str(run.id), "--json")
    assert again is not None
    assert jobs.tick().succeeded == 1
    assert repr(payloads[1]) == "(1.5, '2026-01-02')"


def test_what_a_session_writes_is_plain_json(db: SQLAlchemy, jobs: CronJobs) -> None:
    payloads: list[object] = []
    jobs.task(name="it")(lambda **payload: payloads.append(payload))
    run = jobs.enqueue("it", commit=True)
    db.session.add(run)
    run.payload = dict(ODD)
    db.session.commit()
    assert jobs.tick().succeeded == 1
    assert repr(payloads) == repr([ODD])


def test_definitions_have_plain_json(db: SQLAlchemy, jobs: CronJobs, admin: Command) -> None:
    payloads: list[object] = []

    @jobs.task
    def work(f: float, day: str) -> None:
        payloads.append((f, day))

    jobs.add_definition("daily", "work", schedule="@daily", payload=ODD)
    assert jobs.tick().recorded == 0
    assert "daily" in admin("definitions")
    assert admin("definitions", "--json")["definitions"][0]["name"] == "daily"
    admin("run", "daily")
    assert jobs.tick().succeeded == 1
    assert repr(payloads) == "[(1.5, '2026-01-02')]"
    # Missed slots have a JSON note, which the statement returns.
    db.session.execute(db.text("UPDATE job_definitions SET next_run_at = '2026-01-01'"))
    db.session.commit()
    assert jobs.tick().skipped > 0


def test_results_of_once_and_of_steps_are_the_same_the_second_time(jobs: CronJobs) -> None:
    results: list[object] = []

    @jobs.task(retry=AGAIN)
    def work() -> None:
        step, effect = jobs.step("step", lambda: ODD), jobs.once("effect", lambda: ODD)
        results.append((step, effect))
        if current_run.attempt == 1:
            raise ConnectionError("the mail server is away")

    work.using(commit=True).enqueue()
    assert jobs.tick().attempts == 2
    assert repr(results) == repr([(ODD, ODD)] * 2)


def test_payloads_of_signals_are_plain_json(db: SQLAlchemy, jobs: CronJobs, admin: Command) -> None:
    signals: list[object] = []

    @jobs.task
    def work() -> None:
        signals.append(jobs.wait("paid"))

    run = work.using(commit=True).enqueue()
    assert jobs.signal(run.id, "paid", ODD)
    db.session.commit()
    assert jobs.tick().succeeded == 1
    assert repr(signals) == repr([ODD])
    (step,) = admin("show", str(run.id), "--json")["steps"]
    assert step["result"] == ODD


def test_runs_of_then_have_plain_json(db: SQLAlchemy, jobs: CronJobs) -> None:
    payloads: list[object] = []
    jobs.task(name="it")(lambda: None)

    @jobs.task(priority=7)
    def then(f: float, day: str) -> None:
        payloads.append((f, day))

    with jobs.batch("all", then=then, then_payload=ODD):
        jobs.enqueue("it")
    db.session.commit()
    assert jobs.tick().succeeded == 2
    assert repr(payloads) == "[(1.5, '2026-01-02')]"


@pytest.mark.pages
def test_pages_show_plain_json(app: Flask, jobs: CronJobs) -> None:
    app.debug = True

    @jobs.task(schedule="@daily", payload=ODD)
    def work(f: float, day: str) -> dict[str, object]:
        return {"f": f, "day": day}

    jobs.tick()
    jobs.run_now("work")
    jobs.tick()
    for page in ("/jobs/runs/1", "/jobs/definition?name=work", "/jobs/runs", "/jobs/"):
        assert app.test_client().get(page).status_code == 200
