"""Fixtures that give a test its database, its app and its jobs."""

from __future__ import annotations

import faulthandler
import gc
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, create_engine, event, text

from tests import brokers, leftovers, old_click, pgbouncer, postgres
from tests.layers import LAYERS

if TYPE_CHECKING:
    from flask_cronjobs import CronJobs, Task, TickReport
    from flask_cronjobs.core.app_state import State
    from flask_cronjobs.models import JobRun
    from tests.handlers import Enqueue
    from tests.kit import Kit
    from tests.monitor import Monitor
    from tests.resident import Resident
    from tests.rows import Rows

old_click.behave_as_new()
# How long a machine takes to make examples says nothing about us.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


#: Files with few tests that take long: one that begins last is waited for alone.
LONG = (
    "test_claim_order",
    "test_every_form",
    "test_example_tasks",
    "test_hidden_values",
    "test_interrupted_sqlalchemy",
    "test_schedule_properties",
    "test_state_machine",
    "test_two_workers",
)


@event.listens_for(Engine, "connect")
def no_waits_for_the_disk(driver: Any, _record: object) -> None:
    """Let SQLite leave it to the system when its files are written: no test cuts the power."""
    if isinstance(driver, sqlite3.Connection):
        driver.execute("PRAGMA synchronous = OFF")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that take long begin first."""
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Let a test that hangs say where.

    pytest-timeout prints the stacks to the standard output, which a process of pytest-xdist lacks.
    """
    timer = threading.Timer(settings.timeout, end_hung_process, (item,))
    timer.daemon = True

    def cancel() -> None:
        timer.cancel()
        timer.join()

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    timer.start()
    return True


