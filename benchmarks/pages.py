"""Measure how long the operator's pages take on large tables, and how many statements they send.

    python -m benchmarks.pages [--short] [--rounds N] [--only sqlite|postgresql]

Both databases get 1,000,000 finished, 100,000 queued and 1,000 dead runs (a twentieth of that with
``--short``), 100,000 failures in 5,000 groups, operations of four weeks, and 10,000 definitions.
Half of the queued runs are older than all finished runs and half are newer, so that no page is fast
by luck. Each page is measured several times. The medians are printed, with the CPU time of this
process and of the server (SQLite has none), and then the plan of the slowest statement. On a
machine with other work, the CPU time says more than the milliseconds.

Exits 1 if a page takes 150 ms of CPU or sends more than 30 statements, or if the overview has more
than 80 kB or takes 60 ms. With ``--short``, times are printed but not checked, since they say more
about the machine then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection, Engine, event, text

from benchmarks import argument_parser
from benchmarks._cpu import cpu_of
from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.insights.effects import list_effects
from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.insights.overview import read_overview
from flask_cronjobs.insights.run_detail import find_run
from flask_cronjobs.insights.run_filters import RunFilter
from flask_cronjobs.insights.run_list import list_runs, sorting_of
from flask_cronjobs.insights.schedule_views import list_definitions
from flask_cronjobs.insights.tick_views import list_ticks
from flask_cronjobs.types import STATUSES
from tests import postgres

MILLISECONDS = 150.0
STATEMENTS = 30
#: Limits of the overview.
BYTES, CPU_MILLISECONDS = 80_000, 60.0
SEARCHES = {
    "runs: with a text that is nowhere": RunFilter(search="nothing like it"),
    "runs: with an id": RunFilter(search="17"),
    "runs: queued, with a text": RunFilter(search="nothing like it", status="queued"),
}
TASKS = 50
DEFINITIONS = 10_000
HOSTS = 5


@dataclass(frozen=True)
class Size:
    """How many rows to make."""

    finished: int
    queued: int
    dead: int


@dataclass
class Reading:
    """The measurements of one page over all rounds."""

    name: str
    milliseconds: list[float] = field(default_factory=list["float"])
    cpu: list[float] = field(default_factory=list["float"])
    server: list[float] = field(default_factory=list["float"])
    statements: int = 0
    bytes: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def is_large(self) -> bool:
        """Return whether it has too many bytes or statements, on any machine."""
        if self.statements > STATEMENTS:
            return True
        return self.name == "GET /jobs/" and self.bytes > BYTES

    @property
    def is_slow(self) -> bool:
        """Return whether it takes too much CPU time."""
        if self.name == "GET /jobs/" and statistics.median(self.cpu) >= CPU_MILLISECONDS:
            return True
        return statistics.median(map(sum, zip(self.cpu, self.server, strict=True))) >= MILLISECONDS


@dataclass
class Sent:
    """One statement, as it was sent to the database."""

    sql: str
    parameters: Any
    milliseconds: float


def main() -> int:
    """Measure on each database; return 1 if a limit is exceeded."""
    options = _options()
    shrink = 20 if options.short else 1
    size = Size(1_000_000 // shrink, 100_000 // shrink, 1_000)
    readings: list[Reading] = []
    if options.only != "postgresql":
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'pages.sqlite'}"
            readings += measure(url, size, options.rounds)
    if options.only != "sqlite":
        with postgres.running_server() as server:
            readings += measure(server.create_database(), size, options.rounds)
    return int(any(page.is_large or (page.is_slow and not options.short) for page in readings))


def measure(url: str, size: Size, rounds: int) -> list[Reading]:
    """Fill the database at *url*, print the times, and return them."""
    app = make_app(url)
    with app.app_context():
        state = state_of(app)
        create_tables(state.engine)
        started = time.perf_counter()
        fill(state.engine, size)
        seconds = time.perf_counter() - started
        print(f"\n{state.engine.dialect.name}: {size}, filled in {seconds:.0f} s")
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        readings, statements = take_readings(app, state, rounds)
        for reading in readings:
            mark = "TOO LARGE" if reading.is_large else "SLOW" if reading.is_slow else "ok"
            cpu, server = statistics.median(reading.cpu), statistics.median(reading.server)
            size_of_page = reading.bytes / 1000
            print(
                f"{reading.name:40}{reading.median:8.1f} ms{cpu:8.1f} +{server:6.1f} ms CPU"
                f"{reading.statements:4} stmts{size_of_page:6.1f} kB  {mark}"
            )
        print("\nThe statements of the overview:")
        for statement in overview_statements(state):
            print(f"{statement.milliseconds:9.1f} ms  {' '.join(statement.sql.split())[:100]}")
        explain(state.engine, max(statements, key=lambda statement: statement.milliseconds))
        state.engine.dispose()
    return readings


def make_app(url: str) -> Flask:
    """Return an app with all tasks of the rows but one, so that some rows are orphans."""
    app = Flask("pages")
    app.config.update(SQLALCHEMY_DATABASE_URI=url, SECRET_KEY="pages")
    app.config["CRONJOBS_SHOW_PAYLOAD"] = True
    SQLAlchemy(app)
    jobs = CronJobs(authorize=lambda action: True)
    for number in range(TASKS):
        jobs.task(name=f"task_{number}", schedule="*/5 * * * *")(lambda: None)
    jobs.init_app(app)
    return app


def pages(app: Flask, state: State) -> dict[str, Callable[[], object]]:
    """Return the calls to measure: the reports, the overview, and all mounted pages."""
    filters = {
        "runs": RunFilter(),
        **{f"runs: {status}": RunFilter(status=status) for status in STATUSES},
        "runs: overdue": RunFilter(overdue=True),
        "runs: stale": RunFilter(stale=True),
        "runs: of a task": RunFilter(task="task_3"),
        "runs: of a task that has none": RunFilter(task="nobody"),
        "runs: succeeded, a queue with none": RunFilter(status="succeeded", queue="nobody"),
        "runs: by error": RunFilter(error="boom"),
        **SEARCHES,
        "runs: dead by error type": RunFilter(status="dead", error_type="ValueError"),
        "runs: of a definition": RunFilter(definition="task_3"),
        "runs: skipped of a definition": RunFilter(definition="task_3", status="skipped"),
        "runs: older than a week": RunFilter(older_than=7 * 86400.0),
    }
    reads: dict[str, Callable[[], object]] = {
        name: lambda which=which: list_runs(  # type: ignore[misc]
            state, which, order=sorting_of(which.status, which.overdue)
        )
        for name, which in filters.items()
    }
    middle = list_runs(state).rows[-1].id // 2
    reads["runs: a page in the middle"] = lambda: list_runs(state, before=middle)
    reads["run"] = lambda: find_run(state, middle)
    reads["verdict (health)"] = lambda: read_verdict(state)
    reads["effects"] = lambda: list_effects(state)
    reads["effects: open"] = lambda: list_effects(state, open_only=True)
    reads["ticks"] = lambda: list_ticks(state)
    reads["overview"] = lambda: read_overview(state)
    reads["definitions by need"] = lambda: list_definitions(state)
    reads["definitions by next slot"] = lambda: list_definitions(state, "next")
    reads["definitions: the last page"] = lambda: list_definitions(state, page=10_000)
    for path in web_paths(app, middle):
        reads[f"GET {path}"] = lambda path=path: _get(app, path)  # type: ignore[misc]
    return reads


def web_paths(app: Flask, run_id: int) -> list[str]:
    """Return the paths of the pages, if they are mounted."""
    prefix = state_of(app).settings.url_prefix
    # Actions and the tick route take POST as well, and answer a GET by 405 or 404.
    rules = [rule for rule in app.url_map.iter_rules() if "POST" not in (rule.methods or ())]
    paths = [f"{rule.rule}" for rule in rules]
    ours = [path for path in paths if path.startswith(f"{prefix}/") and "static" not in path]
    queries = {
        f"{prefix}/definition": "?name=task_3",
        f"{prefix}/task": "?name=task_3",
        f"{prefix}/run": "?name=task_3",
        f"{prefix}/batch": "?key=weekly",
        f"{prefix}/runs/bulk": "?do=cancel&status=queued",
    }
    addresses = [path.replace("<int:run_id>", str(run_id)) + queries.get(path, "") for path in ours]
    if f"{prefix}/runs" in ours:
        addresses += [
            f"{prefix}/runs?status={status}" for status in ("queued", "succeeded", "skipped")
        ]
        addresses += [f"{prefix}/runs?status=queued&task=task_3", f"{prefix}/runs?overdue=1"]
        addresses += [f"{prefix}/runs?q=nothing", f"{prefix}/?sort=next"]
    return [path for path in addresses if "<" not in path]


def _get(app: Flask, path: str) -> int:
    """Return how many bytes the page at *path* has."""
    response = app.test_client().get(path)
    assert response.status_code in (200, 303, 503), (path, response.status_code)
    return len(response.data)


def take_readings(app: Flask, state: State, rounds: int) -> tuple[list[Reading], list[Sent]]:
    """Measure each page *rounds* times, after one warm-up."""
    readings: list[Reading] = []
    everything: list[Sent] = []
    server = _backends(state.engine)
    for name, call in pages(app, state).items():
        call()
        reading = Reading(name)
        for _ in range(rounds):
            with recording(state.engine) as statements:
                busy, started, cpu = server(), time.perf_counter(), time.process_time()
                answer = call()
                reading.cpu.append((time.process_time() - cpu) * 1000)
                reading.milliseconds.append((time.perf_counter() - started) * 1000)
                reading.server.append((server() - busy) * 1000)
            reading.statements = len(statements)
            reading.bytes = answer if isinstance(answer, int) else 0
            everything += statements
        readings.append(reading)
    return readings, everything


def _backends(engine: Engine) -> Callable[[], float]:
    """Return a function that returns the CPU seconds of the server's processes for this app."""
    if engine.dialect.name != "postgresql":
        return lambda: 0.0
    pids: list[int] = []
    event.listen(engine, "connect", lambda raw, _: pids.append(raw.info.backend_pid))
    engine.dispose()
    return lambda: sum(map(cpu_of, pids))


