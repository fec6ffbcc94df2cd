"""The base of the mapped classes; the classes for what attempts left, people and ticks did."""

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
#: 64 bits on both: SQLite numbers rows by itself only in a column of the type INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")


class StoredJSONB(StoredJSON):
    """The same on PostgreSQL."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = JSONB

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what a SELECT of *column* asks for."""
        return type_coerce(cast(column, Text), self)


JSONType: TypeEngine[Any] = StoredJSON().with_variant(StoredJSONB(), "postgresql")


class Base(DeclarativeBase):
    """The declarative base of the job tables, separate from the app's own."""

    # Fix every name, so that a naming convention of the app does not change those of the copies.
    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            **dict.fromkeys(("ck", "fk", "ix", "uq"), "%(constraint_name)s"),
        }
    )
    # SQLAlchemy 2.0 takes `Float` for a float anyway, 2.1 another.
    type_annotation_map: ClassVar[dict[Any, Any]] = {datetime: UTCDateTime, float: Float}
    id: Mapped[int] = mapped_column(BigId, primary_key=True, sort_order=-1)

    @classmethod
    def __table_cls__(cls, *given: Any, **options: Any) -> Table:
        """Return a table that never reuses an id: runs must not become another definition's."""
        return Table(*given, sqlite_autoincrement=True, **options)


def of_run(name: str) -> MappedColumn[int]:
    """Return a column for the run that a row belongs to.

    :param name: that of its foreign key.
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
    """What the handler of one attempt printed and logged: the end of it."""

    __tablename__ = "job_outputs"
    __table_args__: Any = (unique("uq_job_outputs_attempt", "run_id", "attempt"),)

    run_id: Mapped[int] = of_run("fk_job_outputs_run")
    attempt: Mapped[int]
    worker: Mapped[str]
    """The token of the claim."""
    output: Mapped[str]
    written_at: Mapped[datetime] = mapped_column(server_default=NOW)


class JobStep(Base):
    """A durable step of a run: what it came to, how far it is, or what it waits for."""

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
    """``step``, ``each``, ``sleep`` or ``wait``, by what made it. A signal makes a ``wait``."""
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """What a step returned; the last id of the last chunk; or the payload of the signal, null if
    none came in time."""
    chunks: Mapped[int] = mapped_column(server_default=text("0"))
    """How many chunks are done."""
    attempt: Mapped[int | None]
    """The attempt that wrote it last; null while only a signal has."""
    worker: Mapped[str | None]
    """The token of that attempt's claim."""
    started_at: Mapped[datetime | None]
    due_at: Mapped[datetime | None]
    """Until when it sleeps, or waits for a signal."""
    finished_at: Mapped[datetime | None]


class JobOperation(Base):
    """One thing that an operator did, written in the transaction that did it; kept for a year."""

    __tablename__ = "job_operations"
    __table_args__: Any = (
        Index("ix_job_operations_started_at", "started_at"),
        partial("ix_job_operations_run", "run_id", where=conditions.OF_ONE_RUN),
        check("ck_job_operations_done", "done >= 0 AND done <= asked"),
    )

    what: Mapped[str]
    """The verb, as in the log: ``retried``, ``paused``, …"""
    target: Mapped[str]
    """What it was done to: a run, a queue, runs of a filter, …"""
    actor: Mapped[str]
    run_id: Mapped[int | None] = mapped_column(BigId)
    """The run, if it was one; the new one, if the operation made it."""
    asked: Mapped[int | None]
    """How many runs were to be changed; null if it was not about runs."""
    done: Mapped[int | None]
    """How many have been changed so far."""
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(server_default=NOW)
    """When `done` was last written."""
    finished_at: Mapped[datetime | None]
    """When it had ended; null while it is at work, and if it was stopped."""


class JobPause(Base):
    """A task or a queue that is paused: nobody claims its runs."""

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
    """Who paused it, as the log says."""


class JobRate(Base):
    """A rate key, and which of its starts are taken."""

    __tablename__ = "job_rates"
    __table_args__: Any = (
        unique("uq_job_rates_key", "key"),
        Index("ix_job_rates_tat", "tat"),
        check("ck_job_rates_period", "period > 0"),
        check("ck_job_rates_burst", "burst >= 1"),
    )

    key: Mapped[str]
    tat: Mapped[datetime]
    """The theoretical arrival time of the next attempt: that of the last one and a period more, or
    later if attempts began before their time."""
    period: Mapped[float]
    """How many seconds there are from one slot to the next, as the last attempt's code said."""
    burst: Mapped[int]
    """How many attempts may begin at once, by the same code."""
    last_at: Mapped[datetime | None]
    """When the last attempt began, or until when the key was held back since. What ``tat`` is ahead
    of that becomes shorter or longer with the rate."""


class JobTick(Base):
    """One tick: its process, its times and what it did; kept for a day."""

    __tablename__ = "job_ticks"
    __table_args__: Any = (Index("ix_job_ticks_started_at", "started_at"),)

    worker: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]
    clock_offset: Mapped[float | None]
    """How many seconds the host's clock was ahead of the database's."""
    # Quoted, so that a migration generated on one database runs on the other.
    listening: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether it is a resident worker that a NOTIFY wakes."""
    resident: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether it is a minute of ``flask jobs work``."""
    queues: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The names of the queues that it serves; null: all."""
    version: Mapped[str | None]
    """The version of Flask-CronJobs; behind a space, the server that started the worker."""
    findings: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The ids of the findings that the webhook knows of; null without one, or if it failed."""
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
