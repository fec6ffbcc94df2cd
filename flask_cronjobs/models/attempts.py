"""What the attempts of a run leave behind, as mapped classes. It goes with the run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from ..types import JSON
from .base import NOW, Base, BigId, JSONType
from .columns import UTCDateTime, check


class JobFailure(Base):
    """One failed attempt of a run."""

    __tablename__ = "job_failures"
    __table_args__: Any = (
        Index("uq_job_failures_attempt", "run_id", "attempt", unique=True),
        Index("ix_job_failures_fingerprint", "fingerprint", "failed_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("job_runs.id", name="fk_job_failures_run", ondelete="CASCADE")
    )
    attempt: Mapped[int] = mapped_column(Integer)
    worker: Mapped[str] = mapped_column(String)
    started_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    failed_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    fingerprint: Mapped[str | None] = mapped_column(String)
    """The group of its error; null if an older version recorded it."""
    error_type: Mapped[str] = mapped_column(String)
    error: Mapped[str] = mapped_column(String)
    stack: Mapped[str | None] = mapped_column(String)


class JobOutput(Base):
    """What the handler of one attempt printed and logged: the end of it."""

    __tablename__ = "job_outputs"
    __table_args__: Any = (
        Index("uq_job_outputs_attempt", "run_id", "attempt", unique=True),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("job_runs.id", name="fk_job_outputs_run", ondelete="CASCADE")
    )
    attempt: Mapped[int] = mapped_column(Integer)
    worker: Mapped[str] = mapped_column(String)
    """The token of the claim."""
    output: Mapped[str] = mapped_column(String)
    written_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)


class JobStep(Base):
    """A durable step of a run: what it came to, how far it is, or what it waits for."""

    __tablename__ = "job_steps"
    __table_args__: Any = (
        Index("uq_job_steps_name", "run_id", "name", unique=True),
        check("ck_job_steps_kind", "kind IN ('step', 'each', 'sleep', 'wait')"),
        check("ck_job_steps_finished", "kind <> 'step' OR finished_at IS NOT NULL"),
        check("ck_job_steps_due", "due_at IS NULL OR kind IN ('sleep', 'wait')"),
        check("ck_job_steps_chunks", "chunks = 0 OR (chunks > 0 AND kind = 'each')"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    run_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("job_runs.id", name="fk_job_steps_run", ondelete="CASCADE")
    )
    name: Mapped[str] = mapped_column(String)
    kind: Mapped[str] = mapped_column(String)
    """``step``, ``each``, ``sleep`` or ``wait``, by what made it. A signal makes a ``wait``."""
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """What a step returned; the last id of the last chunk; or the payload of the signal, null if
    none came in time."""
    chunks: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """How many chunks are done."""
    attempt: Mapped[int | None] = mapped_column(Integer)
    """The attempt that wrote it last; null while only a signal has."""
    worker: Mapped[str | None] = mapped_column(String)
    """The token of that attempt's claim."""
    started_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    due_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    """Until when it sleeps, or waits for a signal."""
    finished_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