def overview_statements(state: State) -> list[Sent]:
    """Return the statements of one overview."""
    with recording(state.engine) as statements:
        read_overview(state)
    return statements


@contextmanager
def recording(engine: Engine) -> Iterator[list[Sent]]:
    """Collect the statements that are sent inside the block."""
    statements: list[Sent] = []
    starts: list[float] = []

    def before(*_: Any) -> None:
        starts.append(time.perf_counter())

    def after(_: Any, __: Any, sql: str, parameters: Any, *___: Any) -> None:
        statements.append(Sent(sql, parameters, (time.perf_counter() - starts.pop()) * 1000))

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", before)
        event.remove(engine, "after_cursor_execute", after)


def explain(engine: Engine, sent: Sent) -> None:
    """Print the plan of one statement."""
    postgresql = engine.dialect.name == "postgresql"
    how = "EXPLAIN (ANALYZE, BUFFERS)" if postgresql else "EXPLAIN QUERY PLAN"
    print(f"\nThe slowest statement took {sent.milliseconds:.1f} ms:\n{sent.sql}\n")
    with engine.connect() as connection:
        for row in connection.exec_driver_sql(f"{how} {sent.sql}", sent.parameters):
            print(row[0] if postgresql else f"{row[0]:4} {row[1]:4} {row[3]}")


