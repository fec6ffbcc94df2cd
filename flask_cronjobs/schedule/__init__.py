"""Which slots a cron text names in a time zone, and which of those that were missed still run."""

from __future__ import annotations

from .walk import Schedule

__all__ = ["Schedule"]
