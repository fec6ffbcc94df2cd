"""The methods of `CronJobs` for operators, and for handlers of long jobs.

Each method imports its modules when it is called, so that an app starts fast.
"""

from __future__ import annotations

import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from .core.app_state import State, state_of
from .core.tasks.options import SCHEDULE_OPTIONS
from .core.tasks.registry import name_of
from .core.tasks.validation import answering, given_by_position
from .errors import MAX_DELAY_SECONDS
from .log import logger
from .types import JSON, BatchCounts, Catchup, Overlap, TickReport

if TYPE_CHECKING:
    from .insights.health import Verdict
    from .insights.run_actions import Change
    from .insights.schedule_actions import Target
    from .models import JobRun
    from .task import Task

T = TypeVar("T")


class OperatorMethods:
    """The methods of `CronJobs` that act on the tables, each in the current app.

    The methods that write commit at once, on a connection of their own, not that of ``db.session``.
    SQLite has only one write lock. While the session holds it, these methods raise `SetupError`, so
    commit the session first. Each method raises `TablesMissing` if the job tables do not exist, and
    `DatabaseTrouble` if the database could not be used.
    """

    def tick(
        self,
        *,
        budget: float | None = None,
        max_runs: int | None = None,
        queues: Sequence[str] = (),
    ) -> TickReport:
        """Run one tick in this thread, for example in a test, a shell or a process of your own.

        :param budget: seconds after which no more runs are claimed; default
            ``CRONJOBS_TICK_BUDGET``.
        :param max_runs: the maximum number of runs to perform, and also of runs to hand over to
            Celery.
        :param queues: the queues to claim from; default: all.
        :returns: the report of the tick.
        :raises TypeError: *queues* is one name, not a list of names.
        :raises ValueError: *max_runs* is not a whole number from 0 up, or *budget* is not finite.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: the database could not be used.

        Any thread may call it, but timeouts and cancelling a running handler need the main thread.

        >>> run = send_report.using(commit=True).enqueue(1, "2026-W03")
        >>> jobs.tick(max_runs=10).succeeded
        1
        """
        from .core.tick import TickOptions, tick
        from .core.uncommitted import uncommitted_runs

        if isinstance(queues, str):
            raise TypeError(f"queues is {queues!r}. Give a list of names: queues=[{queues!r}].")
        if max_runs is not None and (type(max_runs) is not int or max_runs < 0):
            raise ValueError(
                f"max_runs is {max_runs}. Give a whole number, 0 or more, or None for no limit."
            )
        if budget is not None and not math.isfinite(budget):
            raise ValueError(f"budget is {budget}. Give seconds, or None for the setting.")
        state = _writable()
        if runs := uncommitted_runs():
            logger.warning(
                "jobs.tick(): db.session holds enqueued runs that are not committed, so the tick "
                "does not see them: %s. Call db.session.commit() first.",
                runs,
            )
        options = TickOptions(budget=budget, max_runs=max_runs, queues=tuple(queues))
        return tick(state, options)

    def retry(self, run_id: int, payload: Mapping[str, object] | None = None) -> Change:
        """Queue a dead, cancelled or failed run again, with at least one attempt left.

        :param run_id: the run's id.
        :param payload: new keyword arguments; default: unchanged.
        :returns: the change, with the ``run_id``, ``task`` and new ``status``.
        :raises NotFound: there is no such run.
        :raises StateConflict: its status does not allow it, another run holds its idempotency key,
            or *payload* would give a run in strict order another concurrency key.
        :raises UnknownTask: *payload* is given, and this app's code does not declare the task.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* is not plain JSON.

        >>> run = send_report.using(commit=True).enqueue(1, "2026-W03")
        >>> jobs.cancel(run.id).status
        'cancelled'
        >>> jobs.retry(run.id, {"user_id": 1, "week": "2026-W04"}).status
        'queued'
        """
        from .insights.run_actions import RETRY
        from .insights.run_payloads import retry_with

        if payload is None:
            return RETRY.one(_writable(), run_id)
        return retry_with(_writable(), run_id, payload)

    def run_again(self, run_id: int, payload: Mapping[str, object] | None = None) -> int:
        """Queue a new run with the task and arguments of another one, due now.

        :param run_id: the other run's id, whatever its status.
        :param payload: the handler's keyword arguments; default: those of the other run.
        :returns: the new run's id.
        :raises NotFound: there is no such run.
        :raises UnknownTask: this app's code does not declare the other run's task.
        :raises TypeError: the handler does not take the payload.
        :raises PayloadError: *payload* is not plain JSON.

        >>> run = send_report.using(commit=True).enqueue(1, "2026-W03")
        >>> jobs.run_again(run.id) > run.id
        True
        """
        from .insights.run_payloads import run_again

        return run_again(_writable(), run_id, payload)

    def cancel(self, run_id: int) -> Change:
        """Cancel a run. If it is running, its worker interrupts it within seconds.

        :param run_id: the run's id.
        :returns: the change; its status is ``running`` until the worker has interrupted the run.
        :raises NotFound: there is no such run.
        :raises StateConflict: the run has ended already.

        >>> run = send_report.using(commit=True).enqueue(1, "2026-W03")
        >>> jobs.cancel(run.id).status
        'cancelled'
        """

        from .insights.run_actions import CANCEL

        return CANCEL.one(_writable(), run_id)

    def pause(
        self,
        name: str | Task[..., Any] | None = None,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> None:
        """Pause a definition, a queue or a task until `resume`. Give exactly one of them.

        :param name: a definition's name. Its slots are not recorded while it is paused.
        :param queue: a queue. Within a second, workers stop beginning its runs.
        :param task: a task, or its name. All its runs wait, including those of definitions.
        :raises NotFound: no definition or task has that name, or no queue can have it.

        >>> jobs.pause(queue="mail")
        >>> jobs.pause(task=send_report)
        """
        from .insights.schedule_actions import pause

        pause(_writable(), _target(name, queue, task))

    def resume(
        self,
        name: str | Task[..., Any] | None = None,
        *,
        queue: str | None = None,
        task: str | Task[..., Any] | None = None,
    ) -> bool:
        """Resume a definition, a queue or a task. Give exactly one of them.

        :param name: a definition's name. Slots that passed meanwhile are not run.
        :param queue: a queue. The runs that waited in it can begin.
        :param task: a task, or its name. Its runs can begin.
        :returns: False if it was not paused.
        :raises NotFound: no definition has that name.
        :raises ScheduleError: the definition's schedule cannot be read.

        >>> jobs.pause(queue="mail")
        >>> jobs.resume(queue="mail")
        True
        >>> jobs.resume(queue="mail")
        False
        """
        from .insights.schedule_actions import resume

        return resume(_writable(), _target(name, queue, task))

    def run_now(
        self, name: str | Task[..., Any], payload: Mapping[str, object] | None = None
    ) -> int:
        """Queue a run of a definition or a task, due now.

        :param name: the definition's name, or the task's, or the task.
        :param payload: the handler's keyword arguments; default: the definition's own.
        :returns: the run's id.
        :raises NotFound: no definition and no task has that name.
        :raises UnknownTask: this app's code does not declare the definition's task.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* is not plain JSON.

        >>> run_id = jobs.run_now("send_report", {"user_id": 1, "week": "2026-W03"})
        >>> jobs.tick().succeeded
        1
        """
        from .insights.schedule_actions import queue_run

        return queue_run(_writable(), name_of(name), payload).id

    def batch_counts(self, key: str) -> BatchCounts | None:
        """Return the current counts of a batch's runs by outcome.

        :param key: the batch's key.
        :returns: the counts, whose ``finished`` says whether the batch has ended; None if there is
            no such batch.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: the database could not be used.

        >>> with jobs.batch("reports:2026-W03"):
        ...     run = send_report.enqueue(1, "2026-W03")
        >>> db.session.commit()
        >>> counts = jobs.batch_counts("reports:2026-W03")
        >>> print(f"{counts.ended} of {counts.total}")
        0 of 1
        """
        from .insights.batch_views import find_batch

        batch = find_batch(state_of(), key)
        return None if batch is None else batch.counts

    def prune(self, dry_run: bool = False) -> int:
        """Delete the runs that are older than their retention. Ticks also do this.

        :param dry_run: whether to only count the runs.
        :returns: the number of runs.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: the database could not be used.

        >>> jobs.prune(dry_run=True)
        0
        """

        from .insights.prune_actions import prune_all

        return prune_all(_writable(), dry_run)

    def health(self) -> Verdict:
        """Return whether ticks run and due runs start in time.

        :returns: the verdict, with ``ok``, a ``sentence`` that says why, and the ``age`` of the
            last tick in seconds.
        :raises TablesMissing: the job tables do not exist.
        :raises DatabaseTrouble: the database could not be used.

        >>> report = jobs.tick()
        >>> jobs.health().ok
        True
        """
        from .insights.health import read_verdict

        return read_verdict(state_of())

    @answering({"name", "task", "schedule", *SCHEDULE_OPTIONS}, "task")
    def add_definition(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
        schedule: str,
        payload: Mapping[str, object] | None = None,
        timezone: str | None = None,
        catchup: Catchup = "latest",
        overlap: Overlap = "skip",
        ping: str | None = None,
    ) -> bool:
        """Store a definition in the database, for a schedule that is not in the code.

        :param name: the definition's name, unique among all definitions.
        :param task: the task, or its name.
        :param schedule: cron text; see `Schedule`.
        :returns: whether the definition is new.
        :raises ScheduleError: the schedule or zone cannot be read.
        :raises UnknownTask: no task has that name.
        :raises TaskError: code declares a definition of that name, or *catchup*, *overlap* or
            *ping* is invalid.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* is not plain JSON, or too large.

        Use it for schedules that users create, or for a schedule per customer. `Task.schedule`
        describes the other parameters. If an earlier call made a definition of that name, this call
        changes it. If the schedule or zone changes, the next slot is computed again.

        >>> weekly = {"user_id": 7, "week": "the last"}
        >>> jobs.add_definition("report-7", send_report, schedule="0 7 * * 1", payload=weekly)
        True
        >>> jobs.add_definition("report-7", send_report, schedule="0 8 * * 1", payload=weekly)
        False
        """
        from .core.tasks.registry import declaration
        from .task import Task

        state = _writable()
        declared_task = task if isinstance(task, Task) else state.registry.get(name_of(task))
        definition = declaration(
            declared_task, schedule, name, payload, timezone, catchup, overlap, ping
        )
        from .insights.schedule_actions import add_definition

        return add_definition(state, definition.spec(state.settings))

    def remove_definition(self, name: str) -> bool:
        """Remove a definition that `add_definition` made, or that no code declares any more.

        :param name: the definition's name.
        :returns: False if there was none.
        :raises TaskError: this app's code declares it.

        Its runs stay.

        >>> weekly = {"user_id": 7, "week": "the last"}
        >>> jobs.add_definition("report-7", send_report, schedule="0 7 * * 1", payload=weekly)
        True
        >>> jobs.remove_definition("report-7")
        True
        """
        from .insights.schedule_actions import remove_definition

        return remove_definition(_writable(), name_of(name))


def _target(
    name: str | Task[..., Any] | None, queue: str | None, task: str | Task[..., Any] | None
) -> Target:
    """Return the target that the caller has given.

    :raises TypeError: the caller has given none, or several.
    """
    from .insights.schedule_actions import only

    names = [None if item is None else name_of(item) for item in (name, task)]
    target = only(names[0], queue, names[1])
    if target is None:
        raise TypeError("Give exactly one: the name of a definition, queue=… or task=…")
    return target


def _writable() -> State:
    from .db.transactions import refuse_own_lock

    state = state_of()
    refuse_own_lock(state.db.session(), state.bookkeeping())
    return state


class StepMethods:
    """The methods of `CronJobs` for durable steps. All but `signal` work only in handlers.

    Each step needs a name of 1 to 200 characters that is unique within the attempt. To end an
    attempt on purpose, a step raises an `Interruption`, which is not an `Exception`.
    """

    @given_by_position
    def step(
        self,
        name: str,
        func: Callable[..., T],
        /,
        *args: Any,
        step_timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> T:
        """Call *func* unless this run's step *name* has ended; return the recorded or new result.

        :param name: the step's name, such as ``"totals"``.
        :param func: does the work; called with *args* and *kwargs*. It must not commit
            ``db.session``. If it is an async function, await the step.
        :param step_timeout: seconds that *func* may take before the attempt fails as timed out. All
            other arguments go to *func*, even one called ``timeout``.
        :returns: the result of *func* after a round trip through JSON, so that a tuple becomes a
            list.
        :raises SetupError: it is called outside a run, inside another step, with a name that this
            attempt has used, or while ``db.session`` has uncommitted work; or the task has
            ``atomic=True``.
        :raises PayloadError: the result is not JSON, or larger than ``CRONJOBS_MAX_PAYLOAD_BYTES``.
        :raises AtomicCommit: *func* committed.

        The function's work in ``db.session``, its result, and a check that this worker still holds
        the run are committed together. If *func* raises, all of it is rolled back.

        >>> def compute_totals(month):
        ...     print("computing")
        ...     return {"invoices": 3}
        >>> @jobs.task
        ... def close_month(month):
        ...     totals = jobs.step("totals", compute_totals, month)
        ...     if current_run.attempt == 1:
        ...         raise RetryLater(0)
        ...     return totals  # The second attempt has the result of the first.
        >>> run = close_month.using(commit=True).enqueue("2026-01")
        >>> drain(jobs).succeeded
        computing
        1
        >>> run.result
        {'invoices': 3}
        """
        from .features.steps.steps import step

        return cast("T", step(state_of(), name, func, args, kwargs, step_timeout))

    @overload
    def each(
        self, name: str, next_ids: Callable[[Any], Awaitable[Iterable[T]]]
    ) -> AsyncIterator[list[T]]: ...

    @overload
    def each(self, name: str, next_ids: Callable[[Any], Iterable[T]]) -> Iterator[list[T]]: ...

    def each(self, name: str, next_ids: Callable[[Any], Any]) -> Any:
        """Go through many rows in chunks, in a ``for`` loop.

        :param name: the step's name.
        :param next_ids: a function that gets the last id of the previous chunk, or None at first,
            and returns the next ids in ascending order; an empty list at the end. If it is an async
            function, use ``async for``.
        :returns: an iterator of lists of ids.
        :raises SetupError: the same as for `step`; or the ids do not ascend.

        When the loop asks for the next chunk, the body's work in ``db.session`` and the last id
        are committed together. If the body raises an error or leaves the loop, the chunk is rolled
        back, and the run gets a warning. The body must not commit, and must not call other steps.

        >>> def next_ids(after):
        ...     return [1, 2] if after is None else [3] if after == 2 else []
        >>> @jobs.task
        ... def book_invoices():
        ...     for ids in jobs.each("invoices", next_ids):
        ...         print("book", ids)
        >>> run = book_invoices.using(commit=True).enqueue()
        >>> drain(jobs).succeeded
        book [1, 2]
        book [3]
        1
        """
        from .features.steps.steps import each

        return each(state_of(), name, next_ids)

    def sleep(self, name: str, delay: float | timedelta) -> None:
        """End this attempt without counting it; a later attempt continues after this line.

        :param name: the step's name.
        :param delay: seconds (a number or a `timedelta`), at most a year.
        :raises SetupError: the same as for `step`.

        The time begins when the run first reaches this line. While it sleeps, it holds no worker.

        >>> @jobs.task
        ... def remind():
        ...     jobs.sleep("three days", timedelta(days=3))
        ...     print("it is time to pay")
        >>> run = remind.using(commit=True).enqueue()
        >>> drain(jobs, with_delayed=True).succeeded
        it is time to pay
        1
        """
        from .features.steps.steps import pause

        pause(state_of(), "sleep", name, delay)

    def wait(self, name: str, timeout: float | timedelta = MAX_DELAY_SECONDS) -> JSON:
        """Return the payload of the signal *name*; if it has not come yet, end this attempt.

        :param name: the step's name, which is also the signal's.
        :param timeout: seconds (a number or a `timedelta`) from when the run first reaches this
            line; at most a year (366 days), which is the default.
        :returns: the payload; None if no signal came in time.
        :raises SetupError: the same as for `step`.

        The ended attempt is not counted, and while the run waits, it holds no worker. If the signal
        was sent earlier, its payload is returned at once. `signal` has an example.
        """
        from .features.steps.steps import pause

        return pause(state_of(), "wait", name, timeout)

    def signal(self, run: JobRun | int | str, name: str, payload: object = True) -> bool:
        """Send a payload, in ``db.session``, to a run that waits for it or will wait.

        :param run: the run, its id or its idempotency key.
        :param name: the name of the `wait`.
        :param payload: plain JSON, but not None.
        :returns: True if `wait` will return this payload; False if another signal came first, the
            wait timed out, the run ended, or it waits for another signal now, which the log names.
        :raises NotFound: there is no such run.
        :raises PayloadError: *payload* is None, not plain JSON, or too large.

        Your commit sends the signal. If the run is waiting for it, the run is due then.

        >>> @jobs.task
        ... def order(order_id):
        ...     return jobs.wait("approved", timeout=timedelta(days=3))
        >>> run = order.using(commit=True, idempotency_key="order:7").enqueue(7)
        >>> jobs.signal("order:7", "approved", {"by": "ann"})
        True
        >>> db.session.commit()
        >>> drain(jobs).succeeded
        1
        >>> run.result
        {'by': 'ann'}
        """
        from .features.steps.steps import signal

        return signal(state_of(), run, name, payload)