def fill(engine: Engine, size: Size) -> None:
    """Insert the rows in their usual order: queued, then finished and dead, then queued."""
    sql = _postgresql if engine.dialect.name == "postgresql" else _sqlite
    with engine.begin() as connection:
        connection.execute(text(sql(_DEFINITIONS)), {"n": DEFINITIONS})
        _queued(connection, sql, size.queued // 2, "old")
        connection.execute(text(sql(_FINISHED)), {"n": size.finished})
        connection.execute(text(sql(_DEAD)), {"n": size.dead})
        connection.execute(text(_FAILURES))
        connection.execute(text(sql(_RETRIED)), {"n": size.finished // 10})
        connection.execute(text(sql(_OPERATIONS)), {"n": 20 * 28})
        _queued(connection, sql, size.queued // 2, "new")
        connection.execute(text(sql(_TICKS)), {"n": 1440 * HOSTS})
        connection.execute(text(sql(_EFFECTS)), {"n": 10_000})
        connection.execute(text(_BATCH))
        connection.execute(text(_MEMBERS))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            # Autovacuum would do this.
            connection.execute(text("VACUUM (ANALYZE)"))


def _queued(connection: Connection, sql: Callable[[str], str], number: int, label: str) -> None:
    connection.execute(text(sql(_QUEUED)), {"n": number, "label": label})


_BATCH = """
INSERT INTO job_batches (key, opened_at) VALUES ('weekly', CURRENT_TIMESTAMP)
"""
_MEMBERS = """
UPDATE job_runs SET batch_id = (SELECT min(id) FROM job_batches) WHERE id % 10 = 3
"""
_DEFINITIONS = """
INSERT INTO job_definitions (name, job_type, schedule, next_run_at)
SELECT 'task_' || (i - 1), 'task_' || ((i - 1) % 50), (i % 60) || CASE i % 4
    WHEN 0 THEN ' * * * *' WHEN 1 THEN ' 7 * * 1-5' WHEN 2 THEN ' 3 1 * *' ELSE ' */2 * * *' END,
    AGO(-60) FROM NUMBERS
"""
_QUEUED = """
INSERT INTO job_runs (job_type, queue, payload, priority, run_at, scheduled_for, status, attempts,
    concurrency_key, concurrency_limit)
SELECT CASE WHEN i % 5000 = 0 THEN 'removed_task' ELSE 'task_' || (i % 50) END, 'default',
    '{"user_id": 1}', i % 3, AGO(i % 1000 - 100), AGO(i % 1000 - 100),
    CASE WHEN i % 100 = 0 THEN 'failed' ELSE 'queued' END, CASE WHEN i % 100 = 0 THEN 1 ELSE 0 END,
    CASE WHEN i % 10 = 0 THEN :label || (i % 500) END, CASE WHEN i % 10 = 0 THEN 1 END
FROM NUMBERS
"""
_FINISHED = """
INSERT INTO job_runs (definition_id, job_type, payload, run_at, scheduled_for, status, attempts,
    started_at, finished_at, result)
SELECT CASE i % 20 WHEN 0 THEN i / 20 % 50 + 1 WHEN 10 THEN i / 20 % 10000 + 1 END,
    'task_' || (i / 10 % 50), '{"user_id": 1}',
    AGO(10000000.0 - i), AGO(10000000.0 - i),
    CASE WHEN i % 10000 = 0 THEN 'skipped' WHEN i % 10000 = 1 THEN 'cancelled' ELSE 'succeeded' END,
    1, AGO(1000000.5 - i), AGO(1000000.0 - i), '{"sent": 1}'
FROM NUMBERS
"""
_DEAD = """
INSERT INTO job_runs (definition_id, job_type, payload, run_at, scheduled_for, status, attempts,
    started_at, finished_at, failed_at, last_error, error_type, fingerprint)
SELECT CASE WHEN i % 2 = 0 THEN i END, 'task_' || (i % 50), '{"user_id": 1}',
    AGO(i * 100), AGO(i * 100), 'dead', 10, AGO(i * 100),
    AGO(i * 100), AGO(i * 100), 'boom ' || i,
    CASE WHEN i % 3 = 0 THEN 'ValueError' ELSE 'OSError' END, 'dead' || (i % 150)
FROM NUMBERS
"""
_FAILURES = """
INSERT INTO job_failures (run_id, attempt, worker, error_type, error, stack)
SELECT id, 10, 'host:1:abc', error_type, last_error, 'Traceback'
FROM job_runs WHERE status = 'dead'
"""
_RETRIED = """
INSERT INTO job_failures (run_id, attempt, worker, error_type, error, failed_at)
SELECT i + 1, 1, 'host:1:abc', 'OSError', 'no answer from host-' || (i % 5000) || ' in time',
    AGO(1000000.0 - 10.0 * i) FROM NUMBERS
"""
_OPERATIONS = """
INSERT INTO job_operations (what, target, actor, asked, done, started_at, seen_at, finished_at)
SELECT 'retried', 'dead runs of task_' || (i % 50), 'ada', 10, 10, AGO(i * 1000), AGO(i * 1000),
    AGO(i * 1000) FROM NUMBERS
"""
_TICKS = """
INSERT INTO job_ticks (worker, host, pid, started_at, seen_at, finished_at, succeeded, failed)
SELECT 'web-1:' || i, 'web-' || (i % 5), i, AGO(i * 12), AGO(i * 12 - 5), AGO(i * 12 - 5), i % 50,
    i % 3 FROM NUMBERS
"""
_EFFECTS = """
INSERT INTO job_effects (key, state, locked_by, locked_until, done_at)
SELECT 'effect:' || i, CASE WHEN i % 500 = 0 THEN 'begun' ELSE 'done' END, 'host:1:abc', AGO(0),
    CASE WHEN i % 500 <> 0 THEN AGO(0) END
FROM NUMBERS
"""


def _postgresql(template: str) -> str:
    ago = "now() - make_interval(secs => CAST(({}) AS double precision))"
    sql = _replace_ago(template, ago).replace("NUMBERS", "generate_series(1, :n) AS numbers(i)")
    return sql.replace("'{", "jsonb '{")


def _sqlite(template: str) -> str:
    numbers = (
        "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)"
        " SELECT i FROM n) AS numbers"
    )
    ago = "strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', -1.0 * ({})))"
    return _replace_ago(template, ago).replace("NUMBERS", numbers)


def _replace_ago(template: str, pattern: str) -> str:
    while "AGO(" in template:
        before, _, rest = template.partition("AGO(")
        inside, _, after = rest.partition(")")
        template = before + pattern.format(inside) + after
    return template


def _options() -> argparse.Namespace:
    parser = argument_parser("pages", __doc__, "a twentieth of the rows")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="this database alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
