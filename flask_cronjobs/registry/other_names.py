"""Names that users bring from other packages: each is answered by what to write here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from ..text import did_you_mean

M = TypeVar("M", bound=Callable[..., Any])

_ATTEMPTS = "retry=5 for five attempts in all, or retry=Retry(max_attempts=5, …)"
_BACKOFF = "retry=Retry(base=…, backoff=…)"
_TIMEOUT = "timeout=…, in seconds"
#: Of ``@jobs.task(…)``.
OF_TASK: Mapping[str, str] = {
    **dict.fromkeys(("cron", "crontab", "run_every", "trigger"), "schedule='0 7 * * *'"),
    **dict.fromkeys(("tz", "time_zone", "zone"), "timezone='Europe/Berlin'"),
    **dict.fromkeys(("max_retries", "retries", "max_attempts", "max_tries"), _ATTEMPTS),
    **dict.fromkeys(("retry_delay", "retry_backoff", "default_retry_delay", "backoff"), _BACKOFF),
    **dict.fromkeys(("autoretry_for", "retry_for", "throws"), "retry=Retry(on=…, not_on=…)"),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), _TIMEOUT),
    "bind": "current_run, which any handler can import and ask",
    "max_instances": "concurrency=…",
    "args": "payload={…}, the keyword arguments of scheduled runs",
    "kwargs": "payload={…}, the keyword arguments of scheduled runs",
    "misfire_grace_time": "catchup='latest', 'all' or 'none'",
}
_AT_THE_TASK = "it at the task: @jobs.task(timeout=…)"
#: Of ``task.using(…)``.
OF_USING: Mapping[str, str] = {
    **dict.fromkeys(("countdown", "schedule_in", "defer_by"), "delay=…, in seconds"),
    **dict.fromkeys(("eta", "at", "schedule_at", "scheduled", "when"), "run_at=…, an aware time"),
    **dict.fromkeys(("timeout", "time_limit", "job_timeout"), _AT_THE_TASK),
    **dict.fromkeys(("max_retries", "retries", "retry"), "max_attempts=…, which counts them all"),
    **dict.fromkeys(("key", "unique", "unique_key", "task_id", "job_id"), "idempotency_key=…"),
    **dict.fromkeys(("lock", "queueing_lock"), "idempotency_key=…, unique_while='pending'"),
}
#: Of a task itself.
OF_METHODS: Mapping[str, str] = {
    **dict.fromkeys(("delay", "send", "defer", "submit", "queue", "call_async"), "enqueue(…)"),
    **dict.fromkeys(
        ("apply_async", "send_with_options", "configure", "options_for", "enqueue_in"),
        "using(delay=…).enqueue(…)",
    ),
    **dict.fromkeys(("enqueue_at", "apply_at"), "using(run_at=…).enqueue(…)"),
}


def answering(others: Mapping[str, str]) -> Callable[[M], M]:
    """Let a method answer keywords that it does not have: one in *others*, or a misspelled one."""

    def decorate(method: M) -> M:
        known = frozenset(inspect.signature(method).parameters) - {"self", "func"}

        @wraps(method)
        def call(*args: Any, **given: Any) -> Any:
            if not known.issuperset(given):
                strange = next(name for name in given if name not in known)
                raise TypeError(f"{method.__name__}() has no {strange!r}.{_told(strange)}")
            return method(*args, **given)

        def _told(name: str) -> str:
            return f" Write {others[name]}." if name in others else did_you_mean(name, known)

        return cast("M", call)

    return decorate


def options_go_before(task: str, strange: Iterable[str], options: frozenset[str]) -> str:
    """Return a sentence if one of *strange*, arguments that *task* does not take, is an option."""
    found = next((name for name in strange if name in options), None)
    if found is None:
        return ""
    return f". Options of the run stand before it: {task}.using({found}=…).enqueue(…)"
