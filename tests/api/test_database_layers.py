"""Apps without Flask-SQLAlchemy, or with psycopg2: enqueue, tick, pages, tables, wrong mixes.

The other tests of this folder can run on each layer as well: ``pytest --layer lite tests/api``.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2  # type: ignore[import-untyped]
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from flask import Flask
from sqlalchemy import MetaData, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, scoped_session, sessionmaker

from flask_cronjobs import CronJobs, Retry, SetupError, current_run
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.models import JobRun
from flask_cronjobs.testing import fire
from tests.layers import LAYERS, lite_extension
from tests.marks import on_both, on_postgresql
from tests.python import python


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> str:
    """Every layer in turn; the option is ignored here."""
    return str(request.param)


@pytest.fixture
def customers(db: Any) -> Any:
    """A model of the app's own, declared as the layer does it."""

    class Customer(db.Model):  # type: ignore[misc]
        __tablename__ = "customers"
        id = mapped_column(db.Integer, primary_key=True)

    return Customer


class TestEachLayer:
    @on_both
    def test_enqueue_joins_the_session_and_a_tick_executes(
        self, customers: Any, app: Flask, db: Any, jobs: CronJobs
    ) -> None:
        @jobs.task
        def greet(customer: int) -> str:
            db.session.add(customers(id=customer + 1))
            db.session.commit()
            return f"Hello, {customer}"

        with app.app_context():
            db.session.add(customers(id=1))
            greet.enqueue(customer=1)
            db.session.rollback()
            assert jobs.tick().succeeded == 0
            db.session.add(customers(id=1))
            run = greet.enqueue(customer=1)
            db.session.commit()
            assert jobs.tick().succeeded == 1
            db.session.refresh(run)
            assert (run.status, run.result) == ("succeeded", "Hello, 1")
            assert db.session.scalar(select(func.count()).select_from(customers)) == 2

    @on_both
    def test_atomic_work_and_success_are_one_commit(
        self, customers: Any, app: Flask, db: Any, jobs: CronJobs
    ) -> None:
        @jobs.task(atomic=True, retry=Retry(max_attempts=2, base=0))
        def add(how: str) -> None:
            db.session.add(customers(id=current_run.attempt))
            if how == "fail" and current_run.attempt == 1:
                raise ValueError
            if how == "commit":
                db.session.commit()

        with app.app_context():
            runs = [add.enqueue(how=how) for how in ("commit", "fail")]
            db.session.commit()
            jobs.tick()
            db.session.expire_all()
            assert [run.status for run in runs] == ["dead", "succeeded"]
            assert "committed" not in (runs[1].last_error or "")
            assert list(db.session.scalars(select(customers.id))) == [2]

    @on_both
    def test_what_a_handler_left_uncommitted_is_named_and_lost(
        self, customers: Any, app: Flask, db: Any, jobs: CronJobs
    ) -> None:
        @jobs.task
        def forget() -> None:
            db.session.add(customers(id=1))
            forget.enqueue()

        with app.app_context():
            run = forget.using(commit=True).enqueue()
            jobs.tick()
            db.session.refresh(run)
            assert "uncommitted work in db.session, so it is lost: " in (run.last_error or "")
            assert db.session.get(customers, 1) is None

    @on_both
    def test_async_handlers_have_a_session_each(
        self, app: Flask, db: Any, jobs: CronJobs, layer: str
    ) -> None:
        sessions: list[Session] = []
        at_once: list[bool] = []

        @jobs.task
        async def wait() -> None:
            mine = db.session()
            sessions.append(mine)
            await asyncio.sleep(0.2)
            at_once.append(len(sessions) == 2)
            assert db.session() is mine

        with app.app_context():
            wait.using(commit=True).enqueue_many([{}, {}])
            assert jobs.tick().succeeded == 2
        assert sessions[0] is not sessions[1]
        # Flask-SQLAlchemy-Lite ends each context in its own event loop.
        assert at_once[0] == (layer != "lite")

    @on_both
    @pytest.mark.pages
    def test_pages_and_commands_work(
        self, app: Flask, db: Any, database_url: str, layer: str
    ) -> None:
        jobs = CronJobs(app, authorize=lambda action: True, **getattr(db, "given", {}))
        jobs.task(name="greet")(lambda: None)
        run = app.test_cli_runner().invoke
        assert run(args=["jobs", "admin", "init"]).exit_code == 0
        assert run(args=["jobs", "admin", "run", "greet"]).exit_code == 0
        assert "succeeded  greet  run 1" in run(args=["jobs", "tick"]).output
        client = app.test_client()
        for path in ("/jobs/", "/jobs/runs", "/jobs/runs/1", "/jobs/workers", "/jobs/health"):
            assert client.get(path).status_code == 200, path
        doctor = run(args=["jobs", "admin", "doctor"])
        assert "Traceback" not in doctor.output

    @on_both
    def test_alembic_sees_the_job_tables(
        self, customers: Any, app: Flask, db: Any, jobs: CronJobs
    ) -> None:
        def added() -> set[str]:
            with db.engine.connect() as connection:
                changes = compare_metadata(MigrationContext.configure(connection), db.metadata)
            return {change[1].name for change in changes if change[0] == "add_table"}

        with app.app_context():
            db.metadata.drop_all(db.engine)
            assert {"customers", "job_runs", "job_definitions", "job_effects"} <= added()
            db.create_all()
            assert added() == set()


