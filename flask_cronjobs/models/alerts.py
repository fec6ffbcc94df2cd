"""What a webhook was told of what needs a person, as a mapped class."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from .base import NOW, Base, BigId
from .columns import UTCDateTime, partial


class JobAlert(Base):
    """One thing that needs a person, from when a tick saw it until its end was told."""

    __tablename__ = "job_alerts"
    __table_args__: Any = (
        partial("uq_job_alerts_open", "name", where="ended_at IS NULL", unique=True),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    name: Mapped[str] = mapped_column(String)
    """The name of the check, and what it is about."""
    what: Mapped[str] = mapped_column(String)
    """What was found, as a sentence."""
    todo: Mapped[str] = mapped_column(String)
    begun_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    """When a tick saw it last."""
    ended_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    told_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    """When its begin was told, or, if it has ended, its end; null: not yet."""
