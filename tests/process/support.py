"""Ticks as real processes, and methods to observe them.

A `Site` is one database with a trace; `run_tick` and `start_tick` run ``flask jobs tick`` of
`jobs_app` there. Nothing sleeps for a fixed time: `wait_until` polls until a condition holds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

from flask import Flask
from sqlalchemy import Row, text
from sqlalchemy.exc import OperationalError

from flask_cronjobs import TickReport
from tests.process import jobs_app

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
#: How long an expected event may take on a busy machine, in seconds.
PATIENCE = 60.0
PAST = "2020-01-01 00:00:00.000000"
#: Leases and graces are short, so that tests need not wait long for their ends.
QUICK: Mapping[str, Any] = {"CRONJOBS_LEASE": 2, "CRONJOBS_SHUTDOWN_GRACE": 1}


def wait_until(condition: Callable[[], T], timeout: float = PATIENCE) -> T:
    """Poll *condition* until it holds, and return what it returned."""
    until = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"It did not come within {timeout:g} s.")
        time.sleep(0.02)
    return value


class Tick:
    """A ``flask jobs tick`` (or another command) that has been started."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def pid(self) -> int:
        """The id of the process and of its process group."""
        return self.process.pid

    @property
    def output(self) -> str:
        """The output so far."""
        return self._out.read_text()

    @property
    def errors(self) -> str:
        """The standard error so far."""
        return self._err.read_text()

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Wait for the end of the process."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"The tick did not end within {timeout:g} s.\n{self.output}{self.errors}"
            ) from None
        return subprocess.CompletedProcess(self.process.args, code, self.output, self.errors)

    def stop(self) -> None:
        """Stop the process by SIGTERM, and wait until all its work has ended."""
        self.send(signal.SIGTERM)
        result = self.wait()
        assert result.returncode == 0, result.stderr

    def end(self) -> None:
        """Kill the process, and the workers that it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in _of_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _of_session(session: int) -> Iterator[int]:
    """Yield the processes of a session, if the system has Linux's /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield int(stat.parent.name)