class Base(DeclarativeBase):
    pass


bare: Any = Session
engine = create_engine("sqlite:///unused.sqlite")
scoped = scoped_session(sessionmaker(engine))


class TestWrongMixes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, r"The app 'x' has no database yet\. Call init_app\(app\) of Flask-SQLAlchemy"),
            ({"session": scoped}, r"engine= is missing\. Give the engine"),
            ({"engine": engine}, r"session= is missing\. Give a scoped_session"),
            ({"session": Session(), "engine": engine}, r"session= is a Session\. Give a scoped_s"),
            ({"session": sessionmaker(), "engine": engine}, r"session= is a sessionmaker\. Give"),
            ({"session": scoped_session(bare), "engine": engine}, "without a sessionmaker"),
            ({"session": scoped, "engine": "sqlite://"}, r"engine= is a str\. Give the engine"),
            (
                {"session": scoped, "engine": engine, "metadata": Base},
                r"metadata= is a Decl.*\. Give that",
            ),
        ],
    )
    def test_it_is_refused_in_a_sentence(self, options: dict[str, Any], message: str) -> None:
        app = Flask("x")
        with pytest.raises(SetupError, match=message):
            CronJobs(app, **options)
        assert app.extensions == {}

    def test_lite_without_a_default_engine(self) -> None:
        app = Flask("x")
        app.config["SQLALCHEMY_ENGINES"] = {"other": "sqlite://"}
        lite_extension()(app)
        with pytest.raises(SetupError, match=r"Set SQLALCHEMY_ENGINES = \{'default': …\}"):
            CronJobs(app)

    def test_another_metadata_beside_flask_sqlalchemy(self) -> None:
        app, db = Flask("x"), LAYERS["flask-sqlalchemy"]()
        app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
        db.init_app(app)
        with pytest.raises(SetupError, match=r"differs from db\.metadata\. Leave it out"):
            CronJobs(app, metadata=MetaData())
        CronJobs(app, metadata=db.metadata)


@pytest.mark.parametrize("layer", ["lite"], indirect=True)
class TestLite:
    def test_without_metadata_init_makes_the_tables(self, app: Flask, db: Any) -> None:
        CronJobs(app)
        assert "job_runs" not in db.metadata.tables
        assert app.test_cli_runner().invoke(args=["jobs", "admin", "init"]).exit_code == 0
        with app.app_context():
            assert db.session.scalar(select(func.count()).select_from(JobRun)) == 0


Make = Callable[..., tuple[Flask, Any, CronJobs]]


