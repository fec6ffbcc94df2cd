"""The job tables as mapped classes, for your own queries and joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "JobAlert",
    "JobBatch",
    "JobDefinition",
    "JobEffect",
    "JobErrorGroup",
    "JobFailure",
    "JobHour",
    "JobMark",
    "JobOperation",
    "JobOutput",
    "JobPause",
    "JobRate",
    "JobRun",
    "JobStep",
    "JobTick",
]

if TYPE_CHECKING:
    from .tables import (
        JobAlert,
        JobBatch,
        JobDefinition,
        JobEffect,
        JobErrorGroup,
        JobFailure,
        JobHour,
        JobMark,
        JobOperation,
        JobOutput,
        JobPause,
        JobRate,
        JobRun,
        JobStep,
        JobTick,
    )
else:
    # Mapping the classes takes as long as importing all the rest, and most processes do not use
    # them. So they are mapped when one is first looked up.
    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import tables

        globals().update({each: getattr(tables, each) for each in __all__})
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})
