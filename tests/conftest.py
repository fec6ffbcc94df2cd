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
# The time that a machine needs to make examples says nothing about the package.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


#: Slow files with few tests: if one of them began last, all workers would wait for it.
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
    """Let SQLite leave syncing to the system: no test cuts the power."""
    if isinstance(driver, sqlite3.Connection):
        driver.execute("PRAGMA synchronous = OFF")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow files first."""
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Print the stacks of a test that hangs, then end the process.

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
    """Add the option ``--layer``, which runs the tests of the public API on another layer."""
    parser.addoption("--layer", choices=LAYERS, default="flask-sqlalchemy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the objects that collecting makes from garbage collection.

    They all live until the end. Searching them takes a fifth of the time of collecting, and later
    0.2 seconds each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process or an open database behind.

    A test also fails if a receiver of a signal raises, which is otherwise only logged. A test that
    wants this is marked ``receiver_raises``.
    """
    if request.node.get_closest_marker("browser"):
        yield  # A browser sends requests of its own until it is closed.
        return
    with leftovers.nothing_left(request.node.nodeid):
        if request.node.get_closest_marker("receiver_raises"):
            yield
            return
        with leftovers.no_receiver_raises():
            yield


@pytest.fixture(autouse=True)
def within_one_hour() -> None:
    """Begin no test in the last seconds of an hour, and so none just before midnight.

    Otherwise, what the test wrote for today or for the last hour could be yesterday's when it
    checks.
    """
    seconds = 3600 - time.time() % 3600
    if seconds < 8:
        time.sleep(seconds)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """The PostgreSQL server; the first test that needs it starts it."""
    with postgres.running_server("fsync = off\n") as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a new SQLite file."""
    return f"sqlite:///{tmp_path / 'test.sqlite'}"


@pytest.fixture(scope="session")
def postgres_database(postgres_server: postgres.Server) -> Iterator[list[str]]:
    """The one database that all tests use in turn; the list's last item is its URL."""
    urls = [postgres_server.create_database()]
    yield urls
    postgres_server.drop_database(urls[-1])


@pytest.fixture
def postgresql_url(postgres_server: postgres.Server, postgres_database: list[str]) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, whose name no earlier test has used."""
    postgres_database[-1] = postgres_server.renew_database(postgres_database[-1])
    yield postgres_database[-1]
    leftovers.refuse(lambda: postgres_server.connections(postgres_database[-1]))


@pytest.fixture
def pgbouncer_url(postgresql_url: str) -> Iterator[str]:
    """The URL of `postgresql_url`'s database through PgBouncer in transaction mode."""
    program = brokers.find_program("pgbouncer", "pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed, and cannot be")
    with pgbouncer.running_pgbouncer(program, postgresql_url) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[brokers.Broker]:
    """A Redis server that the test may kill and restart."""
    yield from _broker(brokers.running_redis, "redis-server")


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[brokers.Broker]:
    """A RabbitMQ server that the test may kill and restart."""
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
    """The server of `postgresql_url`, which the test may stop; it runs again afterwards."""
    if not isinstance(postgres_server, postgres.LocalServer):
        pytest.skip(f"{postgres.ENVIRONMENT} names a server that is not ours to stop")
    yield postgres_server
    if not postgres_server.is_running():
        postgres_server.start()


@pytest.fixture(autouse=True)
def short_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reclaiming wait only briefly for living workers on SQLite."""
    from flask_cronjobs.core import reclaim

    monkeypatch.setattr(reclaim, "renewal_window", lambda lease: 0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database; the test runs once on each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def layer(request: pytest.FixtureRequest) -> str:
    """The name of the layer through which the app reaches its database; see `tests.layers`."""
    chosen = str(request.config.getoption("--layer"))
    if chosen in ("lite", "plain") and request.node.get_closest_marker("flask_sqlalchemy"):
        pytest.skip("This is about Flask-SQLAlchemy itself.")
    return chosen


@pytest.fixture
def db(layer: str) -> Any:
    """The Flask-SQLAlchemy extension of this test, or its replacement; `app` initializes it."""
    return LAYERS[layer]()


@pytest.fixture
def url_prefix(request: pytest.FixtureRequest) -> str | None:
    """The path of the pages. Only tests marked ``pages`` pay for adding them."""
    return "/jobs" if request.node.get_closest_marker("pages") else None


@pytest.fixture
def app(
    database_url: str,
    db: Any,
    url_prefix: str | None,
    engine_options: dict[str, Any],
    binds: dict[str, str],
) -> Iterator[Flask]:
    """An app on `database_url`; its connections are closed after the test."""
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
    """The extension on `app`, with its tables."""
    from flask_cronjobs import CronJobs
    from tests.tables import make_tables

    jobs = CronJobs(app, **getattr(db, "given", {}))
    make_tables(app, db)
    return jobs


@pytest.fixture
def engine_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The app's engine options, which a test passes as a parameter."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def engine(database_url: str, engine_options: dict[str, Any]) -> Iterator[Engine]:
    """An engine on the empty database, without an app."""
    engine = create_engine(database_url, **engine_options)
    yield engine
    engine.dispose()


@pytest.fixture
def binds() -> dict[str, str]:
    """The URLs of the app's other databases."""
    return {}


@pytest.fixture
def context(app: Flask, jobs: CronJobs) -> Iterator[None]:
    """An app context around the whole test, as in a shell."""
    with app.app_context():
        yield


@pytest.fixture
def state(app: Flask, jobs: CronJobs) -> State:
    """The extension's state for `app`."""
    from flask_cronjobs.core.app_state import state_of

    return state_of(app)


@pytest.fixture
def rows(state: State) -> Rows:
    """A builder of rows in the job tables."""
    from tests.rows import Rows

    return Rows(state.engine)


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    """A monitor that listens for pings during the test."""
    from tests.monitor import Monitor

    with Monitor() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def perform(context: None, jobs: CronJobs, db: Any) -> Callable[..., JobRun]:
    """Return a function that declares a handler, performs one run of it, and returns the run."""
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
    """Return a function that runs one tick in this process."""

    def run() -> TickReport:
        with app.app_context():
            return jobs.tick()

    return run


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The job tables in an empty database; see `tests.kit`."""
    from tests.kit import Kit

    kit = Kit.on(database_url)
    yield kit
    kit.close()


@pytest.fixture
def writers(kit: Kit) -> None:
    """Let transactions on SQLite begin with the write lock, as apps with several writers should."""
    from tests.kit import begin_with_the_write_lock

    begin_with_the_write_lock(kit)


@pytest.fixture
def enqueue(context: None, jobs: CronJobs) -> Enqueue:
    """Return a function that enqueues a run of a handler per payload, and returns the ids."""
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
    """Create the app's own table `work`; see `tests.handlers`."""
    with db.engine.begin() as connection:
        connection.execute(text("CREATE TABLE work (label text)"))


@pytest.fixture
def resident(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Resident]]:
    """Return a function that starts resident workers; they stop with the test."""
    from flask_cronjobs.core import resident as resident_module
    from flask_cronjobs.core.app_state import state_of
    from tests.process.support import PATIENCE
    from tests.resident import Resident

    monkeypatch.setattr(resident_module, "END_SECONDS", PATIENCE)
    started: list[Resident] = []

    def start(queues: tuple[str, ...] = ()) -> Resident:
        started.append(Resident(state_of(app), queues))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
