"""The first page: everything at a glance, over one connection."""

from __future__ import annotations

from .groups import activity, dead_groups, doubts, orphans
from .health import vital_signs
from .outlook import definitions
from .reader import Source, reading
from .views import Overview


def overview(source: Source, after: str | None = None) -> Overview:
    """Verdict, figures, definitions, dead groups, orphans, the last day, and effects in doubt.

    :param after: show the definitions whose names are later than this.
    """
    with reading(source) as reader:
        verdict, figures = vital_signs(reader)
        return Overview(
            verdict=verdict,
            figures=figures,
            definitions=definitions(reader, after),
            dead=dead_groups(reader),
            orphans=orphans(reader),
            activity=activity(reader),
            doubts=doubts(reader),
        )
