"""Every read for people: what the pages and ``flask jobs admin`` show.

Each function takes an app's `State`, or a `Reader` that several reports share: then they use one
connection and see one now. Nothing here writes.
"""

from __future__ import annotations

from ..text import redacted
from .activity import Bucket, Gap, activity, gaps, ticks, unpruned
from .arguments import Arguments, arguments
from .batches import BatchView, batch, batches
from .counts import Count
from .definition_list import DefinitionFilter, DefinitionList, definition_list
from .definitions import Cell, DefinitionView, definition_names, definitions, next_slots
from .details import DefinitionDetail, TaskDetail, definition, task
from .effects import effects
from .health import Figures, Verdict, headline, tone, verdict, verdict_and_figures
from .key_orders import KeyOrder, key_orders
from .overview import Overview, dead_groups, orphans, overview
from .pauses import PauseView, pauses
from .reader import reading
from .run_detail import Attempt, RunView, run
from .run_list import RunFilter, RunPage, RunRow, matching_count, matching_ids, runs
from .run_order import Cursor, order_of

__all__ = [
    "Arguments",
    "Attempt",
    "BatchView",
    "Bucket",
    "Cell",
    "Count",
    "Cursor",
    "DefinitionDetail",
    "DefinitionFilter",
    "DefinitionList",
    "DefinitionView",
    "Figures",
    "Gap",
    "KeyOrder",
    "Overview",
    "PauseView",
    "RunFilter",
    "RunPage",
    "RunRow",
    "RunView",
    "TaskDetail",
    "Verdict",
    "activity",
    "arguments",
    "batch",
    "batches",
    "dead_groups",
    "definition",
    "definition_list",
    "definition_names",
    "definitions",
    "effects",
    "gaps",
    "headline",
    "key_orders",
    "matching_count",
    "matching_ids",
    "next_slots",
    "order_of",
    "orphans",
    "overview",
    "pauses",
    "reading",
    "redacted",
    "run",
    "runs",
    "task",
    "ticks",
    "tone",
    "unpruned",
    "verdict",
    "verdict_and_figures",
]
