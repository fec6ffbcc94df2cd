"""What outlives the runs, as mapped classes: hours in numbers, and marks of what changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from ..types import JSON
from .base import NOW, Base, BigId, JSONType
from .columns import UTCDateTime, check


class JobHour(Base):
    """What ended in one hour, of one task and of all: how much, and how long it took."""

    __tablename__ = "job_hours"
    __table_args__: Any = (
        Index("uq_job_hours_hour", "hour", "job_type", unique=True),
        Index("ix_job_hours_task", "job_type", "hour"),
        check("ck_job_hours_ended", "ended >= dead AND dead >= 0"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    hour: Mapped[datetime] = mapped_column(UTCDateTime)
    """When the hour began, in UTC."""
    job_type: Mapped[str] = mapped_column(String)
    """The task's name; empty for all tasks together, a row that each hour has."""
    ended: Mapped[int] = mapped_column(Integer)
    """How many runs succeeded or ended dead."""
    dead: Mapped[int] = mapped_column(Integer)
    """How many of them ended dead."""
    took_seconds: Mapped[float] = mapped_column(Float)
    """How long their last attempts took, together."""
    took: Mapped[JSON] = mapped_column(JSONType, server_default=text("'{}'"))
    """How many of them took how long: numbers by bucket; a doubling has four, from a
    millisecond on."""
    waited_seconds: Mapped[float] = mapped_column(Float)
    """How long they were due before their last attempts began, together."""
    waited: Mapped[JSON] = mapped_column(JSONType, server_default=text("'{}'"))


class JobMark(Base):
    """Something that changed at one moment, such as a deploy, to see in charts."""

    __tablename__ = "job_marks"
    __table_args__: Any = (
        Index("ix_job_marks_marked_at", "marked_at"),
        check("ck_job_marks_name", "name <> ''"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    name: Mapped[str] = mapped_column(String)
    """What it was, such as ``v812``."""
    marked_at: Mapped[datetime] = mapped_column(UTCDateTime, server_default=NOW)
    marked_by: Mapped[str | None] = mapped_column(String)
    """Who made the mark, as the log says."""
