"""Check the app's jobs and database: what is wrong, and what to do about it."""

from __future__ import annotations

from .finding import Finding
from .jobs import examine

__all__ = ["Finding", "examine"]
