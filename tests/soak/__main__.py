"""`python -m tests.soak`: soak, let all work end, check the history, and print the violations."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from flask import Flask
from sqlalchemy import bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from tests import brokers, postgres
from tests.soak import app as soak_app
from tests.soak import odd_rows, timeline
from tests.soak.checker import violations
from tests.soak.databases import DatabaseFaults, PostgresFaults, SqliteFaults
from tests.soak.explain import errors, explain
from tests.soak.history import History, keep_deleted, moment, read_history, watch_handovers
from tests.soak.load import Load
from tests.soak.nemesis import Nemesis
from tests.soak.processes import Processes, Watcher

#: How long all work may take to end after the last fault, in seconds.
DRAIN = 180.0
#: How long it may take after the last fault until all due slots are recorded, in seconds.
CATCH_UP = 20.0
#: How long ticks are watched after the last fault, in seconds, at least.
CALM = 5.0
#: How long processes and connections may remain after all hosts have ended, in seconds.
LEFT = 10.0
#: For each host: its clock's error in seconds, the workers of its ticks, and whether they are
#: resident.
HOSTS = ((0, 1, False), (90, 1, False), (-90, 2, False), (3600, 1, False), (0, 2, True))
#: The number of Celery's workers, and the queues that they serve, with and without `--executor`.
EXECUTORS = {True: (2, "default,handed"), False: (1, "handed")}
FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
#: The variable that marks the hosts and the processes that they start, but not the server.
MARK = "SOAK_HOST"
#: How many of the errors in the hosts' logs are printed, the most frequent first.
SHOWN_ERRORS = 8
#: For how many violations of each check the whole story is printed.
SHOWN = 2
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Soak:
    """The options of one soak, and the folder of its files."""

    database: str
    seconds: float
    seed: int
    folder: Path
    executor: bool


def main() -> int:
    """Soak as the arguments say; return 1 if any check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long faults go on")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="default: both")
    parser.add_argument("--seed", type=int, help="of the load, the faults and the hosts")
    parser.add_argument("--executor", action="store_true", help="let Celery execute all runs")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    databases = [options.database] if options.database else ["sqlite", "postgresql"]
    seconds = options.seconds / len(databases)
    failed = 0
    for name in databases:
        folder = Path(tempfile.mkdtemp(prefix="cronjobs-soak-"))
        failed += soak(Soak(name, seconds, seed, folder, options.executor))
    return int(failed > 0)


def soak(this: Soak) -> int:
    """Soak on one kind of database; return how many checks failed."""
    executor = " --executor" * this.executor
    print(
        f"soak: --database {this.database} --seconds {this.seconds:g} --seed {this.seed}{executor}",
        flush=True,
    )
    with ExitStack() as stack:
        server, url = None, f"sqlite:///{this.folder / 'soak.sqlite'}"
        if this.database == "postgresql":
            server = stack.enter_context(postgres.running_server())
            url = server.create_database()
        os.environ |= {
            soak_app.DATABASE: url,
            soak_app.TRACE: str(this.folder / "trace"),
            soak_app.SEED: str(this.seed),
            timeline.TIMELINE: str(this.folder / "timeline"),
        }
        broker = stack.enter_context(brokers.running_redis())
        if broker is None:
            print("There is no redis-server here, so nothing is handed to Celery.")
        os.environ[soak_app.BROKER] = broker.url if broker else ""
        os.environ[soak_app.HANDED] = EXECUTORS[this.executor][1]
        for name in ("trace", "timeline"):
            (this.folder / name).touch()
        faults: DatabaseFaults = SqliteFaults(url, this.seed)
        if server is not None:
            faults = PostgresFaults(url, this.seed, server)
        history = _trouble(this, soak_app.create_app(), faults, broker)
    return _judge(this, history)


def _judge(this: Soak, history: History) -> int:
    by_check = violations(history)
    failed = sum(map(bool, by_check.values()))
    for name, violated in by_check.items():
        print(f"{'FAIL' if violated else 'ok  '}  {name}")
        for violation in violated[:10]:
            print(f"      {violation}")
        if len(violated) > 10:
            print(f"      and {len(violated) - 10} more")
    print(f"{len(by_check) - failed} passed, {failed} failed", flush=True)
    if failed:
        (this.folder / "explained").write_text(explain(history, by_check))
        first = {name: violated[:SHOWN] for name, violated in by_check.items()}
        print("".join(f"  {line}\n" for line in explain(history, first, faults=False).split("\n")))
        for error, number in Counter(errors(_logs(this))).most_common(SHOWN_ERRORS):
            print(f"  {number} times in the hosts' logs: {error}")
        print(f"What happened is kept in {this.folder}: read the file 'explained' first.")
    else:
        shutil.rmtree(this.folder)
    return failed


