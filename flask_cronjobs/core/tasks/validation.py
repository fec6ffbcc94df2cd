"""Check what the app gives us, tasks above all; each message says what to write instead."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from ...config import in_seconds
from ...errors import SetupError, TaskError
from ...text import did_you_mean
from .arguments import signature_of
from .options import (
    SCHEDULE_OPTIONS,
    Around,
    AroundHook,
    EnqueueOptions,
    TaskOptions,
    check_name,
    check_options,
)
from .rate import MOST_REST, read_rate
from .retry import check_retry, why_uncallable

M = TypeVar("M", bound=Callable[..., Any])

#: What to write instead of names that users know from other packages: options of a task, options of
#: its ``using``, and its methods.
_OTHER_NAMES = {
    "task": {
        "cron crontab run_every trigger": "schedule='0 7 * * *'",
        "tz time_zone zone": "timezone='Europe/Berlin'",
        "max_retries retries max_attempts max_tries": (
            "retry=5 for five attempts in all, or retry=Retry(max_attempts=5, …)"
        ),
        "retry_delay retry_backoff default_retry_delay backoff": "retry=Retry(base=…, backoff=…)",
        "autoretry_for retry_for throws": "retry=Retry(on=…, not_on=…)",
        "time_limit soft_time_limit job_timeout": "timeout=…, in seconds",
        "bind": "current_run in the handler, and import it from flask_cronjobs",
        "max_instances": "concurrency=…",
        "args kwargs": "payload={…}, the keyword arguments of scheduled runs",
        "misfire_grace_time": "catchup='latest', 'all' or 'none'",
    },
    "using": {
        "countdown schedule_in defer_by": "delay=…, in seconds",
        "eta at schedule_at scheduled when": "run_at=…, an aware time",
        "time_limit job_timeout": "timeout=… in the task's decorator: @jobs.task(timeout=…)",
        "max_retries retries retry": "max_attempts=…, which counts all attempts",
        "key unique unique_key task_id job_id": "idempotency_key=…",
        "lock queueing_lock": "idempotency_key=…, unique_while='pending'",
    },
    "method": {
        "delay send defer submit queue call_async": "enqueue(…)",
        "apply_async send_with_options configure options_for enqueue_in": (
            "using(delay=…).enqueue(…)"
        ),
        "enqueue_at apply_at": "using(run_at=…).enqueue(…)",
    },
}


def written_instead(where: str, name: str) -> str | None:
    """Return what to write instead of *name*; None if there is no advice for it.

    :param where: ``task``, ``using`` or ``method``.
    """
    table = _OTHER_NAMES[where].items()
    advice = next((instead for names, instead in table if name in names.split()), None)
    if advice is None and where == "using" and name in _OF_TASKS:
        return f"it in the task's decorator: @jobs.task({name}=…)"
    return advice


#: Options of a task; those that ``using`` does not take cannot be overridden for a single run.
_OF_TASKS = {*TaskOptions._fields, "schedule", *SCHEDULE_OPTIONS} - {"payload"}
#: Options that have no effect without another option, each with that option and an example of it.
_NEEDS = {
    "rate_key": ("rate", "rate='100/minute'"),
    "burst": ("rate", "rate='100/minute'"),
    "unique_while": ("unique", "unique='import:{shop_id}'"),
}


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
        raise TaskError("A lambda has no name of its own. Give the task one: name=….")
    check_name(name, "task")
    _refuse_method(func)
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TaskError(
            f"The handler {name} has a yield, so a call runs none of its lines. Remove the yield. "
            "To wrap handlers in a function with one yield, use a hook: see CronJobs.around."
        )
    parameters = signature_of(func).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TaskError(
                f"The handler {name} takes {parameter}, which a payload cannot name. Make it a "
                "parameter that can be passed by keyword."
            )
    check_retry(options.retry)
    check_options(zip(options._fields, options, strict=True), f"{name}: ")
    for misfit in _misfits(func, options):
        raise TaskError(f"{name}: {misfit}")
    for option in ("concurrency_key", "unique", "rate_key", "label"):
        _check_key_format(name, option, getattr(options, option), parameters)


def _misfits(func: Callable[..., object], options: TaskOptions) -> Iterator[str]:
    """Yield a sentence on each pair of options that do not go together."""
    for option, (other, example) in _NEEDS.items():
        if getattr(options, option) is not None and getattr(options, other) is None:
            yield f"{option} has no effect without {example}. Give both, or remove it."
    if options.order is not None and options.concurrency_key is None:
        yield (
            "order='strict' needs a concurrency_key, since it orders the runs of each key. Give "
            "one, such as 'account:{account_id}', or a string without braces to order all runs of "
            "the task."
        )
    if options.order is not None and options.concurrency not in (None, 1):
        yield (
            f"concurrency is {options.concurrency!r}, but with order='strict' only one run of a "
            "key runs at a time. Remove concurrency, or order."
        )
    if options.rate is not None and read_rate(options.rate, options.burst).rest > MOST_REST:
        yield (
            f"with rate={options.rate!r}, it takes more than ten years until a burst of "
            f"{options.burst or 1} is available again. Give a smaller burst, or a higher rate."
        )
    is_alone = options.atomic or not inspect.iscoroutinefunction(func)
    if options.async_at_once is not None and is_alone:
        why = "with atomic=True" if options.atomic else "that is not an async def"
        yield (
            f"async_at_once has no effect on a handler {why}: each process runs one at a time. "
            "Remove it; concurrency= limits runs over all processes."
        )


def task_options(**options: Any) -> TaskOptions:
    """Return the options of a call of `CronJobs.task`, converted to the form that is kept.

    :raises TaskError: ``around`` is not a hook.
    """
    options["timeout"] = in_seconds(options.get("timeout"))
    if (hook := options.get("around")) is not None:
        options["around"] = as_around(hook)
    return TaskOptions(**options)


def as_around(hook: AroundHook) -> Around:
    """Return *hook* as a function that returns a context manager.

    :raises TaskError: *hook* is asynchronous, or cannot be called with the run.
    """
    if inspect.isasyncgenfunction(hook) or inspect.iscoroutinefunction(hook):
        name = getattr(hook, "__name__", repr(hook))
        raise TaskError(
            f"The hook {name} is an async def. Write a plain function with one yield: it "
            "wraps async handlers, too."
        )
    if why := why_uncallable(hook, "the run"):
        raise TaskError(
            f"The hook {getattr(hook, '__name__', repr(hook))} cannot be called with the run: "
            f"{why}. Give a function that takes one argument, the run."
        )
    return cast("Around", contextmanager(hook) if inspect.isgeneratorfunction(hook) else hook)


def _refuse_method(func: Callable[..., object]) -> None:
    """Refuse a method: a function of a class whose first parameter is ``self`` or ``cls``."""
    qualified_name: str = getattr(func, "__qualname__", "")
    within = qualified_name.rpartition(".")[0]
    first_parameter = next(iter(inspect.signature(func).parameters), None)
    if within and not within.endswith("<locals>") and first_parameter in ("self", "cls"):
        raise TaskError(
            f"{qualified_name} is a method: a run has no object to call it on. Make it a "
            f"module-level function, or a @staticmethod without {first_parameter}."
        )


def given_by_position(method: M) -> M:
    """Make *method* say how to call it, where Python would only name the missing arguments."""
    name = getattr(method, "__name__", "")

    @wraps(method)
    def call(self: object, /, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2:
            raise TypeError(
                f"{name}() takes a string and the function by position: {name}('mail:5', send, "
                "to=…). Arguments that are given by name, even func=, go to the function."
            )
        return method(self, *args, **kwargs)

    return cast("M", call)


def check_unscheduled(name: str, options: Mapping[str, object]) -> None:
    """Check that a task without a schedule has no *options* of one, which would have no effect.

    :raises TaskError: it has some.
    """
    idle = [option for option, value in options.items() if value != SCHEDULE_OPTIONS[option]]
    if idle:
        raise TaskError(
            f"The task {name} has {' and '.join(idle)}, but no schedule. Give schedule=, or give "
            f"{'it' if len(idle) == 1 else 'them'} to {name}.schedule()."
        )


def check_upgrade(name: str, func: object, known: object) -> None:
    """Check a function that converts payloads of older code to today's.

    :param known: the upgrade that the task already has, if any.
    :raises TaskError: *func* cannot be called with a payload, or the task has an upgrade.
    """
    if known is not None:
        raise TaskError(
            f"{name} has an upgrade already: {known!r}. Convert all payloads of older code in one "
            "function."
        )
    if inspect.iscoroutinefunction(func) or why_uncallable(func, {}):
        raise TaskError(
            f"The upgrade of {name} is {func!r}. Give a plain function that takes any payload of "
            "older code, as a dict, and returns one for today's handler."
        )


def _check_key_format(
    name: str, option: str, key: str | None, parameters: Iterable[inspect.Parameter]
) -> None:
    if key is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {parameter.name for parameter in parameters}
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(key) if field is not None]
    except ValueError as error:
        raise TaskError(
            f"{name}: {option} {key!r} is not a format string: {error}. Write arguments in "
            "braces, such as 'user:{user_id}', and double each literal brace."
        ) from None
    for field in fields:
        argument = field.split(".")[0].split("[")[0]
        if argument not in names:
            hint = did_you_mean(argument, names) if names else " It takes no arguments."
            raise TaskError(
                f"{name}: {option} {key!r} names {argument!r}, which the handler does not "
                f"take.{hint}"
            )


def check_access(authorize: object, actor: object) -> None:
    """Check the function that decides who may see the pages, and the one that names the user.

    :raises SetupError: one of them is not a function, or takes other arguments.
    """
    expected = "a function that takes 'read' or 'act' and returns whether the user may"
    if authorize is not None and why_uncallable(authorize, "read"):
        raise SetupError(
            f"authorize is {authorize!r}. Give {expected}; without one the pages are closed, "
            "except in debug mode."
        )
    if actor is not None and why_uncallable(actor):
        raise SetupError(
            f"actor is {actor!r}. Give a function that takes nothing and returns the user's name."
        )


def answering(keywords: Collection[str], where: str) -> Callable[[M], M]:
    """Make a method say what to write instead of a misspelled keyword, or one of another package.

    :param keywords: the keywords that it takes.
    :param where: the same as for `written_instead`.
    """

    def decorate(method: M) -> M:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            for keyword in kwargs.keys() - keywords:
                instead = written_instead(where, keyword)
                advice = f" Write {instead}." if instead else did_you_mean(keyword, keywords)
                raise TypeError(f"{method.__name__}() has no {keyword!r}.{advice}")
            return method(*args, **kwargs)

        return cast("M", call)

    return decorate


def options_go_before(task: str, unknown: Iterable[str]) -> str:
    """Return a hint if one of *unknown*, arguments that *task* does not take, is an option."""
    option = next((name for name in unknown if name in EnqueueOptions._fields), None)
    if option is None:
        return ""
    return f". Give the run's options to using(): {task}.using({option}=…).enqueue(…)"
