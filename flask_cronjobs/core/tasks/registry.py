"""The tasks and definitions that code declares, independent of an app."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...config import Settings
from ...errors import TaskError, UnknownTask
from ...schedule import Schedule
from ...text import did_you_mean
from ...types import JSON, Catchup, Overlap
from ..new_run import new_run
from .declared_task import DeclaredTask
from .options import AS_THE_TASK_SAYS, Around, RunPolicy, check_name, check_options
from .payload import payload_text
from .rate import Rate


def name_of(task: object) -> str:
    """Return the name of *task*, which is a task or already a name.

    :raises TypeError: *task* is neither.
    """
    if isinstance(task, DeclaredTask):
        return task.name
    if isinstance(task, str):
        return task
    raise TypeError(
        f"{task!r} is not a task. Give a task that @jobs.task made, or the name of one."
    )


@dataclass(kw_only=True, slots=True)
class DefinitionSpec(RunPolicy):
    """A definition from code or `add_definition`, with one field for each column."""

    name: str
    schedule: str
    timezone: str
    payload: dict[str, JSON]
    catchup: Catchup = "latest"
    overlap: Overlap = "skip"
    ping_url: str | None = None

    def __repr__(self) -> str:
        return f"<DefinitionSpec {self.name}>"  # Its payload and its URL are secrets.


class Declaration(NamedTuple):
    """A definition as a task declares it, before an app's defaults apply."""

    name: str
    task: DeclaredTask
    schedule: str
    timezone: str | None
    payload: dict[str, JSON]
    catchup: Catchup
    overlap: Overlap
    ping_url: str | None = None

    def __repr__(self) -> str:
        return f"<Declaration {self.name}>"  # Its payload and its URL are secrets.

    def spec(self, settings: Settings) -> DefinitionSpec:
        """Return the definition with one app's defaults."""
        run = new_run(self.task, self.payload, AS_THE_TASK_SAYS, settings, unique=False)
        return DefinitionSpec(
            name=self.name,
            schedule=self.schedule,
            timezone=self.timezone or settings.timezone,
            catchup=self.catchup,
            overlap=self.overlap,
            ping_url=self.ping_url,
            payload=json.loads(run.payload),
            **run.policy,
        )


class Registry:
    """The tasks and definitions that code declares, by name.

    :ivar keyed: the names of the tasks with a concurrency key.
    :ivar ordered: the names of the tasks with a strict order.
    """

    def __init__(self) -> None:
        self.keyed: set[str] = set()
        self.ordered: set[str] = set()
        self.tasks: dict[str, DeclaredTask] = {}
        self.declarations: dict[str, Declaration] = {}
        self.around: list[Around] = []

    def add(self, task: DeclaredTask) -> None:
        """Add *task*.

        :raises TaskError: another task has its name.
        """
        if task.name in self.tasks:
            raise TaskError(
                f"Two tasks are called {task.name!r}: {_where(self.tasks[task.name].func)} and "
                f"{_where(task.func)}. Give one of them another name=."
            )
        self._check_rate(task)
        self.tasks[task.name] = task
        if task.concurrency_limit is not None:
            self.keyed.add(task.name)
        if task.options.order is not None:
            self.ordered.add(task.name)

    def _check_rate(self, task: DeclaredTask) -> None:
        """Check that tasks with the same rate key have the same rate.

        :raises TaskError: the rates differ.
        """
        key = task.options.rate_key
        for other in self.tasks.values() if key is not None else ():
            if other.options.rate_key == key and other.rate != task.rate:
                raise TaskError(
                    f"The tasks {other.name} and {task.name} share the rate_key {key!r}, so they "
                    "need the same rate and burst. Give both the same, or one of them another key."
                )

    def declare(self, declaration: Declaration) -> None:
        """Add a definition.

        :raises TaskError: another definition has its name.
        """
        if declaration.name in self.declarations:
            raise TaskError(
                f"Two definitions are called {declaration.name!r}. Give one of them another name=."
            )
        self.declarations[declaration.name] = declaration

    @property
    def rates(self) -> dict[str, Rate]:
        """The rates of the tasks that have one, by the task's name."""
        return {name: task.rate for name, task in self.tasks.items() if task.rate is not None}

    def get(self, name: str) -> DeclaredTask:
        """Return the task called *name*.

        :raises UnknownTask: there is none; the message suggests similar names.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UnknownTask(
                f"{name!r} is not a task's name. Give a string, or call enqueue() on the task "
                "itself."
            )
        try:
            return self.tasks[name]
        except KeyError:
            raise UnknownTask(
                f"No task is called {name!r}.{did_you_mean(name, self.tasks)}"
            ) from None

    def advice(self, name: str | None) -> str:
        """Return a hint for when no run of the task *name* was found: it may be misspelled."""
        if name is None or name in self.tasks:
            return ""
        return f"This app's code declares no task {name}.{did_you_mean(name, self.tasks)}"


def declaration(
    task: DeclaredTask,
    cron: str,
    name: str,
    payload: Mapping[str, object] | None,
    timezone: str | None,
    catchup: Catchup,
    overlap: Overlap,
    ping: str | None = None,
) -> Declaration:
    """Return a checked definition for *task*; see `Task.schedule`.

    :raises ScheduleError: *cron* or *timezone* cannot be read.
    :raises TaskError: a name or a policy is not valid.
    :raises TypeError: the handler does not take *payload*.
    :raises PayloadError: *payload* is not plain JSON.
    """
    Schedule(cron, "UTC" if timezone is None else timezone)
    check_name(name, "definition")
    options = {"catchup": catchup, "overlap": overlap, "ping": ping}
    check_options(options.items(), f"The definition {name!r}: ")
    plain = _plain_payload(task, name, payload or {})
    return Declaration(name, task, cron, timezone, plain, catchup, overlap, ping)


def _plain_payload(task: DeclaredTask, name: str, payload: Mapping[str, object]) -> dict[str, JSON]:
    # Check this when the code is imported: in a tick, an error would stop every definition.
    try:
        arguments = task.payload_from(payload)
    except TypeError as error:
        message = f"The schedule {name!r}: {error}. Give its arguments as payload={{…}}."
        raise TypeError(message) from None
    # Keep it as the database returns it, with lists for tuples: otherwise each tick would see a
    # change.
    text = payload_text(task.arguments.encode(arguments), 1 << 30)
    plain: dict[str, JSON] = json.loads(text)
    task.keys_for(plain)
    task.arguments.forget()  # Names defined further down are not known yet.
    return plain


def _where(func: Callable[..., object]) -> str:
    code = getattr(func, "__code__", None)
    line = f" (line {code.co_firstlineno})" if code else ""
    return f"{func.__module__}.{getattr(func, '__qualname__', func)}{line}"
