"""Compute slots from cron text and a time zone. Pure: no database, and no clock of its own."""

from __future__ import annotations

from .schedule import Schedule

__all__ = ["Schedule"]
