"""The five job tables as mapped classes, for your own queries and joins."""

from __future__ import annotations

from .tables import JobDefinition, JobEffect, JobFailure, JobRun, JobTick

__all__ = ["JobDefinition", "JobEffect", "JobFailure", "JobRun", "JobTick"]
