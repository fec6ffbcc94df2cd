"""``queues`` and ``workers``: what waits in each queue and who serves it; the hosts that tick."""

from __future__ import annotations

from collections.abc import Sequence

from ..jobs.humanize import ago, duration, rate, seconds_since
from ..jobs.queues import QueueView, list_queues
from ..jobs.state import state_of
from ..jobs.workers import HostView, list_hosts
from .group import JobsGroup, examples
from .lists import print_page, watchable
from .output import since
from .params import json_option

group: JobsGroup = JobsGroup("queues")


@group.command(
    "queues", epilog=examples("flask jobs admin queues", "flask jobs admin queues --watch")
)
@json_option
@watchable
def queues(as_json: bool) -> None:
    """List the queues: what waits, how fast runs come and end, and who serves each.

    Counted over the last ten minutes. Of the runs that ended, 95 % had waited no longer.
    """
    found = list_queues(state_of())
    headers = ("QUEUE", "WAITING", "DUE", "OLDEST", "IN/MIN", "OUT/MIN", "WAITED", "SERVED BY")

    def cells(row: QueueView) -> Sequence[object]:
        waited = "-" if row.waited is None else duration(row.waited)
        flow = rate(row.arrivals), rate(row.ends), waited
        oldest = since(found.now, row.oldest)
        return row.name, row.waiting, row.due, oldest, *flow, row.service(found.now)

    print_page("queues", found, as_json, headers, cells, "No task is declared, and nothing waits.")


@group.command(
    "workers", epilog=examples("flask jobs admin workers", "flask jobs admin workers --watch")
)
@json_option
@watchable
def workers(as_json: bool) -> None:
    """List the hosts that ticked within the last day, and what runs there now.

    First those that are silent, though they had ticked for long.
    """
    found = list_hosts(state_of())
    headers = ("HOST", "STATE", "SEEN", "BY", "QUEUES", "VERSION", "RUNNING", "TASKS")

    def cells(row: HostView) -> Sequence[object]:
        seen = ago(seconds_since(row.seen_at, found.now))
        queues = "all" if row.queues is None else ", ".join(row.queues)
        tasks = ", ".join(f"{run.task} ({run.id})" for run in row.runs)
        version = row.version or "-"
        state = row.host, row.state, seen, ", ".join(row.by), queues, version
        return *state, row.running, tasks

    print_page("workers", found, as_json, headers, cells, "No host has ticked within the last day.")
