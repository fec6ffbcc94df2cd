"""Who is compared, and how each is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from .environments import OURS


@dataclass(frozen=True)
class Contestant:
    """One row of a table.

    :ivar label: as the table names it.
    :ivar program: its program, in `benchmarks.peers.programs`.
    :ivar environment: the environment that runs the program.
    :ivar option: what the program is told besides.
    :ivar tables: where its jobs are.
    :ivar recorded: SQL for the moment at which the last outcome was committed, which must be the
        worker's last write of an outcome. Empty: the end of the program's process.
    :ivar processes: how many workers run at once.
    :ivar note: what a reader must know to compare it.
    """

    label: str
    program: str
    environment: str
    option: str = ""
    tables: tuple[str, ...] = ()
    recorded: str = ""
    processes: int = 1
    note: str = field(default="", compare=False)


def _commit_of(table: str) -> str:
    """Return SQL for the commit of the youngest row of *table*."""
    return f"SELECT extract(epoch FROM max(pg_xact_commit_timestamp(xmin))) FROM {table}"


def ours(label: str = "Flask-CronJobs", option: str = "", processes: int = 1) -> Contestant:
    """Return ours, as ``flask jobs tick`` with *option*."""
    recorded = _commit_of("job_runs")
    return Contestant(label, "ours", OURS, option, ("job_runs",), recorded, processes)


def raw(option: str, label: str, processes: int = 1) -> Contestant:
    """Return plain psycopg."""
    return Contestant(label, "raw", OURS, option, ("jobs",), _commit_of("jobs"), processes)


def pgqueuer(batch: int, processes: int = 1) -> Contestant:
    """Return PgQueuer with a batch size; its default is 10."""
    return Contestant(
        f"PgQueuer, batches of {batch:,}" + (" (default)" if batch == 10 else ""),
        "pgqueuer",
        "pgqueuer",
        str(batch),
        ("pgqueuer", "pgqueuer_log"),
        _commit_of("pgqueuer_log WHERE status = 'successful'"),
        processes,
        "deletes the job, keeps a row of its log",
    )


#: Draining PostgreSQL with one worker. The key is what ``--only`` takes.
DRAIN: dict[str, list[Contestant]] = {
    "ours": [ours()],
    "pgqueuer": [pgqueuer(10), pgqueuer(100), pgqueuer(1_000)],
    "raw": [raw("100", "raw psycopg, 100 at a time"), raw("1", "raw psycopg, one at a time")],
}
