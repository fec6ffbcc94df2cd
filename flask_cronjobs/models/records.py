"""The base of the mapped classes, and the classes of attempts, steps, actions, rates and ticks."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    cast,
    text,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column
from sqlalchemy.types import TypeEngine

from ..types import JSON
from . import conditions
from .columns import StoredJSON, UTCDateTime, check, partial, unique

__all__ = [
    "JobFailure",
    "JobOperation",
    "JobOutput",
    "JobPause",
    "JobRate",
    "JobStep",
    "JobTick",
]


NOW = text("CURRENT_TIMESTAMP")
#: 64 bits on both databases. SQLite numbers rows only in a column of the type INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")


class StoredJSONB(StoredJSON):
    """The `StoredJSON` of PostgreSQL."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = JSONB

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the expression that a SELECT of *column* uses."""
        return type_coerce(cast(column, Text), self)


JSONType: TypeEngine[Any] = StoredJSON().with_variant(StoredJSONB(), "postgresql")


class Base(DeclarativeBase):
    """The declarative base of the job tables, separate from the app's own."""

    # Every name is fixed, so that the app's naming convention does not rename the copies.
    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            **dict.fromkeys(("ck", "fk", "ix", "uq"), "%(constraint_name)s"),
        }
    )
    # SQLAlchemy 2.0 uses `Float` for a float by default, but 2.1 uses another type.
    type_annotation_map: ClassVar[dict[Any, Any]] = {datetime: UTCDateTime, float: Float}
    id: Mapped[int] = mapped_column(BigId, primary_key=True, sort_order=-1)

    @classmethod
    def __table_cls__(cls, *arguments: Any, **options: Any) -> Table:
        """Return a table that never reuses an id, since a run must not move to a new definition."""
        return Table(*arguments, sqlite_autoincrement=True, **options)


def of_run(name: str) -> MappedColumn[int]:
    """Return the column of the run that a row belongs to.

    :param name: the name of its foreign key.
    """
    return mapped_column(BigId, ForeignKey("job_runs.id", name=name, ondelete="CASCADE"))


class JobFailure(Base):
    """One failed attempt of a run."""

    __tablename__ = "job_failures"
    __table_args__: Any = (unique("uq_job_failures_attempt", "run_id", "attempt"),)

    run_id: Mapped[int] = of_run("fk_job_failures_run")
    attempt: Mapped[int]
    worker: Mapped[str]
    started_at: Mapped[datetime | None]
    failed_at: Mapped[datetime] = mapped_column(server_default=NOW)
    error_type: Mapped[str]
    error: Mapped[str]
    stack: Mapped[str | None]


class JobOutput(Base):
    """The last part of what the handler of one attempt printed and logged."""

    __tablename__ = "job_outputs"
    __table_args__: Any = (unique("uq_job_outputs_attempt", "run_id", "attempt"),)

    run_id: Mapped[int] = of_run("fk_job_outputs_run")
    attempt: Mapped[int]
    worker: Mapped[str]
    """The token of the claim."""
    output: Mapped[str]
    written_at: Mapped[datetime] = mapped_column(server_default=NOW)


class JobStep(Base):
    """A durable step of a run: its result, its progress, or what it waits for."""

    __tablename__ = "job_steps"
    __table_args__: Any = (
        unique("uq_job_steps_name", "run_id", "name"),
        check("ck_job_steps_kind", "kind IN ('step', 'each', 'sleep', 'wait')"),
        check("ck_job_steps_finished", "kind <> 'step' OR finished_at IS NOT NULL"),
        check("ck_job_steps_due", "due_at IS NULL OR kind IN ('sleep', 'wait')"),
        check("ck_job_steps_chunks", "chunks = 0 OR (chunks > 0 AND kind = 'each')"),
    )

    run_id: Mapped[int] = of_run("fk_job_steps_run")
    name: Mapped[str]
    kind: Mapped[str]
    """``step``, ``each``, ``sleep`` or ``wait``, after the method that made it. A signal makes a
    ``wait``."""
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The step's return value, the last id of the last chunk, or the signal's payload; null if no
    signal came in time."""
    chunks: Mapped[int] = mapped_column(server_default=text("0"))
    """The number of finished chunks."""
    attempt: Mapped[int | None]
    """The attempt that last wrote the row; null if only a signal has."""
    worker: Mapped[str | None]
    """The token of that attempt's claim."""
    started_at: Mapped[datetime | None]
    due_at: Mapped[datetime | None]
    """The end of a sleep, or of the wait for a signal."""
    finished_at: Mapped[datetime | None]


