"""``benchmarks/RESULTS.md``: what was measured, on which machine, and how."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from .environments import NODE, PYTHON, versions
from .figures import Table
from .plots import plot
from .work import CPU, MEDIAN, RATE, WHOLE

METHOD = """\
`python -m benchmarks.peers` makes an environment for each peer, starts a PostgreSQL server of its
own with `fsync` on, and lets all peers do the same work, in rounds. Every second round goes in the
opposite order, and each pair of rounds begins with another peer, so that no peer always follows the
same neighbor. A job writes its number and the time to a mapped file, and does nothing else. A
figure counts only if each job ran exactly once.

A cell shows the median of the rounds, and in parentheses the quartiles: half of the rounds lie
between them. The columns "to it" show the ratio within each round in the same form: our figure
divided by the row's. On a shared machine the ratios are steadier than the figures, and CPU time is
steadier than elapsed time.

- *Whole process* is measured from the start of the process to its end, with all imports. Ours is
  `flask jobs tick` as cron starts it, which prints a line for each run. PgQueuer, Procrastinate,
  Chancy, huey and APScheduler run through their API, without a command line.
- *First call to last outcome* is measured from the first call of a handler to the commit of the
  last outcome, by PostgreSQL's own commit timestamps. For Graphile Worker it ends when its
  `runOnce` returns, and for APScheduler when its process ends.
- *CPU* is the CPU time of the worker's process, and of the server's processes for its connections.
- django-tasks-db is slow, so it does a fifth of the jobs. The start of its process is then at most
  three hundredths of its time.
- Each round gets a new copy of a database that was loaded once. Autovacuum is off, so that all
  rounds begin with the same state.

The systems keep different records. Flask-CronJobs, Procrastinate, Chancy and django-tasks-db keep
the job with its outcome. PgQueuer deletes the job and keeps a row of its log. Graphile Worker, huey
and APScheduler keep nothing. APScheduler and huey delete a job before it runs, and lose it if the
process dies.

Graphile Worker runs on Node. *Batches* are the settings that its documentation recommends for the
most jobs a second (24 at once, a local queue of 500); after a crash, the jobs that it has fetched
stay locked for hours. *raw psycopg* and *raw sqlite3* call no handler and handle no error: they
show what the database allows.
"""

#: The end of the page.
HOW = """\
## Measure yourself

You need the development environment, a package index and npm. The measurement takes most of an
hour, on a machine that should do nothing else. `benchmarks/peers/environments.py` names the
versions. Each program is in `benchmarks/peers/programs`, with the settings that the peer's
documentation recommends.

```sh
python -m benchmarks.peers             # all, written to benchmarks/RESULTS.md
python -m benchmarks.peers --only ours,pgqueuer,raw --work drain  # a part, printed
python -m benchmarks.peers --work drain --states fresh,unanalyzed,deleted --only ours
python -m benchmarks.peers --server 15 --output /tmp/15/RESULTS.md  # Debian's PostgreSQL 15
python -m benchmarks.peers --short     # ours and plain psycopg, a minute
```

| `--work` | measures |
|---|---|
| `drain` | one worker and 10,000 jobs that do nothing (`--runs`) |
| `many` | one worker and 50,000 such jobs (`--many`), without the slow systems |
| `two` | two workers, compared with one |
| `sqlite` | one worker on SQLite |
| `enqueue` | the enqueue of one job with its commit, 2,000 times |
| `bulk` | the enqueue of 50,000 jobs, 1,000 with each call |
| `idle` | a worker that finds nothing to do |
| `latency` | from the enqueue to the handler's call, with a resident worker |

`--states` says how the table is before a drain: `fresh` (loaded, then `VACUUM ANALYZE`),
`unanalyzed` (no statistics), or `deleted` (40,000 jobs deleted, then loaded and analyzed, but not
vacuumed).
"""


@dataclass(frozen=True)
class Headline:
    """A row of the table at the top.

    :ivar table: the name of the table that it is taken from.
    :ivar peer: the label of the peer that comes nearest.
    """

    what: str
    table: str
    column: str
    peer: str


HEADLINES = (
    Headline("10,000 jobs, one worker", "drain-fresh", WHOLE, "PgQueuer, batches of 100"),
    Headline("the same on SQLite", "sqlite", WHOLE, "huey, default"),
    Headline("one job and its commit", "enqueue", RATE, "Procrastinate"),
    Headline("a process that finds nothing to do", "idle", CPU, "PgQueuer"),
    Headline("from enqueue to call", "latency-0.5", MEDIAN, "Procrastinate"),
)


@dataclass
class Results:
    """The tables of a measurement, and where it ran.

    :ivar server: the version of PostgreSQL.
    """

    server: str
    rounds: int
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    tables: list[Table] = field(default_factory=list)

    @property
    def is_busy(self) -> bool:
        """Whether the machine was doing other work when the run began."""
        return self.load > (os.cpu_count() or 1) / 4

    def write(self, path: Path) -> None:
        """Write the page, and the plots beside it."""
        folder = path.parent / "plots"
        folder.mkdir(parents=True, exist_ok=True)
        parts = [f"# Results\n\n{self.headlines()}\n\n{self.machine()}\n\n{METHOD}"]
        for table in self.tables:
            parts.append(f"## {table.title}\n\n{table.markdown()}\n")
            for column in table.compared:
                name = f"{path.stem.lower()}-{table.slug(column)}.svg"
                (folder / name).write_text(plot(table, column))
                parts.append(f"![{table.title}: {column}](plots/{name})\n")
        path.write_text("\n".join([*parts, HOW]))

    def headlines(self) -> str:
        """Return a table of a few rows: ours, and the peer that comes nearest."""
        lines = ["| | | Flask-CronJobs | the peer | ours to it |", "|---|---|---:|---|---:|"]
        tables = {table.name: table for table in self.tables}
        for headline in HEADLINES:
            table = tables.get(headline.table)
            if table is None or not {table.base, headline.peer} <= table.rows.keys():
                continue
            digits = table.columns[headline.column]
            ours, peer = (
                table.rows[label][headline.column] for label in (table.base, headline.peer)
            )
            cells = [
                headline.what,
                headline.column,
                ours.shown(digits),
                f"{headline.peer}: {peer.shown(digits)}",
                table.ratio(headline.peer, headline.column),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def machine(self) -> str:
        """Return the date, the machine and the versions."""
        today = datetime.datetime.now(datetime.timezone.utc).date()
        busy = (
            f"\n\n**The machine was busy** (load {self.load:.1f} at the beginning): read the CPU "
            "columns, not the rates."
        )
        packages = ("Flask", "Flask-SQLAlchemy", "SQLAlchemy", "psycopg")
        ours = ", ".join(f"{name} {version(name)}" for name in packages)
        peers = "\n".join(f"- {versions(name)}" for name in [*PYTHON, *NODE])
        node = f", Node {_node()}" if _node() else ""
        return (
            f"`{' '.join(['python -m benchmarks.peers', *sys.argv[1:]])}`, "
            f"{today}, {os.cpu_count()} cores ({_processor()}), {_memory()} GiB, "
            f"{os.uname().sysname} {os.uname().release}, Python {sys.version.split()[0]}, "
            f"PostgreSQL {self.server}, {self.rounds} rounds.{busy if self.is_busy else ''}\n\n"
            f"- Flask-CronJobs from this repository, {ours}\n{peers}{node}"
        )


def _node() -> str:
    if shutil.which("node") is None:
        return ""
    return subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip(
        " v\n"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
