"""The history of a soak: rows, the trace, and an audit of each change of a run by a trigger."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, inspect, text

from flask_cronjobs.insights.reader import record
from tests.soak import app, odd_rows, timeline
from tests.soak.odd_rows import Odd
from tests.soak.timeline import Fault

RETENTION = timedelta(seconds=app.RETENTION)


@dataclass
class Run:
    """A row of ``job_runs`` at the end, or when it was pruned."""

    id: int
    job_type: str
    status: str
    attempts: int
    max_attempts: int
    definition_id: int | None = None
    scheduled_for: datetime | None = None
    result: Any = None
    error_type: str | None = None
    batch_id: int | None = None
    finished_at: datetime | None = None
    pruned_at: datetime | None = None


@dataclass
class Batch:
    """A row of ``job_batches`` at the end; *counts* are total, succeeded, dead, cancelled."""

    id: int
    key: str
    then_run_id: int | None
    finished_at: datetime | None
    counts: tuple[int | None, ...]
    pruned_at: datetime | None = None


@dataclass
class Failure:
    """A row of ``job_failures``."""

    run_id: int
    attempt: int
    worker: str
    error_type: str


@dataclass
class Handover:
    """One change of a run's status or holder; they are in the order in which they were made."""

    run_id: int
    old_status: str
    new_status: str
    old_token: str | None
    new_token: str | None
    old_attempts: int
    new_attempts: int
    expired: bool = False
    error_type: str | None = None

    @property
    def reclaimed(self) -> bool:
        """Whether a tick took the run from a worker that it considered dead."""
        ended = self.old_status == "running" and self.new_attempts == self.old_attempts
        return ended and self.new_status != "succeeded" and self.error_type == "WorkerLost"


@dataclass
class Said:
    """One line of the trace.

    :ivar started: when the attempt was claimed, if that claim took a start of a rate.
    """

    what: str
    at: float
    run: int
    attempt: int
    token: str
    key: str | None = None
    pid: int = 0
    started: float | None = None


@dataclass
class Tick:
    """One process that a host started, and how it ended.

    :ivar code: its exit code; if a signal ended it, minus the signal's number.
    :ivar pid: its id, which is also that of its process group.
    :ivar resident: whether it was a resident worker instead of a tick.
    :ivar asked: when the resident worker was asked to stop, if it was.
    """

    code: int
    began: float
    ended: float
    pid: int = 0
    resident: bool = False
    asked: float | None = None


@dataclass
class Watched:
    """A definition: its first owed slot, and the first slot that was not recorded."""

    id: int
    first: datetime
    following: datetime


@dataclass
class History:
    """Everything that the checker reads."""

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    effects: dict[str, str] = field(default_factory=dict)
    pruned_effects: Counter[str] = field(default_factory=Counter)
    """How many marks of each effect were pruned."""
    unpruned_effects: set[str] = field(default_factory=set)
    """The effects that have a mark."""
    entries: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The entries that each run has left, in the order of the rows."""
    handovers: list[Handover] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    enqueued: set[int] = field(default_factory=set)
    retried: set[int] = field(default_factory=set)
    ticks: list[Tick] = field(default_factory=list)
    watchdogs: int = 0
    """How many processes were ended by the watchdog."""
    faults: list[Fault] = field(default_factory=list)
    calm_since: float = float("inf")
    """When the last fault had ended."""
    odd: list[Odd] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """The definitions that still had due slots some time after the last fault."""
    orphans: dict[int, float] = field(default_factory=dict)
    """For how many seconds each worker continued after its parent was killed."""
    left: list[str] = field(default_factory=list)
    """The processes and connections that remained after all hosts had ended."""

    @property
    def codes(self) -> Counter[int]:
        """How many ticks ended with each exit code."""
        return Counter(tick.code for tick in self.ticks)


_AUDIT = """
CREATE TABLE soak_audit (
    id {serial}, run_id bigint, old_status text, new_status text, old_token text, new_token text,
    old_attempts integer, new_attempts integer, expired boolean, error_type text
)
"""
_INSERT = """
INSERT INTO soak_audit (run_id, old_status, new_status, old_token, new_token, old_attempts,
    new_attempts, expired, error_type)
