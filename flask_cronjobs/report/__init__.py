"""Every read for people: what the pages and ``flask jobs admin`` show.

Each function takes an app's `State`, or a `Reader` that several reports share: then they use one
connection and see one now. Nothing here writes.
"""

from __future__ import annotations

from .activity import Bucket, Gap, activity, gaps, ticks
from .counts import Count
from .definitions import Cell, DefinitionView, definition_names, definitions, next_slots
from .effects import doubts, effects
from .health import Figures, Verdict, headline, tone, verdict, verdict_and_figures
from .overview import Overview, dead_groups, orphans, overview
from .reader import reading
from .redact import redacted
from .run_detail import Attempt, RunView, run
from .run_list import RunFilter, RunPage, RunRow, matching_ids, runs

__all__ = [
    "Attempt",
    "Bucket",
    "Cell",
    "Count",
    "DefinitionView",
    "Figures",
    "Gap",
    "Overview",
    "RunFilter",
    "RunPage",
    "RunRow",
    "RunView",
    "Verdict",
    "activity",
    "dead_groups",
    "definition_names",
    "definitions",
    "doubts",
    "effects",
    "gaps",
    "headline",
    "matching_ids",
    "next_slots",
    "orphans",
    "overview",
    "reading",
    "redacted",
    "run",
    "runs",
    "ticks",
    "tone",
    "verdict",
    "verdict_and_figures",
]
