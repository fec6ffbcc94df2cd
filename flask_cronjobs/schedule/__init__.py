"""Cron text and a time zone in, slots out. Pure: no database, no clock of its own."""

from __future__ import annotations

from .schedule import Schedule

__all__ = ["Schedule"]