VALUES (NEW.id, OLD.status, NEW.status, OLD.locked_by, NEW.locked_by, OLD.attempts,
    NEW.attempts, COALESCE(OLD.locked_until <= {now}, false), NEW.error_type);
"""
_POSTGRESQL = (
    "CREATE FUNCTION soak_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    + _INSERT.format(now="clock_timestamp()")
    + "RETURN NEW; END $$",
    "CREATE TRIGGER soak_audit AFTER UPDATE ON job_runs FOR EACH ROW"
    " WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.locked_by IS DISTINCT FROM NEW.locked_by)"
    " EXECUTE FUNCTION soak_audit()",
)
_SQLITE = (
    "CREATE TRIGGER soak_audit AFTER UPDATE ON job_runs FOR EACH ROW"
    " WHEN OLD.status IS NOT NEW.status OR OLD.locked_by IS NOT NEW.locked_by BEGIN"
    + _INSERT.format(now="strftime('%Y-%m-%d %H:%M:%f000', 'now')")
    + "END",
)


def watch_handovers(engine: Engine) -> None:
    """Create the audit's table and its trigger."""
    sqlite = engine.dialect.name == "sqlite"
    serial = "integer PRIMARY KEY" if sqlite else "bigserial PRIMARY KEY"
    with engine.begin() as connection:
        for statement in (_AUDIT.format(serial=serial), *(_SQLITE if sqlite else _POSTGRESQL)):
            connection.exec_driver_sql(statement)


#: The tables whose deleted rows are kept, since they are pruned during the soak.
KEPT = ("job_runs", "job_batches", "job_failures", "job_effects")
_KEEP_POSTGRESQL = """
CREATE FUNCTION soak_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE 'INSERT INTO soak_gone_' || TG_TABLE_NAME || ' SELECT ($1).*, clock_timestamp()'
    USING OLD;
    RETURN OLD;
END $$
"""
_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


def keep_deleted(engine: Engine) -> None:
    """Create triggers that copy each deleted row of the tables `KEPT`, with the time."""
    sqlite = engine.dialect.name == "sqlite"
    with engine.begin() as connection:
        if not sqlite:
            connection.exec_driver_sql(_KEEP_POSTGRESQL)
        for table in KEPT:
            time = "text" if sqlite else "timestamptz"
            connection.exec_driver_sql(
                f"CREATE TABLE soak_gone_{table} AS"
                f" SELECT *, CAST(NULL AS {time}) AS gone_at FROM {table} WHERE 1 = 0"
            )
            deed = "EXECUTE FUNCTION soak_keep()"
            if sqlite:
                names = [column["name"] for column in inspect(connection).get_columns(table)]
                old = ", ".join(f"OLD.{name}" for name in names)
                deed = f"BEGIN INSERT INTO soak_gone_{table} VALUES ({old}, {_SQLITE_NOW}); END"
            connection.exec_driver_sql(
                f"CREATE TRIGGER soak_keep_{table} AFTER DELETE ON {table} FOR EACH ROW {deed}"
            )


def _with_deleted(connection: Connection, table: str) -> str:
    """Return a subquery of all rows that *table* ever had; ``gone_at`` is NULL in current ones.

    Without the triggers of `keep_deleted`, there are only current ones.
    """
    time = "text" if connection.dialect.name == "sqlite" else "timestamptz"
    current = f"SELECT {table}.*, CAST(NULL AS {time}) AS gone_at FROM {table}"
    if not inspect(connection).has_table(f"soak_gone_{table}"):
        return f"({current}) AS {table}"
    return f"({current} UNION ALL SELECT * FROM soak_gone_{table}) AS {table}"


def read_history(engine: Engine, folder: Path, odd: list[Odd]) -> History:
    """Return what the database and the files contain; the caller adds what only the load knows.

    :param odd: the odd rows, which are left out of everything but *odd* itself.
    """
    left_out = odd_rows.ids(odd, "job_runs")
    with engine.connect() as connection:
        return History(
            runs=read_runs(connection, left_out),
            failures=[row for row in read_failures(connection) if row.run_id not in left_out],
            batches=read_batches(connection),
            **_read_effects(connection),
            entries=_read_entries(connection),
            handovers=[
                Handover(*tuple(row)[1:])
                for row in _rows(connection, "SELECT * FROM soak_audit ORDER BY id")
                if row.run_id not in left_out
            ],
            said=[line for line in read_trace(folder / "trace") if line.run not in left_out],
            ticks=read_ticks(folder),
            faults=timeline.read(folder / "timeline"),
            odd=odd,
        )