def _trouble(
    this: Soak, app: Flask, database: DatabaseFaults, broker: brokers.Broker | None
) -> History:
    with app.app_context():
        from flask_cronjobs.db.create import create_tables

        engine = soak_app.db.engine
        create_tables(engine)
        soak_app.db.create_all()
        watch_handovers(engine)
        keep_deleted(engine)
    hosts = [_start_host(number, this) for number in range(len(HOSTS))]
    if broker is not None:
        hosts += [_start_executor(number, this) for number in range(EXECUTORS[this.executor][0])]
    processes = Processes([host.pid for host in hosts], f"{MARK}={this.folder}")
    repeatable = soak_app.create_app("REPEATABLE READ" if this.database == "postgresql" else None)
    loads = [Load(app, this.seed, "a"), Load(repeatable, this.seed, "b")]
    nemesis = Nemesis(processes, database, this.seed, broker)
    watcher = Watcher(processes, nemesis.thaw_later)
    try:
        for thread in (*loads, watcher, nemesis):
            thread.start()
        time.sleep(this.seconds)
    finally:
        nemesis.stop()
        (this.folder / "calm").touch()
        calm_since = time.monotonic()
    try:
        for load in loads:
            load.stop()
        behind = _drain(app, database, calm_since)
    finally:
        (this.folder / "stop").touch()
    for host in hosts:
        host.wait(DRAIN)
    behind_ticks = [
        f"the process {behind_ticks.pid} of the tick {behind_ticks.group}"
        for behind_ticks in watcher.left(LEFT)
    ]
    watcher.stop()
    for error in (nemesis.error, *(load.error for load in loads)):
        if error is not None:
            raise error
    history = _history(this, app, loads, database)
    history.calm_since, history.orphans = calm_since, watcher.awake
    with repeatable.app_context():
        soak_app.db.engine.dispose()
    history.behind, history.left = behind, behind_ticks + _connections(app)
    _tell(this, history, loads)
    return history