@dataclass
class Site:
    """One database with the job tables and one trace, for processes of `jobs_app`.

    :ivar config: ``app.config`` of the processes, except the database.
    :ivar env: further environment variables of the processes.
    :ivar module: where ``flask`` finds the app.
    :ivar gate: a file for which handlers may wait.
    """

    url: str
    folder: Path
    config: dict[str, Any] = field(default_factory=lambda: dict(QUICK))
    env: dict[str, str] = field(default_factory=dict)
    ticks: list[Tick] = field(default_factory=list)
    module: str = jobs_app.__name__

    def __post_init__(self) -> None:
        self.trace_file = self.folder / "trace.jsonl"
        self.trace_file.touch()
        self.gate = self.folder / "gate"
        self.app: Flask = self.make_app()
        with self.app.app_context():
            from flask_cronjobs.db.create import create_tables

            create_tables(jobs_app.db.engine)
            jobs_app.db.create_all()

    def make_app(self) -> Flask:
        """Make the app in the test's own process."""
        return jobs_app.create_app(self.url, self.trace_file, {})

    def close(self) -> None:
        """End all processes, and close the connections to the database."""
        for tick in self.ticks:
            tick.end()
        with self.app.app_context():
            jobs_app.db.session.remove()
            for engine in jobs_app.db.engines.values():
                engine.dispose()

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> Tick:
        """Start ``flask`` with *args*, in its own process group."""
        return self.start_python("flask", "--app", self.module, *args, env=env)

    def start_python(self, *args: str, env: Mapping[str, str] | None = None) -> Tick:
        """Start ``python -m`` with *args*, in its own process group."""
        number = len(self.ticks)
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", *args],
                cwd=ROOT,
                env=self.environment | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        tick = Tick(process, out, err)
        self.ticks.append(tick)
        return tick

    def start_tick(self, *args: str, env: Mapping[str, str] | None = None) -> Tick:
        """Start ``flask jobs tick`` with *args*."""
        return self.start("jobs", "tick", *args, env=env)

    def run_tick(
        self, *args: str, env: Mapping[str, str] | None = None, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Run ``flask jobs tick`` with *args* to its end."""
        return self.start_tick(*args, env=env).wait(timeout)

    def begin(
        self, task: str, payload: Mapping[str, object] | None = None, **options: Any
    ) -> tuple[int, Tick]:
        """Enqueue a run and start a tick; return both when the handler has begun."""
        times = len(self.trace("begun")) + 1
        run_id, tick = self.enqueue(task, payload, **options), self.start_tick()
        self.wait_for("begun", times)
        return run_id, tick

    def tick_here(self) -> TickReport:
        """Run a tick in this process."""
        with self.app.app_context():
            return jobs_app.jobs.tick()

    def tick_until_done(self) -> None:
        """Tick in this process, with all leases expired, until every run has ended."""
        live = ("queued", "failed", "running")
        for _ in range(20):
            self.expire()
            self.tick_here()
            if not any(self.statuses().get(status) for status in live):
                return
        raise AssertionError(f"There are runs left after 20 ticks: {self.statuses()}")

    def cancel(self, run_id: int) -> str:
        """Cancel a run as an operator; return its status afterwards."""
        with self.app.app_context():
            return jobs_app.jobs.cancel(run_id).status

    @property
    def on_postgresql(self) -> bool:
        """Whether the database is PostgreSQL; otherwise it is SQLite."""
        return self.url.startswith("postgresql")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the processes."""
        plain = {name: value for name, value in os.environ.items() if "CRONJOBS" not in name}
        return plain | {
            jobs_app.DATABASE: self.url,
            jobs_app.TRACE: str(self.trace_file),
            jobs_app.CONFIG: json.dumps(self.config),
            **self.env,
        }

    def enqueue(
        self, task: str, payload: Mapping[str, object] | None = None, **options: Any
    ) -> int:
        """Enqueue one run and commit it; return its id.

        *options* are those of `CronJobs.enqueue`.
        """
        with self.app.app_context():
            return jobs_app.jobs.enqueue(task, payload, commit=True, **options).id

    def enqueue_many(
        self, task: str, payloads: Sequence[Mapping[str, object]], **options: Any
    ) -> list[int]:
        """Enqueue many runs and commit them; return their ids.

        *options* are those of `Task.using`.
        """
        with self.app.app_context():
            return jobs_app.jobs.get(task).using(commit=True, **options).enqueue_many(payloads)

    def query(self, sql: str, **parameters: object) -> Sequence[Row[Any]]:
        """Execute an SQL statement, commit, and return its rows."""
        with self.app.app_context(), jobs_app.db.engine.connect() as connection:
            result = connection.execute(text(sql), parameters)
            rows = result.all() if result.returns_rows else []
            connection.commit()
            return rows

    def run(self, run_id: int) -> Row[Any]:
        """Return the row of a run."""
        return self.query("SELECT * FROM job_runs WHERE id = :id", id=run_id)[0]

    def ends(self, *ids: int) -> set[tuple[str, int]]:
        """Return the statuses and attempts of runs."""
        return {(run.status, run.attempts) for run in map(self.run, ids)}

    def statuses(self) -> dict[str, int]:
        """Count enqueued runs by status, without the runs of slots, whose number grows."""
        rows = self.query(
            "SELECT status, count(*) AS number FROM job_runs WHERE definition_id IS NULL"
            " GROUP BY status"
        )
        return {row.status: row.number for row in rows}

    def failures(self, run_id: int) -> list[str]:
        """Return the error types of a run's failed attempts, in order."""
        rows = self.query(
            "SELECT error_type FROM job_failures WHERE run_id = :id ORDER BY attempt", id=run_id
        )
        return [row.error_type for row in rows]

    def trace(self, *what: str) -> list[dict[str, Any]]:
        """Return the lines that handlers have said so far: all, or only those of *what*."""
        # The last line may be incomplete while its process writes it.
        *lines, _ = self.trace_file.read_text().split("\n")
        records = [json.loads(line) for line in lines]
        return [line for line in records if not what or line["what"] in what]

    def wait_for(self, what: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until handlers have said *what* at least *times* times."""
        try:
            return wait_until(lambda: trace if len(trace := self.trace(what)) >= times else [])
        except AssertionError as error:
            output = "\n".join(f"{tick.output}{tick.errors}" for tick in self.ticks)
            raise AssertionError(f"{error}\n{self.trace()}\n{output}") from None

    def wait_for_status(self, run_id: int, *statuses: str) -> None:
        """Wait until a run has one of *statuses*."""
        wait_until(lambda: self.run(run_id).status in statuses)

    def make_slots_due(self) -> None:
        """Move all watermarks three minutes back."""
        back = (
            "next_run_at - interval '3 minutes'"
            if self.on_postgresql
            else "strftime('%Y-%m-%d %H:%M:%f000', next_run_at, '-3 minutes')"
        )
        self.query(f"UPDATE job_definitions SET next_run_at = {back}")

    @property
    def past(self) -> str:
        """A time in the past, in the database's format."""
        return PAST + ("+00" if self.on_postgresql else "")

    def expire(self) -> None:
        """Let all leases expire now."""
        self.query(f"UPDATE job_runs SET locked_until = '{self.past}' WHERE status = 'running'")

    def wait_for_expiry(self, run_id: int) -> None:
        """Wait until the lease of a running run has expired, by the database's clock."""
        now = "now()" if self.on_postgresql else "strftime('%Y-%m-%d %H:%M:%f', 'now')"
        sql = f"SELECT 1 FROM job_runs WHERE id = :id AND locked_until < {now}"
        wait_until(lambda: self.query(sql, id=run_id))

    def can_answer(self) -> bool:
        """Return whether the database answers."""
        with suppress(OperationalError):
            return bool(self.query("SELECT 1"))
        return False


@contextmanager
def site(url: str, folder: Path) -> Iterator[Site]:
    """Yield a `Site` on *url*, and close it at the end."""
    site = Site(url, folder)
    try:
        yield site
    finally:
        site.close()


def run_patched(site: Site, patch: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``flask`` with *args* after the statements of *patch*."""
    flask = ["flask", "--app", "tests.process.jobs_app", *args]
    script = f"{dedent(patch)}\nimport sys\nsys.argv = {flask}\nfrom flask.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env=site.environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