def end_hung_process(item: pytest.Item) -> None:
    capture: Any = item.config.pluginmanager.getplugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    os.write(2, f"\n{item.nodeid} takes too long. Its threads:\n".encode())
    faulthandler.dump_traceback(2)
    os._exit(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of the public API run with another layer than Flask-SQLAlchemy."""
    parser.addoption("--layer", choices=LAYERS, default="flask-sqlalchemy")


def pytest_collection_finish() -> None:
    """Let the collector pass over what stays for all tests: one look takes a fifth of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a thread, a process or an open database behind.

    And the one during which a receiver of a signal raises: that is only logged. A test that means
    it is marked ``receiver_raises``.
    """
    if request.node.get_closest_marker("browser"):
        yield  # A browser asks for what it likes until it is closed.
        return
    with leftovers.nothing_left(request.node.nodeid):
        if request.node.get_closest_marker("receiver_raises"):
            yield
            return
        with leftovers.no_receiver_raises():
            yield


@pytest.fixture(autouse=True)
def within_one_hour() -> None:
    """Let no test begin just before a full hour, and so before midnight.

    What it has written for today, or for the last hour, would be yesterday's when it looks.
    """
    seconds = 3600 - time.time() % 3600
    if seconds < 8:
        time.sleep(seconds)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """The PostgreSQL server, started by the first test that asks for it."""
    with postgres.running_server("fsync = off\n") as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database in a file."""
    return f"sqlite:///{tmp_path / 'test.sqlite'}"


@pytest.fixture(scope="session")
def postgres_database(postgres_server: postgres.Server) -> Iterator[list[str]]:
    """The one database that all tests use in turn, as a list of its last URL."""
    urls = [postgres_server.create_database()]
    yield urls
    postgres_server.drop_database(urls[-1])


@pytest.fixture
def postgresql_url(postgres_server: postgres.Server, postgres_database: list[str]) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, with a name that no test has had before."""
    postgres_database[-1] = postgres_server.renew_database(postgres_database[-1])
    yield postgres_database[-1]
    leftovers.refuse(lambda: postgres_server.connections(postgres_database[-1]))


@pytest.fixture
def pgbouncer_url(postgresql_url: str) -> Iterator[str]:
    """The URL of `postgresql_url`'s database by way of PgBouncer in transaction mode."""
    program = brokers.find_program("pgbouncer", "pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed, and cannot be")
    with pgbouncer.running_pgbouncer(program, postgresql_url) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[brokers.Broker]:
    """A Redis server, to kill and to start again."""
    yield from _broker(brokers.running_redis, "redis-server")


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[brokers.Broker]:
    """A RabbitMQ server, to kill and to start again."""
    yield from _broker(brokers.running_rabbitmq, "rabbitmq-server")


def _broker(
    running: Callable[[], AbstractContextManager[brokers.Broker | None]], name: str
) -> Iterator[brokers.Broker]:
    with running() as broker:
        if broker is None:
            pytest.skip(f"{name} is not installed, and cannot be")
        yield broker


@pytest.fixture
def restartable_postgres(
    postgres_server: postgres.Server, postgresql_url: str
) -> Iterator[postgres.LocalServer]:
    """The server of `postgresql_url`, to stop and start; it runs again after the test."""
    if not isinstance(postgres_server, postgres.LocalServer):
        pytest.skip(f"{postgres.ENVIRONMENT} names a server that is not ours to stop")
    yield postgres_server
    if not postgres_server.is_running():
        postgres_server.start()


@pytest.fixture(autouse=True)
def short_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reclaiming in this process wait but briefly for living workers on SQLite."""
    from flask_cronjobs.core import reclaim

    monkeypatch.setattr(reclaim, "renewal_window", lambda lease: 0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database: the test runs once with each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def layer(request: pytest.FixtureRequest) -> str:
    """How the app reaches its database; see `tests.layers`."""
    chosen = str(request.config.getoption("--layer"))
    if chosen in ("lite", "plain") and request.node.get_closest_marker("flask_sqlalchemy"):
        pytest.skip("This is about Flask-SQLAlchemy itself.")
    return chosen


@pytest.fixture
def db(layer: str) -> Any:
    """A Flask-SQLAlchemy extension of the test's own, or what stands for it; `app` begins it."""
    return LAYERS[layer]()


@pytest.fixture
def url_prefix(request: pytest.FixtureRequest) -> str | None:
    """The path of the pages. Only tests marked ``pages`` have them: it takes time to add them."""
    return "/jobs" if request.node.get_closest_marker("pages") else None


@pytest.fixture
def app(
    database_url: str,
    db: Any,
    url_prefix: str | None,
    engine_options: dict[str, Any],
    binds: dict[str, str],
) -> Iterator[Flask]:
    """An app on `database_url`, whose connections are closed after the test."""
    app = Flask("tests")
    app.config.update(TESTING=True, SECRET_KEY="tests", SQLALCHEMY_DATABASE_URI=database_url)
    app.config.update(SQLALCHEMY_ENGINE_OPTIONS=engine_options, SQLALCHEMY_BINDS=binds)
    app.config["CRONJOBS_URL_PREFIX"] = url_prefix
    db.init_app(app)
    yield app
    with app.app_context():
        for engine in db.engines.values():
            engine.dispose()


@pytest.fixture
def jobs(app: Flask, db: Any) -> CronJobs:
    """The extension on `app`, its tables created."""
    from flask_cronjobs import CronJobs
    from tests.tables import make_tables

    jobs = CronJobs(app, **getattr(db, "given", {}))
    make_tables(app, db)
    return jobs


@pytest.fixture
def engine_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The engine options of the app; a test gives them as a parameter."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def engine(database_url: str, engine_options: dict[str, Any]) -> Iterator[Engine]:
    """An engine of the empty database, without an app."""
    engine = create_engine(database_url, **engine_options)
    yield engine
    engine.dispose()


@pytest.fixture
def binds() -> dict[str, str]:
    """The URLs of the app's further databases."""
    return {}


@pytest.fixture
def context(app: Flask, jobs: CronJobs) -> Iterator[None]:
    """An app context around the whole test, as in a shell."""
    with app.app_context():
        yield


@pytest.fixture
def state(app: Flask, jobs: CronJobs) -> State:
    """What the extension knows of `app`."""
    from flask_cronjobs.core.app_state import state_of

    return state_of(app)


@pytest.fixture
def rows(state: State) -> Rows:
    """Makes rows in the job tables."""
    from tests.rows import Rows

    return Rows(state.engine)


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    """A monitor that listens while the test runs."""
    from tests.monitor import Monitor

    with Monitor() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def perform(context: None, jobs: CronJobs, db: Any) -> Callable[..., JobRun]:
    """Declare a handler, enqueue a run of it, tick once; the run as it ended."""
    from flask_cronjobs import Retry

    def perform(handler: Callable[..., Any], **options: Any) -> JobRun:
        task = jobs.task(**{"name": "it", "retry": Retry(max_attempts=1), **options})(handler)
        run = task.using(commit=True).enqueue()
        jobs.tick()
        db.session.refresh(run)
        return run

    return perform


@pytest.fixture
def tick(app: Flask, jobs: CronJobs) -> Callable[[], TickReport]:
    """Runs a tick of `jobs` here."""

    def run() -> TickReport:
        with app.app_context():
            return jobs.tick()

    return run


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The job tables of an empty database, created; see `tests.kit`."""
    from tests.kit import Kit

    kit = Kit.on(database_url)
    yield kit
    kit.close()


@pytest.fixture
def writers(kit: Kit) -> None:
    """Writers on SQLite begin with the write lock, as apps that write at once should."""
    from tests.kit import begin_with_the_write_lock

    begin_with_the_write_lock(kit)


@pytest.fixture
def enqueue(context: None, jobs: CronJobs) -> Enqueue:
    """Declare a handler, and enqueue a run of it for each payload; their ids."""
    tasks: dict[object, Task] = {}

    def enqueue(
        handler: Callable[..., Any], payloads: Sequence[dict[str, Any]] = ({},), **options: Any
    ) -> list[int]:
        if handler not in tasks:
            name = handler.__name__
            task_options = {"name": "it" if name == "<lambda>" else name, **options}
            tasks[handler] = jobs.task(**task_options)(handler)
        return list(tasks[handler].using(commit=True).enqueue_many(payloads))

    return enqueue


@pytest.fixture
def table(context: None, db: Any) -> None:
    """The table `work` of the app's own; see `tests.handlers`."""
    with db.engine.begin() as connection:
        connection.execute(text("CREATE TABLE work (label text)"))


@pytest.fixture
def resident(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Resident]]:
    """Starts resident workers, which end with the test, and with their last minute."""
    from flask_cronjobs.core import resident as resident_module
    from flask_cronjobs.core.app_state import state_of
    from tests.process.support import PATIENCE
    from tests.resident import Resident

    monkeypatch.setattr(resident_module, "END_WITHIN", PATIENCE)
    started: list[Resident] = []

    def start(queues: tuple[str, ...] = ()) -> Resident:
        started.append(Resident(state_of(app), queues))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
