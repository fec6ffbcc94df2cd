"""Databases and processes: a database is prepared once, and copied for each run of a program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.postgres import LocalServer, local_server

from .calls import Tally, tally
from .contestants import Contestant
from .environments import FOLDER, interpreter

ROOT = Path(__file__).parents[2]

#: Commit timestamps say when the last outcome was recorded. Without autovacuum, each round finds
#: the same table and the same statistics.
SETTINGS = "track_commit_timestamp = on\nautovacuum = off\n"

OTHERS = """
    SELECT FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""

#: The possible states of the table before a drain.
STATES = {
    "fresh": "loaded, then VACUUM ANALYZE",
    "unanalyzed": "loaded, no statistics",
    "deleted": "40,000 jobs deleted, then loaded and ANALYZE",
}

#: How many jobs the state ``deleted`` deletes.
DELETED = 40_000


@dataclass(frozen=True)
class Ended:
    """A verb that has ended.

    :ivar seconds: from the start of the processes to their end.
    :ivar ended: when that was, in seconds since 1970.
    :ivar cpu: CPU seconds of the processes.
    :ivar server_cpu: CPU seconds of the server's processes for their connections.
    :ivar tally: which jobs were called.
    :ivar printed: what the program printed for the benchmark.
    """

    seconds: float
    ended: float
    cpu: float
    server_cpu: float
    tally: Tally
    printed: dict[str, float]


class Arena:
    """A PostgreSQL server of our own, and a folder."""

    def __init__(self, server: LocalServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.templates: dict[tuple[object, ...], str] = {}
        self.connection = self.connect(server.admin_url)

    def version(self) -> str:
        """Return the server's version."""
        return str(self.connection.execute("SHOW server_version").fetchall()[0][0])

    def connect(self, url: str) -> psycopg.Connection:
        """Connect to a database, in autocommit mode."""
        return psycopg.connect(plain(url), autocommit=True)

    def empty(self, contestant: Contestant) -> str:
        """Return a database with the contestant's tables."""
        return self.copy(self.template(contestant, 0, "fresh"))

    def loaded(self, contestant: Contestant, jobs: int, state: str) -> str:
        """Return a database with *jobs* jobs enqueued, its table in a *state*."""
        return self.copy(self.template(contestant, jobs, state))

    def file(self, contestant: Contestant, jobs: int) -> str:
        """Return the path of a new SQLite file with *jobs* jobs enqueued."""
        key = contestant.program, contestant.option, jobs
        if key not in self.templates:
            self.templates[key] = str(self.folder / f"{time.time_ns()}.sqlite")
            self.run(contestant, "prepare", self.templates[key], 1)
            self.run(contestant, "load", self.templates[key], jobs)
        copy = self.folder / f"{time.time_ns()}.sqlite"
        for suffix in ("", "-wal"):
            if (part := Path(self.templates[key] + suffix)).exists():
                shutil.copy(part, f"{copy}{suffix}")
        return str(copy)

    def copy(self, template: str) -> str:
        """Copy a database; a checkpoint keeps the copy's writes out of the measurement."""
        url = self.server.url(f"round_{time.time_ns()}")
        names = make_url(url).database, make_url(template).database
        self.connection.execute("CREATE DATABASE {} TEMPLATE {}".format(*names).encode())
        self.connection.execute("CHECKPOINT")
        return url

    def template(self, contestant: Contestant, jobs: int, state: str) -> str:
        """Return the database to copy, made on the first call."""
        key = contestant.program, jobs, state
        if key not in self.templates:
            self.templates[key] = self._make_template(contestant, jobs, state)
        return self.templates[key]

    def _make_template(self, contestant: Contestant, jobs: int, state: str) -> str:
        url = self.server.create_database()
        self.run(contestant, "prepare", url, 1)
        if not jobs:
            return url
        if state == "deleted":
            self.run(contestant, "load", url, DELETED)
            self.execute(url, *(f"DELETE FROM {table}" for table in contestant.tables))
        self.run(contestant, "load", url, jobs)
        if state == "fresh":
            self.execute(url, "VACUUM ANALYZE")
        if state == "deleted":
            self.execute(url, "ANALYZE")
        return url

    def execute(self, url: str, *statements: str) -> None:
        """Execute statements, each in its own transaction."""
        with self.connect(url) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def run(
        self, contestant: Contestant, verb: str, url: str, jobs: int, pause: float = 0
    ) -> Ended:
        """Run a verb in as many processes as the contestant has workers, to their end.

        :param pause: seconds to wait before each job is enqueued, on average.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        before, began = self._server_cpu(), time.perf_counter()
        processes = [
            self.start(contestant, verb, url, jobs, folder, pause)
            for _ in range(contestant.processes if verb == "work" else 1)
        ]
        cpu = sum(map(_wait, processes))
        seconds, ended = time.perf_counter() - began, time.time()
        server_cpu = self._server_cpu() - before
        outputs = [(folder / f"{process.pid}.out").read_text() for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode != 0:
                command = f"{contestant.label}: {verb}"
                raise SystemExit(f"{command} ended with {process.returncode}:\n{output[-4000:]}")
        return Ended(
            seconds, ended, cpu, server_cpu, tally(folder / "calls", jobs), _printed(outputs)
        )

    def start(
        self, contestant: Contestant, verb: str, url: str, jobs: int, folder: Path, pause: float = 0
    ) -> subprocess.Popen[bytes]:
        """Start a verb in a process, which notes its calls and prints in *folder*."""
        (folder / "calls").mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",  # The peers' packages have their bytecode from pip.
            "PYTHONPATH": str(ROOT),
            "PEERS_URL": plain(url),
            "PEERS_JOBS": str(jobs),
            "PEERS_CALLS": str(folder / "calls"),
            "PEERS_OPTION": contestant.option,
            "PEERS_PAUSE": str(pause),
            "NODE_PATH": str(FOLDER / contestant.environment / "node_modules"),
        }
        command = [*interpreter(contestant.environment), *_program(contestant), verb]
        name = folder / "out"
        with name.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        name.rename(folder / f"{process.pid}.out")
        return process

    def _server_cpu(self) -> float:
        """Return the CPU seconds of the processes of all connections but ours that have ended."""
        deadline = time.monotonic() + 1
        while self.connection.execute(OTHERS).fetchall() and time.monotonic() < deadline:
            time.sleep(0.005)  # A process ends a moment after its connection.
        time.sleep(0.02)
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_arena(programs: Path | None) -> Generator[Arena]:
    """Start PostgreSQL, from *programs* or the tests' wheel, for a while."""
    with (
        local_server(programs, SETTINGS) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        arena = Arena(server, Path(folder))
        with arena.connection:
            yield arena


def plain(url: str) -> str:
    """Return *url* as psycopg and others take it; a path is unchanged."""
    return url.replace("postgresql+psycopg:", "postgresql:")


def _program(contestant: Contestant) -> list[str]:
    script = Path(__file__).parent / "programs" / f"{contestant.program}.js"
    if script.exists():
        return [str(script)]
    return ["-m", f"benchmarks.peers.programs.{contestant.program}"]


def _wait(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end of *process* and return its CPU seconds."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def _printed(outputs: list[str]) -> dict[str, float]:
    """Return the values in the last lines; of several processes, the largest."""
    printed: dict[str, float] = {}
    for output in outputs:
        last = output.rstrip().rpartition("\n")[2]
        for name, value in json.loads(last).items() if last.startswith("{") else ():
            printed[name] = max(value, printed.get(name, value))
    return printed