class JobOperation(Base):
    """One action of an operator, written in the transaction of the action; kept for a year."""

    __tablename__ = "job_operations"
    __table_args__: Any = (
        Index("ix_job_operations_started_at", "started_at"),
        partial("ix_job_operations_run", "run_id", where=conditions.OF_ONE_RUN),
        check("ck_job_operations_done", "done >= 0 AND done <= asked"),
    )

    what: Mapped[str]
    """The verb that the log uses: ``retried``, ``paused``, …"""
    target: Mapped[str]
    """The object of the action: a run, a queue, runs of a filter, …"""
    actor: Mapped[str]
    run_id: Mapped[int | None] = mapped_column(BigId)
    """The run, if the action concerned exactly one; the new run, if the action made one."""
    asked: Mapped[int | None]
    """The number of runs to change; null if the action was not about runs."""
    done: Mapped[int | None]
    """The number of runs changed so far."""
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(server_default=NOW)
    """When `done` was last written."""
    finished_at: Mapped[datetime | None]
    """The end of the action; null while it runs, and if it was stopped."""


class JobPause(Base):
    """A paused task or queue, whose runs are not claimed."""

    __tablename__ = "job_pauses"
    __table_args__: Any = (
        unique("uq_job_pauses_name", "kind", "name"),
        check("ck_job_pauses_kind", "kind IN ('task', 'queue')"),
    )

    kind: Mapped[str]
    """``task`` or ``queue``."""
    name: Mapped[str]
    paused_at: Mapped[datetime] = mapped_column(server_default=NOW)
    paused_by: Mapped[str | None]
    """The actor who paused it."""


class JobRate(Base):
    """A rate key, and the state of its rate."""

    __tablename__ = "job_rates"
    __table_args__: Any = (
        unique("uq_job_rates_key", "key"),
        Index("ix_job_rates_tat", "tat"),
        check("ck_job_rates_period", "period > 0"),
        check("ck_job_rates_burst", "burst >= 1"),
    )

    key: Mapped[str]
    tat: Mapped[datetime]
    """The theoretical arrival time of the next attempt: one period after that of the last attempt,
    or after the start of the last attempt if that was later."""
    period: Mapped[float]
    """Seconds from one start to the next, as declared by the code of the last attempt."""
    burst: Mapped[int]
    """The number of attempts that may begin at once, as declared by that code."""
    last_at: Mapped[datetime | None]
    """The start of the last attempt, or the time until which the key was held back afterwards. When
    the rate changes, the distance from this time to ``tat`` is scaled."""


class JobTick(Base):
    """One tick: its process, its times and its counts; kept for a day."""

    __tablename__ = "job_ticks"
    __table_args__: Any = (Index("ix_job_ticks_started_at", "started_at"),)

    worker: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]
    clock_offset: Mapped[float | None]
    """Seconds by which the host's clock was ahead of the database's."""
    # The default is quoted, so that a migration generated on one database runs on the other.
    listening: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether it is a resident worker that a NOTIFY wakes."""
    resident: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether it is a minute of ``flask jobs work``."""
    queues: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The names of the queues that it serves; null for all."""
    version: Mapped[str | None]
    """The version of Flask-CronJobs and, after a space, the server that started the worker."""
    findings: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The ids of the open findings, all of which the webhook has received; null without a webhook,
    or if sending failed."""
    recorded: Mapped[int] = mapped_column(server_default=text("0"))
    """Runs inserted for due slots."""
    skipped: Mapped[int] = mapped_column(server_default=text("0"))
    reclaimed: Mapped[int] = mapped_column(server_default=text("0"))
    succeeded: Mapped[int] = mapped_column(server_default=text("0"))
    failed: Mapped[int] = mapped_column(server_default=text("0"))
    dead: Mapped[int] = mapped_column(server_default=text("0"))
    cancelled: Mapped[int] = mapped_column(server_default=text("0"))
    released: Mapped[int] = mapped_column(server_default=text("0"))
    snoozed: Mapped[int] = mapped_column(server_default=text("0"))
    lost: Mapped[int] = mapped_column(server_default=text("0"))
    pruned: Mapped[int] = mapped_column(server_default=text("0"))
