"""The keys of rate limits, as a mapped class."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, BigId
from .columns import UTCDateTime, check


class JobRate(Base):
    """A rate key, and which of its slots are taken."""

    __tablename__ = "job_rates"
    __table_args__: Any = (
        Index("uq_job_rates_key", "key", unique=True),
        Index("ix_job_rates_tat", "tat"),
        check("ck_job_rates_period", "period > 0"),
        check("ck_job_rates_burst", "burst >= 1"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    key: Mapped[str] = mapped_column(String)
    tat: Mapped[datetime] = mapped_column(UTCDateTime)
    """The theoretical arrival time of the next attempt: that of the last one and a period more, or
    later if attempts began before their time."""
    period: Mapped[float] = mapped_column(Float)
    """How many seconds there are from one slot to the next, as the last attempt's code said."""
    burst: Mapped[int] = mapped_column(Integer)
    """How many attempts may begin at once, by the same code."""
