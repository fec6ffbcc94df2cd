"""What operators have done to runs, definitions and errors, as mapped classes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from . import conditions
from .base import NOW, Base, BigId
from .columns import UTCDateTime, check, partial


class JobOperation(Base):
    """One thing that an operator did, written in the transaction that did it; kept for a year."""

    __tablename__ = "job_operations"
    __table_args__: Any = (
        Index("ix_job_operations_started_at", "started_at"),
        partial("ix_job_operations_run", "run_id", where=conditions.OF_ONE_RUN),
        check("ck_job_operations_done", "done >= 0 AND done <= asked"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    what: Mapped[str] = mapped_column(String)
    """The verb, as in the log: ``retried``, ``paused``, …"""
    target: Mapped[str] = mapped_column(String)
    """What it was done to: a run, a queue, runs of a filter, …"""
    actor: Mapped[str] = mapped_column(String)
    run_id: Mapped[int | None] = mapped_column(BigId)
    """The run, if it was one; the new one, if the operation made it."""
    asked: Mapped[int | None] = mapped_column(Integer)
    """How many runs were to be changed; null if it was not about runs."""
    done: Mapped[int | None] = mapped_column(Integer)
    """How many have been changed so far."""
    started_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    """When `done` was last written."""
    finished_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    """When it had ended; null while it is at work, and if it was stopped."""


class JobErrorGroup(Base):
    """What an operator has decided about the errors with one fingerprint."""

    __tablename__ = "job_error_groups"
    __table_args__: Any = (
        Index("uq_job_error_groups_fingerprint", "fingerprint", unique=True),
        Index("ix_job_error_groups_changed_at", "changed_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String)
    resolved_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    """It counts as resolved until it is seen again after that."""
    muted_until: Mapped[datetime | None] = mapped_column(UTCDateTime)
    changed_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    changed_by: Mapped[str | None] = mapped_column(String)
