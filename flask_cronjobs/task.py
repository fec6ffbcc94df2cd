"""Tasks: handlers that can be enqueued and scheduled, with their own signatures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .config import in_seconds
from .core.app_state import state_of
from .core.tasks.arguments import Upgrade
from .core.tasks.declared_task import DeclaredTask
from .core.tasks.options import SCHEDULE_OPTIONS, EnqueueOptions, TaskOptions
from .core.tasks.registry import Registry, declaration
from .core.tasks.validation import answering, check_upgrade, written_instead
from .errors import PayloadError
from .features.typed import arguments_of
from .log import logger
from .types import Catchup, Overlap, Replace, RunIds, UniqueWhile

if TYPE_CHECKING:
    from .models import JobRun

P = ParamSpec("P")
R = TypeVar("R")
U = TypeVar("U", bound=Upgrade)


class Task(DeclaredTask, Generic[P, R]):
    """A handler that can be enqueued and scheduled. Calling it calls the function.

    `CronJobs.task` makes it. It keeps the handler's signature for type checkers.
    """

    #: Whether a copy that `using` made is still unused; None if the task is not a copy.
    _is_idle: bool | None = None

    def __init__(
        self,
        func: Callable[P, R],
        name: str,
        options: TaskOptions,
        registry: Registry,
        enqueue_options: EnqueueOptions | None = None,
    ) -> None:
        super().__init__(func, name, options, arguments_of(func))
        self._registry = registry
        self._enqueue_options = enqueue_options or EnqueueOptions()
        self.__doc__ = func.__doc__
        self.__name__: str = getattr(func, "__name__", name)
        self.__module__ = func.__module__
        self.__wrapped__ = func

    @property
    def enqueue_options(self) -> EnqueueOptions:
        """The options that `using` has set on this copy.

        >>> send_report.using(priority=5, commit=True).enqueue(1, "2026-W03").priority
        5
        """
        self._use()
        return self._enqueue_options

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler directly, without a run.

        :returns: what the handler returns.
        :raises TypeError: this is a copy that `using` made.

        >>> send_report(1, "2026-W03")
        'sent 2026-W03 to 1'
        """
        if self._is_idle is not None:
            self._is_idle = False
            raise TypeError(
                f"{self.name}.using(…) is called like a function. To enqueue a run, write "
                f"{self.name}.using(…).enqueue(…); to call the function here, {self.name}(…)."
            )
        value: R = self.func(*args, **kwargs)
        return value

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __del__(self) -> None:
        if self._is_idle and not sys.is_finalizing():
            logger.warning("%s.using(…) enqueues nothing by itself: call its enqueue(…)", self.name)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (instead := written_instead("method", name)) is None:
                raise AttributeError(f"A task has no {name!r}", name=name, obj=self)
            raise AttributeError(f"A task has no {name!r}. Write {self.name}.{instead}.")

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobRun:
        """Enqueue a run with these arguments, in ``db.session``: your commit makes it exist.

        :returns: the run, or the run that already holds its idempotency key. ``is_new`` says
            whether this call inserted it.
        :raises KeyConflict: a run of another task holds the idempotency key.
        :raises TypeError: the handler does not take these arguments.
        :raises PayloadError: an argument does not fit its annotation, or is not plain JSON.
        :raises TaskError: a key of the task cannot be made from these arguments; or `using` gave
            *unique_while* or *replace* without an idempotency key.
        :raises TablesMissing: the job tables do not exist.

        >>> run = send_report.enqueue(1, week="2026-W03")
        >>> db.session.commit()
        >>> run.payload["week"]
        '2026-W03'
        """
        # This import maps the tables, which takes time, and many processes never enqueue.
        from .core.enqueue import enqueue_one

        self._use()
        return enqueue_one(state_of(), self, self.payload(*args, **kwargs), self._enqueue_options)

    def enqueue_many(self, payloads: Iterable[Mapping[str, object]]) -> RunIds:
        """Enqueue a run for each of *payloads* in ``db.session``, a thousand per statement.

        :param payloads: the handler's keyword arguments, one mapping for each run. A generator is
            read a thousand at a time, or to its end if the task is declared with *unique*.
        :returns: the ids of the runs, in the order of *payloads*. If a run already holds an
            idempotency key, its id is returned. ``is_new`` says which runs are new.
        :raises KeyConflict: a run of another task holds an idempotency key.
        :raises TypeError: the handler does not take the arguments of one of *payloads*.
        :raises PayloadError: an argument does not fit its annotation, or is not plain JSON.
        :raises TaskError: no key can be made from one of *payloads*, or `using` gave an option that
            many runs cannot share.
        :raises TablesMissing: the job tables do not exist.

        An error about a payload begins with its position, such as ``payloads[3]``, and then no run
        is enqueued.

        >>> payloads = ({"user_id": id, "week": "2026-W03"} for id in range(1000))
        >>> ids = send_report.enqueue_many(payloads)
        >>> db.session.commit()
        >>> len(ids)
        1000
        """
        from .core.enqueue import enqueue_rows

        self._use()
        is_mapping = isinstance(payloads, Mapping)
        if is_mapping or not hasattr(payloads, "__iter__"):
            kind = "mapping" if is_mapping else type(payloads).__name__
            raise PayloadError(
                f"enqueue_many was given one {kind}. Give a list with a mapping for each run, or "
                "call enqueue() for one run."
            )
        return enqueue_rows(state_of(), self, payloads, self._enqueue_options)

    def _use(self) -> None:
        if self._is_idle:
            self._is_idle = False

    @answering(EnqueueOptions._fields, "using")
    def using(
        self,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        idempotency_key: str | None = None,
        unique_while: UniqueWhile | None = None,
        replace: Replace | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        commit: bool | None = None,
    ) -> Task[P, R]:
        """Return a copy of the task with these options for `enqueue`; all others stay the same.

        :param run_at: the time (aware) from which the run is due.
        :param delay: seconds (a number or a `timedelta`) from now until the run is due, by the
            database's clock.
        :param idempotency_key: a key that at most one run holds, for as long as *unique_while*
            says.
        :param unique_while: how long a run holds its key: while its row is ``"kept"`` (the
            default), while it is ``"pending"`` (has not ended), or while it is ``"waiting"`` (has
            not begun).
        :param replace: updates the waiting run that holds this key, with the new ``"payload"``, the
            new time (``"run_at"``), or both (True). With *replace*, a run holds its key only until
            it begins; after that, a new run is enqueued.
        :param queue: the run's queue; default: the task's.
        :param priority: runs with a higher one are claimed first; default: the task's.
        :param max_attempts: the number of attempts; default: that of the retry policy.
        :param commit: whether to commit ``db.session`` at once.
        :returns: the copy; the task itself stays as it is.
        :raises TaskError: a value is invalid.

        >>> weekly = send_report.using(idempotency_key="send_report:1:2026-W03", delay=300)
        >>> weekly.enqueue(1, "2026-W03").is_new
        True
        >>> weekly.enqueue(1, "2026-W03").is_new
        False
        >>> db.session.commit()
        """
        delay = in_seconds(delay)
        arguments = locals()
        changes = {
            name: arguments[name] for name in EnqueueOptions._fields if arguments[name] is not None
        }
        options = self._enqueue_options._replace(**changes)
        options.check()
        self._use()
        task = copy(self)
        task._enqueue_options, task._is_idle = options, True
        return task

    def upgrade(self, func: U) -> U:
        """Register *func* to convert payloads that older code has stored. Use it as a decorator.

        :param func: takes a stored payload, a dict of JSON values, and returns one that the handler
            takes today. It is called before an attempt, and only if the payload does not fit.
        :returns: *func* itself.
        :raises TaskError: *func* is not a function or is asynchronous, or the task has one already.

        >>> @jobs.task
        ... def greet(name: str):  # Older runs have a customer_id.
        ...     print("Hello,", name)
        >>> @greet.upgrade
        ... def from_ids(payload):
        ...     return {"name": f"customer {payload['customer_id']}"}
        """
        self._use()
        check_upgrade(self.name, func, self.arguments.upgrade)
        self.arguments.upgrade = func
        self.arguments.forget()
        return func

    @answering({"cron", "name", *SCHEDULE_OPTIONS}, "task")
    def schedule(
        self,
        cron: str,
        *,
        name: str,
        payload: Mapping[str, object] | None = None,
        timezone: str | None = None,
        catchup: Catchup = "latest",
        overlap: Overlap = "skip",
        ping: str | None = None,
    ) -> Task[P, R]:
        """Declare a definition, which is another schedule for this task.

        :param cron: five fields, or an alias such as ``@daily``; see `Schedule`.
        :param name: the definition's name, unique in the app.
        :param payload: the handler's keyword arguments for these runs.
        :param timezone: an IANA zone; default ``CRONJOBS_TIMEZONE``.
        :param catchup: which slots run if no tick saw them in time: the ``"latest"`` one, ``"all"``
            or ``"none"``. The others are recorded as skipped.
        :param overlap: whether to ``"skip"`` a slot while an earlier run of the definition has not
            finished, or to ``"allow"`` it.
        :param ping: the URL of a monitor. It is fetched with ``/start`` when an attempt begins,
            unchanged when a run succeeds, and with ``/fail`` when a run ends otherwise.
        :returns: the task itself.
        :raises ScheduleError: *cron* or *timezone* cannot be read.
        :raises TaskError: the name is taken, or *catchup*, *overlap* or *ping* is invalid.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* does not fit the annotations, or is not plain JSON.

        >>> weekly = {"user_id": 1, "week": "the last"}
        >>> send_report.schedule("0 7 * * 1", name="report-1", payload=weekly, catchup="all")
        <Task send_report>
        """
        self._use()
        self._registry.declare(
            declaration(self, cron, name, payload, timezone, catchup, overlap, ping)
        )
        return self
