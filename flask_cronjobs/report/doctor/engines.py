"""The doctor's checks of the engines that execute the runs of chosen queues."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import func, select, text

from ...errors import CronJobsError
from ...models.conditions import FREE, KEYED
from ...registry.executor import Executor, executor_of
from ...text import one_line
from ...types import NO_SUCH_TASK
from ..humanize import plural
from ..reader import RUNS, Reader
from .finding import Finding

_TODO = "Start its broker and its workers: see the page outgrowing.md of the documentation."


def engines(reader: Reader) -> Iterator[Finding]:
    """Check whether each engine can be reached, and has workers for its queues."""
    queues: dict[str, list[str]] = {}
    executors: dict[str, Executor] = {}
    for queue, engine in reader.state.settings.executors.items():
        try:
            executor = executor_of(reader.state.app, engine)
        except CronJobsError as error:
            yield Finding("engine", "error", f"Runs of the queue {queue!r} wait: {error}", _TODO)
            continue
        executors[executor.name] = executor
        queues.setdefault(executor.name, []).append(queue)
    for name, executor in executors.items():
        yield from _engine(name, executor, queues[name])
    yield from _refused(reader)


def _refused(reader: Reader) -> Iterator[Finding]:
    """Check whether runs wait that workers of an engine gave back, since they lack the task."""
    columns = RUNS.c.job_type, RUNS.c.queue
    refused = RUNS.c.error_type == NO_SUCH_TASK, RUNS.c.queue.in_(reader.state.settings.executors)
    for rows in (FREE, KEYED):
        why = func.max(RUNS.c.last_error).label("why")
        groups = select(*columns, func.count().label("number"), why).where(text(rows), *refused)
        for row in reader.rows(groups.group_by(*columns).order_by(*columns)):
            yield Finding(
                "refused-task",
                "error",
                f"{plural(row.number, 'run')} of the task {row.job_type!r} in the queue "
                f"{row.queue!r} went back, and waits: {one_line(str(row.why)).rstrip('.')}",
                "Deploy this code to the engine's workers. Then their runs begin by themselves.",
            )


def _engine(name: str, executor: Executor, queues: list[str]) -> Iterator[Finding]:
    try:
        waiting = {queue: executor.waiting(queue) for queue in queues}
        problems = executor.check(queues)
    except Exception as error:
        what = one_line(f"{name} cannot be reached: {type(error).__name__}: {error}")
        yield Finding("engine", "error", what, _TODO)
        return
    for problem in problems:
        yield Finding("engine", "error", one_line(problem), _TODO)
    if not problems:
        parts = ", ".join(f"{queue} ({number} waiting)" for queue, number in waiting.items())
        yield Finding("engine", "ok", f"{name} executes {parts}")