def _start_host(number: int, this: Soak) -> subprocess.Popen[bytes]:
    skew, workers, resident = HOSTS[number]
    clock: dict[str, str] = {}
    # SQLite's clock is that of the process; hosts that share a file share a clock.
    if this.database == "postgresql" and skew and (library := _faketime()):
        clock = {
            "LD_PRELOAD": library,
            "FAKETIME": f"{skew:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    ticks, calm = this.folder / f"host-{number}.ticks", this.folder / "calm"
    return _start(
        *(this, f"host-{number}", "host", f"--workers={workers}", f"--seed={this.seed + number}"),
        *(f"--ticks={ticks}", f"--calm={calm}"),
        *(["--work"] if resident else []),
        environment=clock,
    )


def _start_executor(number: int, this: Soak) -> subprocess.Popen[bytes]:
    return _start(this, f"executor-{number}", "celery_workers", f"--name=executor-{number}")


def _start(
    this: Soak, name: str, module: str, *arguments: str, environment: Mapping[str, str] = NOTHING
) -> subprocess.Popen[bytes]:
    """Start a process of the soak, which ends when the file "stop" exists."""
    stop = f"--stop={this.folder / 'stop'}"
    with (this.folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"tests.soak.{module}", stop, *arguments],
            env={**os.environ, MARK: str(this.folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _faketime() -> str | None:
    for pattern in FAKETIME:
        for path in Path("/").glob(pattern.lstrip("/")):
            return str(path)
    return None


_BEHIND = """
SELECT id FROM job_definitions
WHERE next_run_at <= {now} AND paused_at IS NULL AND id NOT IN :odd ORDER BY id
"""
_UNPAUSED = "SELECT id FROM job_definitions WHERE paused_at IS NULL AND id NOT IN :odd"
_PAUSE = "UPDATE job_definitions SET paused_at = created_at WHERE paused_at IS NULL"
_UNENDED = "SELECT id FROM job_batches WHERE finished_at IS NULL AND id NOT IN :odd"
_LIVE = """
SELECT id FROM job_runs WHERE status IN ('queued', 'failed', 'running') AND id NOT IN :odd
"""


def _drain(app: Flask, database: DatabaseFaults, calm_since: float) -> list[int]:
    """Let the owed work end; return the definitions whose due slots were not recorded.

    The slots that are due are recorded first. Then the definitions are paused, and the runs end.
    """
    definitions = [-1, *odd_rows.ids(database.odd, "job_definitions")]
    runs = [-1, *odd_rows.ids(database.odd, "job_runs")]
    sqlite = app.config["SQLALCHEMY_DATABASE_URI"].startswith("sqlite")
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')" if sqlite else "now()"
    behind = _rows_left(app, _BEHIND.format(now=now), definitions, calm_since + CATCH_UP)
    _rows_left(app, _UNPAUSED, [-1], calm_since + DRAIN, _PAUSE)
    _rows_left(app, _LIVE, runs, calm_since + DRAIN)
    _rows_left(app, _UNENDED, [-1], calm_since + DRAIN)
    _rows_left(app, _LIVE, runs, calm_since + DRAIN)  # Now also the runs that follow batches.
    time.sleep(max(0, calm_since + CALM - time.monotonic()))
    return behind


def _rows_left(
    app: Flask, sql: str, odd: list[int], until: float, before: str | None = None
) -> list[int]:
    """Wait until *sql* finds only *odd* rows; return the ids of the other rows that are left.

    :param before: a statement to execute before each query.
    """
    statement = text(sql).bindparams(bindparam("odd", expanding=True))
    pending = [-1]
    while pending and time.monotonic() < until:
        with app.app_context():
            try:
                if before is not None:
                    soak_app.db.session.execute(text(before))
                    soak_app.db.session.commit()
                pending = list(soak_app.db.session.scalars(statement, {"odd": odd}))
            except SQLAlchemyError:
                soak_app.db.session.rollback()
        time.sleep(0.2)
    return pending


def _history(this: Soak, app: Flask, loads: list[Load], database: DatabaseFaults) -> History:
    watched = {id_: row for load in loads for id_, row in load.watched.items()}
    logs = _logs(this)
    doctor = app.test_cli_runner().invoke(args=["jobs", "admin", "doctor"])
    (this.folder / "doctor").write_text(doctor.output + repr(doctor.exception or ""))
    with app.app_context():
        engine = soak_app.db.engine
        history = read_history(engine, this.folder, database.odd)
        with engine.connect() as connection:
            odd_rows.look_after(connection, history.odd, logs + doctor.output)
            rows = connection.execute(
                text("SELECT id, CAST(next_run_at AS varchar) AS at FROM job_definitions")
            ).all()
    following = {row.id: moment(row.at) for row in rows if row.id in watched}
    history.watchdogs = logs.count("Timeout (0:")
    history.enqueued = set().union(*(load.enqueued for load in loads))
    history.retried = set().union(*(load.retried for load in loads))
    history.watched = [replace(row, following=following[id_]) for id_, row in watched.items()]
    return history


def _logs(this: Soak) -> str:
    return "\n".join(file.read_text(errors="replace") for file in this.folder.glob("*.log"))


_CONNECTIONS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


def _connections(app: Flask) -> list[str]:
    """Return which connections to the server are left, although all their users have ended."""
    with app.app_context():
        soak_app.db.session.remove()
        engine = soak_app.db.engine
        engine.dispose()
        remaining = 0
        if engine.dialect.name == "postgresql":
            until = time.monotonic() + LEFT
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                while remaining := connection.execute(_CONNECTIONS).scalar_one():
                    if time.monotonic() > until:
                        break
                    time.sleep(0.2)
        engine.dispose()
    return [f"{remaining} connections to the server"] if remaining else []


def _tell(this: Soak, history: History, loads: list[Load]) -> None:
    counts = sum((load.counts for load in loads), Counter[str]())
    pruned = sum(run.pruned_at is not None for run in history.runs)
    statuses = Counter(run.status for run in history.runs)
    skewed = this.database == "postgresql" and _faketime()
    skews = [skew if skewed else 0 for skew, _, _ in HOSTS]
    reclaimed = sum(change.reclaimed for change in history.handovers)
    doubts = sum(state != "done" for state in history.effects.values())
    settled = sum(odd.handled for odd in history.odd)
    longest = max((t.ended - t.began for t in history.ticks if not t.resident), default=0)
    orphaned = max(history.orphans.values(), default=0)
    print(f"hosts: {len(HOSTS)}, clocks {skews}")
    print(f"faults: {_counts(Counter(fault.what for fault in history.faults))}")
    print(f"load: {_counts(counts)}")
    print(f"runs: {len(history.runs)}: {_counts(statuses)}; {reclaimed} attempts reclaimed")
    print(f"pruned: {pruned} runs")
    print(f"slots: {sum(run.definition_id is not None for run in history.runs)} rows")
    print(f"effects: {len(history.effects)}, of them {doubts} in doubt")
    print(f"odd rows: {len(history.odd)}, of them {settled} settled")
    print(f"ticks: {len(history.ticks)}, exit codes {dict(history.codes)}, longest {longest:.1f} s")
    print(f"orphaned workers: {len(history.orphans)}, the last ended after {orphaned:.1f} s")
    print(f"ended by the watchdog: {history.watchdogs} processes")


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
