"""`python -m tests.soak`: soak, let everything come to its end, check, and say what was found."""

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
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from flask import Flask
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tests import postgres
from tests.soak import app as soak_app
from tests.soak.checker import violations
from tests.soak.history import History, moment, read_history, watch_handovers
from tests.soak.load import Load
from tests.soak.nemesis import Nemesis

#: How long everything may take to come to its end after the last fault, in seconds.
DRAIN = 180.0
#: By how much each host's clock is wrong, in seconds, and how many workers its ticks have.
HOSTS = ((0, 1), (90, 1), (-90, 2), (3600, 1))
FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")


def main() -> int:
    """Soak as the arguments say; 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=30, help="how long faults go on")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default=None)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    databases = [options.database] if options.database else ["sqlite", "postgresql"]
    failed = [soak(name, options.seconds / len(databases), seed) for name in databases]
    return int(any(failed))


def soak(database: str, seconds: float, seed: int) -> int:
    """Soak on one kind of database; how many checks failed."""
    print(f"soak: {database}, {seconds:g} s, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-soak-"))
    with ExitStack() as stack:
        server, url = None, f"sqlite:///{folder / 'soak.sqlite'}"
        if database == "postgresql":
            server = stack.enter_context(postgres.running_server())
            url = server.create_database()
        os.environ |= {soak_app.DATABASE: url, soak_app.TRACE: str(folder / "trace")}
        (folder / "trace").touch()
        app = soak_app.create_app()
        history = _trouble(app, url, server, seconds, seed, folder)
    found = violations(history)
    failed = sum(map(bool, found.values()))
    for name, violated in found.items():
        print(f"{'FAIL' if violated else 'ok  '}  {name}")
        for violation in violated[:10]:
            print(f"      {violation}")
    print(f"{len(found) - failed} passed, {failed} failed", flush=True)
    if failed:
        print(f"What happened is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return failed


def _trouble(
    app: Flask, url: str, server: postgres.Server | None, seconds: float, seed: int, folder: Path
) -> History:
    with app.app_context():
        from flask_cronjobs.store import create_tables

        engine = soak_app.db.engine
        create_tables(engine)
        soak_app.db.create_all()
        watch_handovers(engine)
    hosts = [_start_host(number, server is not None, seed, folder) for number in range(len(HOSTS))]
    load, nemesis = Load(app, seed), Nemesis(hosts, url, server, seed)
    try:
        load.start()
        nemesis.start()
        time.sleep(seconds)
        nemesis.stop()
        load.stop()
        _drain(app)
    finally:
        nemesis.stop()
        (folder / "stop").touch()
    for host in hosts:
        host.wait(DRAIN)
    if nemesis.error is not None:
        raise nemesis.error
    history = _history(app, load, folder)
    _tell(history, load, nemesis)
    return history


def _start_host(number: int, own_clock: bool, seed: int, folder: Path) -> subprocess.Popen[bytes]:
    skew, workers = HOSTS[number]
    environment = dict(os.environ)
    # SQLite's clock is that of the process; hosts that share a file share a clock.
    if own_clock and skew and (library := _faketime()):
        environment |= {
            "LD_PRELOAD": library,
            "FAKETIME": f"{skew:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    with (folder / f"host-{number}.log").open("wb") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.soak.host", f"--workers={workers}"),
                *(f"--seed={seed + number}", f"--stop={folder / 'stop'}"),
                f"--codes={folder / f'host-{number}.codes'}",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _faketime() -> str | None:
    for pattern in FAKETIME:
        for path in Path("/").glob(pattern.lstrip("/")):
            return str(path)
    return None


def _drain(app: Flask) -> None:
    """Let what is owed come to its end: no new slots, no new faults."""
    live = "SELECT count(*) FROM job_runs WHERE status IN ('queued', 'failed', 'running')"
    until = time.monotonic() + DRAIN
    left = -1
    while left and time.monotonic() < until:
        time.sleep(0.5)
        with app.app_context():
            try:
                soak_app.db.session.execute(
                    text(
                        "UPDATE job_definitions SET paused_at = created_at WHERE paused_at IS NULL"
                    )
                )
                soak_app.db.session.commit()
                left = soak_app.db.session.execute(text(live)).scalar_one()
            except SQLAlchemyError:
                soak_app.db.session.rollback()


def _history(app: Flask, load: Load, folder: Path) -> History:
    with app.app_context():
        history = read_history(soak_app.db.engine, folder / "trace")
        rows = soak_app.db.session.execute(text("SELECT id, next_run_at FROM job_definitions"))
        following = {row.id: moment(row.next_run_at) for row in rows}
        soak_app.db.session.remove()
        soak_app.db.engine.dispose()
    codes = (file.read_text().split() for file in folder.glob("*.codes"))
    history.codes = Counter(int(code) for codes_of_host in codes for code in codes_of_host)
    logs = (file.read_text(errors="replace") for file in folder.glob("*.log"))
    history.watchdogs = sum(log.count("Timeout (0:") for log in logs)
    history.enqueued, history.retried = load.enqueued, load.retried
    history.watched = [
        replace(watched, following=following[watched.id]) for watched in load.watched.values()
    ]
    return history


def _tell(history: History, load: Load, nemesis: Nemesis) -> None:
    statuses = Counter(run.status for run in history.runs)
    skews = [skew for skew, _ in HOSTS] if nemesis.skewed and _faketime() else [0] * len(HOSTS)
    reclaimed = sum(change.reclaimed for change in history.handovers)
    doubts = sum(state != "done" for state in history.effects.values())
    print(f"hosts: {len(HOSTS)}, clocks {skews}")
    print(f"faults: {_counts(nemesis.counts)}")
    print(f"load: {_counts(load.counts)}")
    print(f"runs: {len(history.runs)}: {_counts(statuses)}; {reclaimed} attempts reclaimed")
    print(f"slots: {sum(run.definition_id is not None for run in history.runs)} rows")
    print(f"effects: {len(history.effects)}, of them {doubts} in doubt")
    print(f"ticks: {history.codes.total()}, exit codes {dict(history.codes)}")
    print(f"ended by the watchdog: {history.watchdogs} processes")


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
