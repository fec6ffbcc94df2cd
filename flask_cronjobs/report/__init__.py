"""Every read for people: what the pages and ``flask jobs admin`` show.

Each function takes an app's `State`, or a `Reader`: ``with reading(state) as reader:`` lets all
reports of a page share one connection and one now. Nothing here writes.
"""

from __future__ import annotations

from .groups import activity, dead_groups, doubts, effects, orphans, ticks
from .health import figures, verdict, vital_signs
from .listing import count, matching_ids, run, runs
from .outlook import definition, definition_names, definitions, next_slots
from .reader import Reader, Source, reading
from .redact import redacted
from .run_views import Attempt, RunFilter, RunPage, RunRow, RunView
from .summary import overview
from .views import (
    Bucket,
    Cell,
    Count,
    DeadGroup,
    DefinitionPage,
    DefinitionView,
    EffectView,
    Figures,
    HealthWord,
    Orphan,
    Overview,
    TickView,
    Verdict,
)

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
