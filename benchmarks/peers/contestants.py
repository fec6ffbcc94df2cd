"""The programs that are compared, and the way each is used."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .environments import OURS


@dataclass(frozen=True)
class Contestant:
    """One row of a table.

    :ivar label: its name in the table.
    :ivar program: its program, in `benchmarks.peers.programs`.
    :ivar environment: the environment that runs the program.
    :ivar option: a further setting of the program.
    :ivar tables: the tables with its jobs.
    :ivar recorded: SQL for the moment at which the last outcome was committed, which must be the
        worker's last write of an outcome. Empty: the end of the program's process.
    :ivar processes: how many workers run at once.
    :ivar part: how many times fewer jobs it drains than the others, since it is slow.
    """

    label: str
    program: str
    environment: str
    option: str = ""
    tables: tuple[str, ...] = ()
    recorded: str = ""
    processes: int = 1
    part: int = 1


def _commit_of(table: str) -> str:
    """Return SQL for the time at which the youngest row of *table* was committed."""
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
        f"PgQueuer, batches of {batch:,}{', twice' if processes == 2 else ''}",
        "pgqueuer",
        "pgqueuer",
        str(batch),
        ("pgqueuer", "pgqueuer_log"),
        _commit_of("pgqueuer_log WHERE status = 'successful'"),
        processes,
    )


def procrastinate(at_once: int) -> Contestant:
    """Return Procrastinate; its default is one at a time."""
    recorded = _commit_of("procrastinate_jobs WHERE status = 'succeeded'")
    tables = ("procrastinate_jobs", "procrastinate_events")
    label = f"Procrastinate, {at_once} at once"
    return Contestant(label, "procrastinate", "procrastinate", str(at_once), tables, recorded)


def chancy(at_once: int) -> Contestant:
    """Return Chancy; its default is 100 at once."""
    recorded = _commit_of("chancy_jobs WHERE state = 'succeeded'")
    label = f"Chancy, {at_once} at once"
    return Contestant(label, "chancy", "chancy", str(at_once), ("chancy_jobs",), recorded)


def graphile(option: str, label: str, processes: int = 1) -> Contestant:
    """Return Graphile Worker, which needs Node."""
    tables = ("graphile_worker._private_jobs",)
    return Contestant(label, "graphile", "graphile", option, tables, "", processes)


def huey(option: str, label: str) -> Contestant:
    """Return huey, on SQLite."""
    return Contestant(label, "huey", "huey", option)


DJANGO = Contestant(
    "django-tasks-db",
    "django_tasks_db",
    "django_tasks_db",
    "",
    ("django_tasks_database_dbtaskresult",),
    _commit_of("django_tasks_database_dbtaskresult"),
    part=5,
)
APSCHEDULER = Contestant("APScheduler", "apscheduler", "apscheduler", "", ("apscheduler_jobs",))

RAW_BATCHES = raw("100", "raw psycopg, 100 at a time")
GRAPHILE_BATCHES = graphile("batches", "Graphile Worker, batches")

#: Draining PostgreSQL with one worker. The keys, here and below, are what ``--only`` takes.
DRAIN = {
    "ours": [ours()],
    "pgqueuer": [pgqueuer(10), pgqueuer(100), pgqueuer(1_000)],
    "procrastinate": [procrastinate(10)],
    "chancy": [chancy(100)],
    "django": [DJANGO],
    "apscheduler": [APSCHEDULER],
    "graphile": [graphile("default", "Graphile Worker, default"), GRAPHILE_BATCHES],
    "raw": [RAW_BATCHES, raw("1", "raw psycopg, one at a time")],
}

#: The fast programs, for more jobs.
MANY = {
    "ours": [ours()],
    "pgqueuer": [pgqueuer(100), pgqueuer(1_000)],
    "graphile": [GRAPHILE_BATCHES],
    "raw": [RAW_BATCHES],
}

#: Programs with one worker and with two.
TWO = {
    "ours": [
        ours(),
        ours("Flask-CronJobs, --workers 2", "--workers 2"),
        ours("Flask-CronJobs, two ticks", processes=2),
    ],
    "pgqueuer": [pgqueuer(1_000), pgqueuer(1_000, 2)],
    "graphile": [GRAPHILE_BATCHES, graphile("batches", f"{GRAPHILE_BATCHES.label}, twice", 2)],
    "raw": [RAW_BATCHES, raw("100", f"{RAW_BATCHES.label}, twice", 2)],
}

#: Draining SQLite.
SQLITE = {
    "ours": [ours()],
    "huey": [
        huey("", "huey, default"),
        huey("fsync", "huey, fsync"),
        huey("no", "huey, never synced"),
    ],
    "raw": [
        Contestant("raw sqlite3, 100 at a time", "raw_sqlite", OURS, "100"),
        Contestant("raw sqlite3, one at a time", "raw_sqlite", OURS, "1"),
    ],
}

#: Enqueueing one job with its commit.
ENQUEUE = {
    "ours": [ours(), ours("Flask-CronJobs, commit=True", "commit")],
    "pgqueuer": [replace(pgqueuer(10), label="PgQueuer")],
    "procrastinate": [replace(procrastinate(10), label="Procrastinate")],
    "chancy": [replace(chancy(100), label="Chancy")],
    "django": [DJANGO],
    "apscheduler": [APSCHEDULER],
    "graphile": [graphile("default", "Graphile Worker")],
    "raw": [raw("1", "raw psycopg")],
}

#: Enqueueing in bulk.
BULK = {key: ENQUEUE[key] for key in ("ours", "pgqueuer", "procrastinate", "chancy", "graphile")}
BULK["ours"] = [ours()]
BULK["raw"] = [
    raw("1", "raw psycopg, INSERT"),
    raw("copy", "raw psycopg, COPY"),
    raw("copy at once", "raw psycopg, one COPY of all"),
]

#: A worker that finds nothing to do, and ends.
IDLE = {
    "ours": [
        Contestant("flask routes, without Flask-CronJobs", "routes", OURS, "plain_app"),
        Contestant("flask routes, with Flask-CronJobs", "routes", OURS, "ours_app"),
        ours("flask jobs tick"),
    ],
    **{key: ENQUEUE[key] for key in ("pgqueuer", "procrastinate", "django", "graphile", "raw")},
}
IDLE["procrastinate"] = [replace(procrastinate(1), label="Procrastinate")]

RESIDENT = ours("Flask-CronJobs, flask jobs work")

#: Resident workers, which NOTIFY wakes.
LATENCY = {
    "ours": [RESIDENT, ours("The same, enqueued with commit=True", "commit")],
    **{key: ENQUEUE[key] for key in ("pgqueuer", "procrastinate", "chancy", "graphile")},
}
