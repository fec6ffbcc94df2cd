"""Check what the app gives us, tasks above all; each message says what to write instead."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast, get_args

from ..errors import SetupError, TaskError
from ..text import did_you_mean
from ..types import OnDead, Order, is_number, is_url, is_whole
from .options import Around, AroundHook, EnqueueOptions, TaskOptions, check_text, is_key
from .retry import check_attempts, check_retry, why_uncallable

M = TypeVar("M", bound=Callable[..., Any])
#: The longest timeout of a task, in seconds (30 days).
MAX_TIMEOUT = 30 * 86400.0


def check_task(func: Callable[..., object], name: str, options: TaskOptions) -> None:
    """Check a task's function, name and options.

    :raises TaskError: one of them is not valid.
    """
    if not callable(func):
        raise TaskError(
            f"task() was given {func!r}, which is not a function. Write @jobs.task, or give "
            "options by keyword: @jobs.task(schedule=…, name=…)."
        )
    if name == "<lambda>":
        raise TaskError("A lambda has no name for the table. Give one: name=….")
    check_name(name, "task")
    _refuse_method(func)
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TaskError(
            f"The handler {name} has a yield, so a call runs none of its lines. Write it without; "
            "what goes around handlers, with one yield, is a hook: see CronJobs.around."
        )
    parameters = inspect.signature(func).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TaskError(
                f"The handler {name} takes {parameter}, which a payload cannot name. Make it a "
                "parameter that can be passed by keyword."
            )
    check_retry(options.retry)
    if options.timeout is not None and not _is_timeout(options.timeout):
        raise TaskError(f"{name}: timeout is {options.timeout!r}. Give seconds, at most 30 days.")
    if options.concurrency is not None:
        check_attempts(options.concurrency, f"{name}: concurrency")
    if options.keep_output is not None and options.keep_output not in (True, False):
        raise TaskError(f"{name}: keep_output is {options.keep_output!r}. Give True or False.")
    _check_async_at_once(func, name, options)
    EnqueueOptions(
        queue=options.queue, priority=options.priority, unique_while=options.unique_while
    ).check()
    _check_order(name, options)
    for option in ("concurrency_key", "unique"):
        _check_key_format(name, option, getattr(options, option), parameters)
    if options.unique_while is not None and options.unique is None:
        raise TaskError(f"{name}: unique_while has no effect without unique. Give both.")


def _check_order(name: str, options: TaskOptions) -> None:
    if options.order is None:
        if options.on_dead is not None:
            raise TaskError(
                f"{name}: on_dead has no effect without order='strict'. Give both, or remove it."
            )
        return
    check_choice(f"{name}: order", options.order, get_args(Order))
    if options.on_dead is not None:
        check_choice(f"{name}: on_dead", options.on_dead, get_args(OnDead))
    if options.concurrency_key is None:
        raise TaskError(
            f"{name}: order='strict' needs a concurrency_key, whose runs are in order. Give one, "
            "such as 'account:{account_id}', or a text without braces to order all runs of the "
            "task."
        )
    if options.concurrency not in (None, 1):
        raise TaskError(
            f"{name}: concurrency is {options.concurrency!r}, but with order='strict' one run of a "
            "key is at work at a time. Remove concurrency, or order."
        )


def _check_async_at_once(func: Callable[..., object], name: str, options: TaskOptions) -> None:
    if options.async_at_once is None:
        return
    if not is_whole(options.async_at_once, 1, 1000):
        raise TaskError(
            f"{name}: async_at_once is {options.async_at_once!r}. Give a whole number from 1 to "
            "1000."
        )
    if options.atomic or not inspect.iscoroutinefunction(func):
        why = "with atomic=True" if options.atomic else "that is no async def"
        raise TaskError(
            f"{name}: async_at_once has no effect on a handler {why}: its runs are one at a time "
            "in each process. Remove it; concurrency= limits runs over all processes."
        )


def as_around(hook: AroundHook) -> Around:
    """Return *hook* as a function that returns a context manager.

    :raises TaskError: it is none, is asynchronous, or does not take the run.
    """
    if inspect.isasyncgenfunction(hook) or inspect.iscoroutinefunction(hook):
        name = getattr(hook, "__name__", repr(hook))
        raise TaskError(
            f"The hook {name} is an async def. Write a plain function with one yield: it goes "
            "around async handlers, too."
        )
    if not callable(hook):
        raise TaskError(
            f"A hook around handlers is {hook!r}. Give a function that takes the run and has one "
            "yield, or that returns a context manager."
        )
    if why := why_uncallable(hook, "the run"):
        raise TaskError(
            f"The hook {getattr(hook, '__name__', repr(hook))} cannot be called with the run: "
            f"{why}. Let it take one argument, the run."
        )
    return cast("Around", contextmanager(hook) if inspect.isgeneratorfunction(hook) else hook)


def _refuse_method(func: Callable[..., object]) -> None:
    """Refuse a function of a class's body whose first argument is the object or the class."""
    qualified: str = getattr(func, "__qualname__", "")
    within = qualified.rpartition(".")[0]
    first = next(iter(inspect.signature(func).parameters), None)
    if within and not within.endswith("<locals>") and first in ("self", "cls"):
        raise TaskError(
            f"{qualified} is a method: a run has no object to call it on. Make it a function of "
            f"the module, or a @staticmethod without {first}."
        )


