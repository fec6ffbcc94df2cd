"""Apps with a setup that is rare but allowed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import MetaData, inspect, make_url, update

from flask_cronjobs import CronJobs, LeaseLost, SetupError, TaskError
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.core.worker.keeper import Keeper
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.models import JobRun
from tests.marks import on_both, on_postgresql
from tests.postgres import Server
from tests.rows import Rows, ago


class TestMetadataWithASchema:
    """``SQLAlchemy(metadata=MetaData(schema="app"))``: the job tables stay in the default one."""

    @pytest.fixture
    def db(self) -> SQLAlchemy:
        return SQLAlchemy(metadata=MetaData(schema="app"))

    @on_both
    def test_create_all_makes_the_tables_that_jobs_use(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs
    ) -> None:
        @jobs.task
        def work() -> int:
            return 7

        with app.app_context():
            assert "job_runs" in inspect(db.engine).get_table_names()
            run = work.using(commit=True).enqueue()
            assert jobs.tick().succeeded == 1
            db.session.refresh(run)
            assert run.result == 7
        assert db.metadata.schema == "app"
        findings = {finding.id: finding for finding in examine(state_of(app))}
        assert findings["tables"].level == "ok"


@pytest.mark.flask_sqlalchemy
@on_postgresql
def test_two_apps_on_one_object_are_initialized(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tmp_path: Path
) -> None:
    """The second app comes from another factory, or uses another kind of database."""
    second = Flask("second")
    second.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'second.sqlite'}"
    db.init_app(second)
    CronJobs(second)
    with second.app_context():
        db.create_all()
        assert "job_runs" in inspect(db.engine).get_table_names()
        db.engine.dispose()


@pytest.mark.parametrize("whose", ["server_encoding", "client_encoding"])
@pytest.mark.slow
def test_an_encoding_without_all_characters_is_refused(
    postgresql_url: str, postgres_server: Server, db: SQLAlchemy, whose: str
) -> None:
    """A server's error in another language would end the worker that records it, each time."""
    url = make_url(postgresql_url)
    if whose == "client_encoding":
        url = url.update_query_dict({"client_encoding": "latin1"})
    else:
        url = make_url(postgres_server.create_database(latin=True))
    app = Flask("latin")
    app.config["SQLALCHEMY_DATABASE_URI"] = url.render_as_string(hide_password=False)
    db.init_app(app)
    jobs = CronJobs(app)
    with app.app_context():
        db.create_all()
        with pytest.raises(SetupError, match=rf"{whose} is LATIN1.* ENCODING 'UTF8'"):
            jobs.tick()
        assert "encoding" in {row.id for row in examine(state_of()) if row.level == "error"}
        db.engine.dispose()
    if whose == "server_encoding":
        postgres_server.drop_database(url.render_as_string(hide_password=False))


def test_a_definition_that_no_code_declares_is_not_said_to_be_declared(
    app: Flask, jobs: CronJobs, rows: Rows
) -> None:
    jobs.task(name="it")(lambda: None)
    rows.definition("nightly", job_type="it", origin="code")
    with app.app_context():
        with pytest.raises(TaskError) as refused:
            jobs.add_definition("nightly", "it", schedule="@daily")
        assert str(refused.value) == (
            "The definition 'nightly' came from code, though this app's code does not declare it "
            "(any more). Give this one another name, or call remove_definition('nightly') first."
        )
        assert jobs.remove_definition("nightly")
        assert jobs.add_definition("nightly", "it", schedule="@daily")


def test_host_matching_is_an_error_at_init(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Otherwise every page would silently be the app's 404."""
    app = Flask("hosts", host_matching=True, static_host="shop.example")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'app.sqlite'}"
    SQLAlchemy(app)
    CronJobs(app)
    assert "host_matching=True" in caplog.text
    assert app.test_client().get("/jobs/health", base_url="http://shop.example").status_code == 404


@pytest.mark.flask_sqlalchemy
def test_engine_that_translates_the_default_schema_is_refused(tmp_path: Path) -> None:
    """``create_all`` would create the tables in one schema, and ticks would use another."""
    app = Flask("tenants")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'app.sqlite'}"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {
        "execution_options": {"schema_translate_map": {None: "app"}}
    }
    SQLAlchemy(app)
    with pytest.raises(SetupError, match="search_path=app"):
        CronJobs(app)


@pytest.fixture
def gevent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether gevent has patched threads. It is imported in any case."""
    patched = bool(getattr(request, "param", True))
    module = SimpleNamespace(is_module_patched=lambda name: patched and name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", module)
    return patched


@pytest.mark.parametrize("gevent", [False, True], indirect=True)
def test_worker_whose_threads_gevent_has_patched_says_so(
    context: None, jobs: CronJobs, rows: Rows, caplog: pytest.LogCaptureFixture, gevent: bool
) -> None:
    """A handler that computes would lose its lease at each attempt, without a message."""
    jobs.task(name="it")(lambda: None)
    jobs.enqueue("it", commit=True)
    expired = rows.run("running", job_type="it", locked_until=ago(5), max_attempts=3)
    assert jobs.tick().reclaimed == 1
    assert any(line.startswith("gevent has patched threads") for line in caplog.messages) == gevent
    assert ("gevent has patched threads" in str(rows.get(expired).last_error)) == gevent


@pytest.mark.parametrize(
    "why", ["the lease ended", "the lease was lost, so another worker may take the run"]
)
def test_handler_that_has_lost_its_lease_says_that_gevent_has_patched_threads(
    context: None, jobs: CronJobs, db: SQLAlchemy, state: State, gevent: bool, why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if why == "the lease ended":  # The keeper cannot renew the lease.
        object.__setattr__(state.settings, "lease", 0.5)
        for duty in ("_renew", "_watch"):
            monkeypatch.setattr(Keeper, duty, lambda keeper: time.monotonic() + 60)
    errors: list[str] = []

    @jobs.task(retry=False, timeout=30)
    def computes() -> None:
        if why != "the lease ended":
            with db.engine.begin() as connection:
                connection.execute(update(JobRun).values(locked_by="other:1:token"))
        try:
            while True:
                time.sleep(0.01)
        except LeaseLost as lost:
            errors.append(str(lost))
            raise

    computes.using(commit=True).enqueue()
    jobs.tick()
    assert [error.partition(". ")[2][:6] for error in errors] == ["gevent"]
    assert errors[0].startswith(why)
