"""Every read for people: what the pages and ``flask jobs admin`` show.

Each function takes an app's `State`, or a `Reader`: ``with reading(state) as reader:`` lets all
reports of a page share one connection and one now. Nothing here writes.
"""

from __future__ import annotations

from .activity import Bucket, TickView, activity, ticks
from .counts import Count
from .definitions import (
    Cell,
    DefinitionPage,
    DefinitionView,
    definition,
    definition_names,
    definitions,
    next_slots,
)
from .effects import EffectView, doubts, effects
from .health import Figures, HealthWord, Verdict, figures, verdict, vital_signs
from .overview import DeadGroup, Orphan, Overview, dead_groups, orphans, overview
from .reader import Reader, Source, reading
from .redact import redacted
from .run_detail import Attempt, RunView, run
from .run_list import RunFilter, RunPage, RunRow, count, matching_ids, runs

__all__ = [
    "Attempt",
    "Bucket",
    "Cell",
    "Count",
    "DeadGroup",
    "DefinitionPage",
    "DefinitionView",
    "EffectView",
    "Figures",
    "HealthWord",
    "Orphan",
    "Overview",
    "Reader",
    "RunFilter",
    "RunPage",
    "RunRow",
    "RunView",
    "Source",
    "TickView",
    "Verdict",
    "activity",
    "count",
    "dead_groups",
    "definition",
    "definition_names",
    "definitions",
    "doubts",
    "effects",
    "figures",
    "matching_ids",
    "next_slots",
    "orphans",
    "overview",
    "reading",
    "redacted",
    "run",
    "runs",
    "ticks",
    "verdict",
    "vital_signs",
]