def read_runs(connection: Connection, left_out: Container[int] = ()) -> list[Run]:
    """Return the rows of ``job_runs``, including the deleted ones."""
    parse = json.loads if connection.dialect.name == "sqlite" else lambda value: value
    # Times are read as texts, since no driver can read those of the odd rows.
    rows = _rows(connection, _RUNS.format(_with_deleted(connection, "job_runs")))
    return [
        record(
            Run,
            row,
            result=None if row.result is None else parse(row.result),
            scheduled_for=moment(row.scheduled_for),
            finished_at=_moment(row.finished_at),
            pruned_at=_moment(row.gone_at),
        )
        for row in rows
        if row.id not in left_out
    ]


_RUNS = """
SELECT id, job_type, status, attempts, max_attempts, definition_id, result, error_type, batch_id,
    CAST(scheduled_for AS varchar) AS scheduled_for, CAST(finished_at AS varchar) AS finished_at,
    gone_at
FROM {} ORDER BY id
"""


def _read_effects(connection: Connection) -> dict[str, Any]:
    """Return the marks of effects, except those that a failed attempt has withdrawn.

    Such a mark was deleted before its retention.
    """
    source = _with_deleted(connection, "job_effects")
    sql = f"SELECT key, state, created_at, gone_at FROM {source} ORDER BY id"
    rows = [
        (row.key, row.state, row.gone_at is not None)
        for row in _rows(connection, sql)
        if row.gone_at is None or moment(row.gone_at) - moment(row.created_at) >= RETENTION
    ]
    return {
        "effects": {key: state for key, state, _ in rows},
        "pruned_effects": Counter(key for key, _, gone in rows if gone),
        "unpruned_effects": {key for key, _, gone in rows if not gone},
    }


def _read_entries(connection: Connection) -> dict[int, list[str]]:
    entries = defaultdict[int, list[str]](list)
    for row in _rows(connection, "SELECT run_id, step FROM soak_entries ORDER BY id"):
        entries[row.run_id].append(row.step)
    return entries


def read_batches(connection: Connection) -> list[Batch]:
    """Return the rows of ``job_batches``, including the deleted ones."""
    rows = _rows(
        connection, f"SELECT * FROM {_with_deleted(connection, 'job_batches')} ORDER BY id"
    )
    return [
        record(
            Batch,
            row,
            finished_at=_moment(row.finished_at),
            counts=(row.total, row.succeeded, row.dead, row.cancelled),
            pruned_at=_moment(row.gone_at),
        )
        for row in rows
    ]


def read_failures(connection: Connection) -> list[Failure]:
    """Return the rows of ``job_failures``, including the deleted ones."""
    source = _with_deleted(connection, "job_failures")
    rows = _rows(connection, f"SELECT * FROM {source} ORDER BY run_id, attempt")
    return [record(Failure, row) for row in rows]


def read_trace(trace: Path) -> list[Said]:
    """Return the lines that handlers have said, by time."""
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    return sorted((Said(**line) for line in lines), key=lambda line: line.at)


def read_ticks(folder: Path) -> list[Tick]:
    """Return the processes that the hosts have started."""
    files = sorted(folder.glob("*.ticks"))
    return [Tick(**json.loads(line)) for file in files for line in file.read_text().splitlines()]


def moment(value: Any) -> datetime:
    """Return a time that a plain text statement has read, aware, in UTC."""
    if isinstance(value, str):
        # PostgreSQL writes +05:45 in full, but +00 without minutes.
        value = datetime.fromisoformat(re.sub(r"([+-]\d\d)$", r"\1:00", value))
        if value.tzinfo is None:
            return value.replace(tzinfo=timezone.utc)
    aware: datetime = value.astimezone(timezone.utc)
    return aware


def _moment(value: Any) -> datetime | None:
    return None if value is None else moment(value)


def _rows(connection: Connection, sql: str) -> Sequence[Row[Any]]:
    return connection.execute(text(sql)).all()
