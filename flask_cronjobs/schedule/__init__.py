"""The slots of a cron text in a time zone, and which of the missed ones still run."""

from __future__ import annotations

from .walk import Schedule

__all__ = ["Schedule"]