def given_by_position(once: M) -> M:
    """Say how to call *once* where Python would only say that its key and function are missing."""

    @wraps(once)
    def call(self: object, /, *given: Any, **kwargs: Any) -> Any:
        if len(given) < 2:
            raise TypeError(
                "once() takes the key and the function by position: once('mail:5', send, to=…). "
                "What is given by name, also key= and func=, is an argument of the function."
            )
        return once(self, *given, **kwargs)

    return cast("M", call)


def check_unscheduled(
    name: str,
    payload: Mapping[str, object] | None,
    timezone: str | None,
    catchup: str,
    overlap: str,
    ping: object,
) -> None:
    """Check that a task without a schedule has no options of one, which would have no effect.

    :raises TaskError: it has some.
    """
    given = {
        "payload": payload is not None,
        "timezone": timezone is not None,
        "catchup": catchup != "latest",
        "overlap": overlap != "skip",
        "ping": ping is not None,
    }
    idle = [option for option, is_given in given.items() if is_given]
    if idle:
        raise TaskError(
            f"The task {name} has {' and '.join(idle)}, but no schedule. Give schedule=, or give "
            f"{'it' if len(idle) == 1 else 'them'} to {name}.schedule()."
        )


def check_upgrade(name: str, func: object, known: object) -> None:
    """Check a function that takes payloads of older code to today's.

    :param known: the one that the task has already.
    :raises TaskError: it is none, or not the first.
    """
    if known is not None or inspect.iscoroutinefunction(func) or not _takes(func, {}):
        raise TaskError(
            f"An upgrade of {name} is {func!r}. Give one plain function, which takes a payload of "
            "whatever older code, a dict, and returns another."
        )


def _check_key_format(
    name: str, option: str, key: str | None, parameters: Iterable[inspect.Parameter]
) -> None:
    if key is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = {parameter.name for parameter in parameters}
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(key) if field is not None]
    except ValueError as error:
        raise TaskError(
            f"{name}: {option} {key!r} is not a format text: {error}. Write arguments in "
            "braces, such as 'user:{user_id}', and double each literal brace."
        ) from None
    for field in fields:
        argument = field.split(".")[0].split("[")[0]
        if argument not in known:
            hint = did_you_mean(argument, known) if known else " It takes no arguments."
            raise TaskError(
                f"{name}: {option} {key!r} names {argument!r}, which the handler does not "
                f"take.{hint}"
            )


def _is_timeout(value: object) -> bool:
    return is_number(value, 0, MAX_TIMEOUT) and value > 0


def check_name(name: object, what: str) -> str:
    """Return *name*, checked to be the name of a task or a definition.

    :param what: which of the two, for the message.
    :raises TaskError: it is not a text of 1 to 200 printable characters.
    """
    return check_text(f"The {what} name", name, 200)


def check_ping(name: str, ping: object) -> None:
    """Check the ping URL of the definition *name*.

    :raises TaskError: it is no URL; the message does not show it, since it is a secret.
    """
    if ping is not None and not (is_url(ping) and is_key(ping, 1000)):
        raise TaskError(
            f"The ping of the definition {name!r} is not a URL. Give one that starts with http:// "
            "or https://, or None for no ping."
        )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check that *value* is one of *choices*.

    :param name: the option's name, for the message.
    :raises TaskError: it is not.
    """
    if value not in choices:
        raise TaskError(f"{name} is {value!r}. Write one of {', '.join(map(repr, choices))}.")


def check_access(authorize: object, actor: object) -> None:
    """Check what decides who may see the pages.

    :raises SetupError: it is no function, or takes something else.
    """
    what = "a function that takes 'read' or 'act' and returns whether the user may"
    if not (authorize is None or _takes(authorize, "read")):
        raise SetupError(
            f"authorize is {authorize!r}. Give {what}; without one the pages are closed, except in "
            "debug mode."
        )
    if not (actor is None or _takes(actor)):
        raise SetupError(
            f"actor is {actor!r}. Give a function that takes nothing and returns the user's name."
        )


def _takes(function: object, *arguments: object) -> bool:
    """Return whether *function* can be called with *arguments*, as far as it tells."""
    return callable(function) and why_uncallable(function, *arguments) is None
