"""Measure how many runs several hosts drain from one PostgreSQL.

    python -m benchmarks.hosts [--short] [--workers 1,2,4,8,16] [--runs N] [--rounds N]

Each worker is one tick in its own process. If this is root and may do so, it also has its own
network namespace and host name, with a link to a bridge on which the server listens, like a host.
Otherwise the processes share the loopback. All begin at once, after their start-up. It prints the
medians of:

* runs a second, from the first run's beginning to the last one's end, by the database's clock;
* statements a run, of all workers together, with those that a tick sends before and after;
* microseconds of CPU time a run, of all workers and of the server: other work on the machine does
  not change these much;
* in how many of 1,000 observations an active server process waited for a lock, and for which.

Namespaces, bridge and addresses (198.18.77.0/24, reserved for benchmarks) are removed at the end.
Exits 1 if two workers drain less than `TWO` times as many no-ops as one, or if 16 drain much less
than 4. ``--plot FILE`` draws the runs a second, compared to one worker, as an SVG.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy import create_engine, make_url, text

from benchmarks import argument_parser
from benchmarks._chart import line_chart
from flask_cronjobs.db.create import create_tables
from tests import postgres

#: How many times as much as one worker two must drain.
TWO = 1.3
#: The least that 16 workers may drain, relative to 4.
SIXTEEN = 0.95
#: The parent holds this until all workers are ready.
BARRIER = 7_213
#: How often the server's processes are read, in seconds.
LOOK_EVERY = 0.02
BRIDGE, NETWORK = "cronjobs0", "198.18.77"
TASKS = {"no-op": "noop", "20 ms": "nap"}
ROOT = Path(__file__).parents[1]

WORKER = f"""
import json, os, sys, time
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, text
from flask_cronjobs import CronJobs

app = Flask("host")
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app)
jobs = CronJobs(app)

@jobs.task
def noop(): pass

@jobs.task
def nap(): time.sleep(0.02)

sent = 0
with app.app_context():
    @event.listens_for(db.engine, "before_cursor_execute")
    def count(*arguments):
        global sent
        sent += 1
    with db.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock_shared({BARRIER})"))
    sent, cpu = 0, time.process_time()
    report = jobs.tick(budget=600)