class TestPlain:
    """SQLAlchemy alone, with a session per thread, as Flask's documentation shows."""

    @pytest.fixture
    def layer(self) -> str:
        return "plain"

    @pytest.fixture
    def make(self, database_url: str) -> Iterator[Make]:
        """Return a function that makes an app with a session per thread, and its extension."""
        app, engine = Flask("x"), create_engine(database_url)

        def make(metadata: MetaData, kind: type[Session] = Session) -> tuple[Flask, Any, CronJobs]:
            app.extensions["session"] = scoped_session(sessionmaker(engine, class_=kind))
            options = {"session": app.extensions["session"], "engine": engine, "metadata": metadata}
            jobs = CronJobs(app, **options)
            with app.app_context():
                metadata.create_all(engine)
            return app, options["session"], jobs

        yield make
        app.extensions["session"].remove()
        engine.dispose()

    @on_both
    @pytest.mark.parametrize("removes", [True, False], ids=["app_removes", "app_removes_nothing"])
    def test_sessions_of_threads_end_with_each_run(self, make: Make, removes: bool) -> None:
        app, session, jobs = make(Base.metadata)
        if removes:
            app.teardown_appcontext(lambda error: session.remove())
        sessions: list[Session] = []

        @jobs.task
        async def together() -> None:
            sessions.append(session())
            await asyncio.sleep(0.05)
            assert not session().in_transaction()
            session.execute(select(1))

        @jobs.task
        def alone() -> None:
            assert not session().in_transaction()
            session.execute(select(1))

        with app.app_context():
            if removes:
                together.using(commit=True).enqueue_many([{}, {}])
            alone.using(commit=True).enqueue_many([{}, {}])
            assert jobs.tick().succeeded == (4 if removes else 2)
        assert len(set(map(id, sessions))) == len(sessions)

    @on_both
    def test_session_may_bind_only_the_models_of_the_app(self, database_url: str) -> None:
        """SQLAlchemy could not locate a bind for the job tables, though the engine was given."""
        app, engine = Flask("x"), create_engine(database_url)
        session = scoped_session(sessionmaker(binds={Base: engine}))
        jobs = CronJobs(app, session=session, engine=engine, metadata=Base.metadata)
        jobs.task(name="it", schedule="@daily")(lambda: jobs.step("time", lambda: 1))
        with app.app_context():
            Base.metadata.create_all(engine)
            jobs.enqueue("it", commit=True)
            assert jobs.tick().succeeded == 1
            assert fire("it").status == "succeeded"
            session.remove()
        engine.dispose()


@on_postgresql
@pytest.mark.parametrize("layer", ["psycopg2"], indirect=True)
class TestPsycopg2:
    def test_the_session_stays_on_it_and_bookkeeping_does_not(
        self, app: Flask, db: Any, jobs: CronJobs
    ) -> None:
        with app.app_context():
            driver = db.session.connection().connection.dbapi_connection
            assert isinstance(driver, psycopg2.extensions.connection)
            db.session.rollback()
            assert state_of().engine.dialect.driver == "psycopg"
            assert state_of().engine is state_of().engine

    @pytest.mark.parametrize("returned", [True, False], ids=["by_a_listener", "by_a_creator"])
    def test_connections_that_the_app_makes_itself_are_reported(
        self, app: Flask, db: Any, jobs: CronJobs, returned: bool
    ) -> None:
        with app.app_context():
            engine = db.engine
            plain = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
            if returned:
                event.listen(engine, "do_connect", lambda *args: psycopg2.connect(plain))
            else:
                engine.pool._creator = lambda: psycopg2.connect(plain)
            with pytest.raises(
                SetupError, match=r"connections with psycopg2 itself .*postgresql\+ps"
            ):
                jobs.tick()

    def test_missing_psycopg_is_reported_with_the_line_for_pip(
        self, app: Flask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            "flask_cronjobs.db.dialect.find_spec",
            lambda name: None if name == "psycopg" else find(name),
        )
        with pytest.raises(SetupError, match=r"pip install 'psycopg\[binary\]'"):
            CronJobs(app)


def test_nothing_imports_flask_sqlalchemy() -> None:
    code = "import sys, flask_cronjobs.extension; sys.exit('flask_sqlalchemy' in sys.modules)"
    assert python("-c", code).returncode == 0
