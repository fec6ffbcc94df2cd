"""What the attempts of a run leave behind, as mapped classes. It goes with the run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import NOW, Base, BigId
from .columns import UTCDateTime


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