print(json.dumps([report.succeeded, sent, time.process_time() - cpu]))
"""

LOOK = """
SELECT wait_event_type || ': ' || wait_event FROM pg_stat_activity
WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
"""
ENQUEUE = """
INSERT INTO job_runs (job_type, payload, run_at, scheduled_for)
SELECT :task, '{}', clock_timestamp(), clock_timestamp() FROM generate_series(1, :runs)
"""
SPAN = """
SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))
FROM job_runs WHERE status = 'succeeded' AND attempts = 1
"""


@dataclass
class Reading:
    """The measurements of one number of workers, over all rounds."""

    rates: list[float] = field(default_factory=list["float"])
    statements: list[float] = field(default_factory=list["float"])
    client_cpu: list[float] = field(default_factory=list["float"])
    server_cpu: list[float] = field(default_factory=list["float"])
    waits: Counter[str] = field(default_factory=Counter["str"])
    looks: int = 0

    @property
    def rate(self) -> float:
        """Return the median of runs a second."""
        return statistics.median(self.rates)

    def __str__(self) -> str:
        spread = (max(self.rates) - min(self.rates)) / self.rate
        waits = ", ".join(
            f"{name} {1000 * number / max(self.looks, 1):.0f}"
            for name, number in self.waits.most_common(4)
        )
        return (
            f"{self.rate:8,.0f} runs/s (spread {spread:4.0%})"
            f"{statistics.median(self.statements):8.4f} statements"
            f"{statistics.median(self.client_cpu) * 1e6:6.0f}"
            f" +{statistics.median(self.server_cpu) * 1e6:4.0f} µs of CPU a run"
            f"   waits: {waits or 'none'}"
        )


def main() -> None:
    """Measure, print, and exit 1 if a limit is missed."""
    options = _options()
    numbers = [int(number) for number in options.workers.split(",")]
    with postgres.running_server() as server, ExitStack() as stack:
        hosts = stack.enter_context(_hosts(server, max(numbers)))
        print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {hosts.kind}")
        noops = measure(server, hosts, "no-op", numbers, options.runs, options.rounds)
        some, rounds = min(options.runs, 400 if options.short else 2_000), min(options.rounds, 2)
        naps = measure(server, hosts, "20 ms", numbers, some, rounds)
    if options.plot is not None:
        options.plot.write_text(_chart(noops, naps))
    if not options.short and not _is_good(noops):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argument_parser("hosts", __doc__, "a form for CI, without the bounds")
    parser.add_argument("--workers", default=None, help="numbers, separated by commas")
    parser.add_argument("--runs", type=int, default=None, help="runs of a round")
    parser.add_argument("--rounds", type=int, default=None, help="how often each is measured")
    parser.add_argument("--plot", type=Path, help="draw an SVG into this file")
    options = parser.parse_args()
    options.workers = options.workers or ("1,2" if options.short else "1,2,4,8,16")
    options.runs = options.runs or (2_000 if options.short else 40_000)
    options.rounds = options.rounds or (1 if options.short else 3)
    return options


def _is_good(noops: dict[int, Reading]) -> bool:
    rates = {number: reading.rate for number, reading in noops.items()}
    pairs = ((1, 2, TWO), (4, 16, SIXTEEN))
    ratios = [
        (few, many, rates[many] / rates[few], bound)
        for few, many, bound in pairs
        if few in rates and many in rates
    ]
    for few, many, ratio, bound in ratios:
        print(f"{many} workers drain {ratio:.2f} times as many as {few} (bound {bound})")
    return all(ratio >= bound for *_, ratio, bound in ratios)


def _chart(noops: dict[int, Reading], naps: dict[int, Reading]) -> str:
    """Draw the runs a second, relative to the fewest workers."""
    few = min(noops)
    lines = {
        name: [reading.rate / readings[few].rate for reading in readings.values()]
        for name, readings in (("no-ops", noops), ("runs of 20 ms", naps))
    }
    title = f"Runs a second, compared to {few} worker, on {os.cpu_count()} cores"
    return line_chart(title, [str(number) for number in noops], "workers", lines)


def measure(
    server: postgres.Server,
    hosts: Hosts,
    kind: str,
    numbers: Sequence[int],
    runs: int,
    rounds: int,
) -> dict[int, Reading]:
    """Measure each number of workers in each round; print and return the readings."""
    readings = {number: Reading() for number in numbers}
    for _ in range(rounds):
        for number, reading in readings.items():
            url = server.create_database()
            _fill(url, TASKS[kind], runs)
            before = _cpu_of(server)
            _drain(url, hosts, number, runs, reading)
            reading.server_cpu.append((_cpu_of(server) - before) / runs)
            server.drop_database(url)
    print(f"{runs} runs of {kind}, {rounds} rounds:")
    for number, reading in readings.items():
        print(f"  {number:2} workers {reading}", flush=True)
    return readings


def _fill(url: str, task: str, runs: int) -> None:
    engine = create_engine(url)
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text(ENQUEUE), {"task": task, "runs": runs})
    with engine.connect() as connection:
        raw = connection.execution_options(isolation_level="AUTOCOMMIT")
        raw.execute(text("VACUUM ANALYZE job_runs"))
    engine.dispose()


def _drain(url: str, hosts: Hosts, number: int, runs: int, reading: Reading) -> None:
    with psycopg.connect(_plain(url), autocommit=True) as barrier:
        barrier.execute("SELECT pg_advisory_lock(%s)", [BARRIER])
        workers = [hosts.start(place, url) for place in range(number)]
        _wait_for(barrier, number)
        with _looking(url, reading):
            barrier.execute("SELECT pg_advisory_unlock(%s)", [BARRIER])
            results = [json.loads(worker.communicate()[0]) for worker in workers]
        ((ended, seconds),) = barrier.execute(SPAN).fetchall()
    assert ended == sum(result[0] for result in results) == runs, (ended, results)
    reading.rates.append(runs / float(seconds))
    reading.statements.append(sum(result[1] for result in results) / runs)
    reading.client_cpu.append(sum(result[2] for result in results) / runs)


def _cpu_of(server: postgres.Server) -> float:
    """Return the seconds of CPU time of the server's processes that have ended; 0 if unknown."""
    if not isinstance(server, postgres.LocalServer):
        return 0.0
    try:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # This system is not Linux.
        return 0.0
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _wait_for(barrier: psycopg.Connection, number: int) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while barrier.execute(waiting).fetchall()[0][0] < number:
        time.sleep(0.05)


