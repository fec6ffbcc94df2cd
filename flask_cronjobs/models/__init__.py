"""The five tables as mapped classes, to query and to join with your own."""

from __future__ import annotations

from .tables import JobDefinition, JobEffect, JobFailure, JobRun, JobTick

__all__ = ["JobDefinition", "JobEffect", "JobFailure", "JobRun", "JobTick"]
