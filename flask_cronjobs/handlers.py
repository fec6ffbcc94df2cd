"""Handlers and the registry that knows them by name: what code declares, whatever the app."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from .checks import check_choice, check_name, did_you_mean
from .config import Settings
from .errors import TaskError, UnknownTask
from .options import TaskOptions, is_key
from .payload import check_keys, check_payload
from .retry import RetryPolicy, retry_policy
from .schedule import Schedule
from .types import JSON, Catchup, DefinitionSpec, Overlap

#: How long a concurrency key may be, in characters: it is part of an index.
MAX_KEY = 500


class Handler:
    """A function under a task's name: its options, and how a payload calls it.

    :ivar func: the function itself.
    :ivar name: the task's name, ``job_type`` in a row.
    """

    def __init__(self, func: Callable[..., Any], name: str, options: TaskOptions) -> None:
        self.func = func
        self.name = name
        self.options = options
        self._signature = inspect.signature(func)

    def payload(self, *args: object, **kwargs: object) -> dict[str, object]:
        """The payload that a call with these arguments makes.

        :raises TypeError: the handler does not take them.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}{self._strangers(kwargs, str(error))}") from None
        arguments = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        return arguments

    def _strangers(self, given: Iterable[str], said: str) -> str:
        """The unknown arguments that *said* leaves out: where one is missing, Python names none."""
        known = self._signature.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            return ""
        strange = [repr(name) for name in given if name not in known and repr(name) not in said]
        return f"; it does not take {', '.join(strange)}" if strange else ""

    def payload_from(self, payload: Mapping[str, object]) -> dict[str, object]:
        """As `payload`, from a mapping of keyword arguments.

        :raises TypeError: the handler does not take them.
        :raises PayloadError: *payload* is no mapping with texts for keys.
        """
        check_keys(payload)
        return self.payload(**payload)

    def retry_policy(self, default_attempts: int) -> RetryPolicy:
        """The task's retry policy; *default_attempts* where it does not say."""
        return retry_policy(self.options.retry, default_attempts)

    @property
    def concurrency_limit(self) -> int | None:
        """How many runs of one concurrency key may run at once; None: no limit."""
        options = self.options
        if options.concurrency is None and options.concurrency_key is None:
            return None
        return options.concurrency or 1

    def concurrency_key_for(self, payload: Mapping[str, object]) -> str | None:
        """The concurrency key of a run with *payload*; by default, one for the whole task.

        :raises TaskError: the payload lacks what the key names, or makes a key that cannot be kept.
        """
        if self.concurrency_limit is None:
            return None
        if self.options.concurrency_key is None:
            return self.name
        arguments = {
            parameter.name: parameter.default
            for parameter in self._signature.parameters.values()
            if parameter.default is not parameter.empty
        }
        try:
            key = self.options.concurrency_key.format(**{**arguments, **payload})
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise TaskError(
                f"{self._its_key()} cannot be filled in from the payload: {error!r}. Pass what it "
                "names, or let it name what every payload has."
            ) from None
        if not is_key(key, MAX_KEY):
            raise TaskError(
                f"{self._its_key()} makes the key {key[:60]!r}, of {len(key):,} characters. It "
                f"must have 1 to {MAX_KEY} printable ones: let it name an id, or a short code."
            )
        return key

    def _its_key(self) -> str:
        return f"The concurrency_key {self.options.concurrency_key!r} of the task {self.name}"


@dataclass(frozen=True)
class Declaration:
    """A definition as a task declares it, before an app's defaults are known."""

    name: str
    handler: Handler
    schedule: str
    timezone: str | None
    payload: Mapping[str, object]
    catchup: Catchup
    overlap: Overlap

    def spec(self, settings: Settings) -> DefinitionSpec:
        """The definition under one app's defaults."""
        task = self.handler
        checked = check_payload(self.payload, settings.max_payload_bytes)
        # As the row gives it back, a tuple as a list: else each tick would find it changed.
        payload: dict[str, JSON] = json.loads(json.dumps(checked))
        return DefinitionSpec(
            name=self.name,
            job_type=task.name,
            schedule=self.schedule,
            timezone=self.timezone or settings.timezone,
            payload=payload,
            queue=task.options.queue,
            priority=task.options.priority,
            max_attempts=task.retry_policy(settings.max_attempts).max_attempts,
            catchup=self.catchup,
            overlap=self.overlap,
            concurrency_key=task.concurrency_key_for(payload),
            concurrency_limit=task.concurrency_limit,
        )


class Registry:
    """The tasks and definitions that code declares, by name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Handler] = {}
        self.declarations: dict[str, Declaration] = {}

    def add(self, task: Handler) -> None:
        """Add *task*.

        :raises TaskError: another handler has its name.
        """
        if task.name in self.tasks:
            raise TaskError(
                f"Two tasks are called {task.name!r}: {_where(self.tasks[task.name].func)} and "
                f"{_where(task.func)}. Give one of them another name=."
            )
        self.tasks[task.name] = task

    def declare(self, declaration: Declaration) -> None:
        """Add a definition.

        :raises TaskError: another definition has its name.
        """
        if declaration.name in self.declarations:
            raise TaskError(
                f"Two definitions are called {declaration.name!r}. Give one of them another name=."
            )
        self.declarations[declaration.name] = declaration

    def get(self, name: str) -> Handler:
        """The task called *name*.

        :raises UnknownTask: there is none; the message offers those that are close.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UnknownTask(
                f"{name!r} is no task's name. Give its name as a text; a task itself has enqueue()."
            )
        try:
            return self.tasks[name]
        except KeyError:
            raise UnknownTask(
                f"No task is called {name!r}.{did_you_mean(name, self.tasks)}"
            ) from None


def declaration(
    handler: Handler,
    cron: str,
    name: str,
    payload: Mapping[str, object] | None,
    timezone: str | None,
    catchup: Catchup,
    overlap: Overlap,
) -> Declaration:
    """A definition for *handler*'s task, checked; see `Task.schedule`.

    :raises ScheduleError: *cron* or *timezone* cannot be read.
    :raises TaskError: a name or a policy cannot be right.
    :raises TypeError: the handler does not take *payload*.
    :raises PayloadError: *payload* is not plain JSON.
    """
    Schedule(cron, "UTC" if timezone is None else timezone)
    check_choice("catchup", catchup, get_args(Catchup))
    check_choice("overlap", overlap, get_args(Overlap))
    checked = check_name(name, "definition")
    arguments = _arguments(handler, name, payload or {})
    return Declaration(checked, handler, cron, timezone, arguments, catchup, overlap)


def _arguments(handler: Handler, name: str, payload: Mapping[str, object]) -> dict[str, JSON]:
    # What is wrong here must be told here: in a tick it would stop every definition.
    try:
        arguments = handler.payload_from(payload)
    except TypeError as error:
        message = f"The schedule {name!r} cannot call {error}. Give arguments as payload={{…}}."
        raise TypeError(message) from None
    checked = check_payload(arguments, 1 << 30)
    handler.concurrency_key_for(checked)
    return checked


def _where(func: Callable[..., object]) -> str:
    return f"{func.__module__}.{getattr(func, '__qualname__', func)}"