@contextmanager
def _looking(url: str, reading: Reading) -> Generator[None]:
    """Read in a thread what the server's processes are waiting for."""
    ended = threading.Event()

    def look() -> None:
        with psycopg.connect(_plain(url), autocommit=True) as connection:
            while not ended.wait(LOOK_EVERY):
                for (wait,) in connection.execute(LOOK):
                    reading.looks += 1
                    if wait is not None and wait.startswith(("Lock:", "LWLock:")):
                        reading.waits[wait.split(": ", 1)[1]] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(False)


class Hosts:
    """Processes of this host."""

    kind = "processes of one host"

    def start(self, place: int, url: str) -> subprocess.Popen[str]:
        """Start a worker on the host number *place*."""
        return subprocess.Popen(
            [*self.prefix(place), sys.executable, "-c", WORKER],
            env={**os.environ, "DATABASE_URL": self.url(url), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def prefix(self, place: int) -> list[str]:
        """Return the words before a worker's command."""
        return []

    def url(self, url: str) -> str:
        """Return the database's URL as seen from the hosts."""
        return url


class Namespaces(Hosts):
    """Network namespaces, one per host."""

    kind = "each worker in a network namespace"

    def prefix(self, place: int) -> list[str]:
        """Return the command that enters the namespace, with a host name of its own."""
        script = f'hostname {_name(place)}; exec "$@"'
        return ["ip", "netns", "exec", _name(place), "unshare", "--uts", "sh", "-c", script, "sh"]

    def url(self, url: str) -> str:
        """Return the URL with the bridge's address."""
        return make_url(url).set(host=f"{NETWORK}.254").render_as_string(False)


def _name(place: int) -> str:
    return f"cronjobs-host-{place}"


@contextmanager
def _hosts(server: postgres.Server, number: int) -> Iterator[Hosts]:
    """Make namespaces for *number* hosts, if that is allowed."""
    if not (isinstance(server, postgres.LocalServer) and _may_make_namespaces()):
        yield Hosts()
        return
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for place in range(number):
            _make_host(place)
        _listen_on_bridge(server)
        yield Namespaces()
    finally:
        for place in range(number):
            _ip("netns", "del", _name(place), check=False)
        _ip("link", "del", BRIDGE, check=False)


def _make_host(place: int) -> None:
    name, outside = _name(place), f"cjhost{place}"
    _ip("netns", "add", name)
    _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("link", "set", outside, "master", BRIDGE, "up")
    _ip("-n", name, "addr", "add", f"{NETWORK}.{place + 1}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", name, "link", "set", device, "up")


def _listen_on_bridge(server: postgres.LocalServer) -> None:
    data = server.root / "data"
    with (data / "postgresql.conf").open("a") as file:
        file.write(f"listen_addresses = '127.0.0.1,{NETWORK}.254'\n")
    with (data / "pg_hba.conf").open("a") as file:
        file.write(f"host all all {NETWORK}.0/24 trust\n")
    server.restart()


def _may_make_namespaces() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        return False
    result = _ip("netns", "add", _name(255), check=False)
    _ip("netns", "del", _name(255), check=False)
    return result.returncode == 0


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *arguments], check=check, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
