"""The values of a new run, made from a call of its task.

This module and `tasks.options` do not import `annotations` from ``__future__``: `TYPES` needs the
fields' types, and not their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from ..config import Settings
from .tasks.declared_task import DeclaredTask
from .tasks.options import AS_THE_TASK_SAYS, EnqueueOptions, RunPolicy
from .tasks.payload import payload_text


@dataclass(kw_only=True, slots=True)
class NewRun(RunPolicy):
    """The values of a new run's columns, and the time when it is due.

    :ivar payload: a JSON text.
    :ivar run_at: when the run is due; None if it is due in *delay* seconds.
    """

    payload: str
    idempotency_key: str | None = None
    unique_while: str | None = None
    batch_id: int | None = None
    definition_id: int | None = None
    run_at: datetime | None = None
    delay: float = 0.0

    @property
    def of_payload(self) -> dict[str, Any]:
        """The values that depend on the payload."""
        return {name: getattr(self, name) for name in OF_PAYLOAD}


_SQL_TYPES: Mapping[object, str] = {
    **dict.fromkeys((str, str | None), "text"),
    **dict.fromkeys((int, int | None), "integer"),
    bool: "boolean",
    float: "double precision",
    datetime | None: "timestamptz",
}
#: The fields of a new run, and their types in PostgreSQL.
TYPES = {column.name: _SQL_TYPES[column.type] for column in fields(NewRun)} | {
    "payload": "jsonb",
    **dict.fromkeys(("batch_id", "definition_id"), "bigint"),
}
#: The fields that are columns.
COLUMNS = tuple(name for name in TYPES if name not in ("run_at", "delay"))
#: The fields that a run copies from its definition.
POLICY = tuple(column.name for column in fields(RunPolicy))
#: The fields that depend on the payload, and change with it.
OF_PAYLOAD = ("payload", "concurrency_key", "concurrency_limit", "rate_key", "label")


def new_run(
    task: DeclaredTask,
    payload: Mapping[str, object],
    options: EnqueueOptions,
    settings: Settings,
    unique: bool = True,
) -> NewRun:
    """Return the run for a call of *task* with *payload*.

    :param options: override the task's options.
    :param unique: whether the run gets the idempotency key that the task's ``unique`` makes.
    :raises PayloadError: *payload* does not fit the handler, is not plain JSON, or is too large.
    :raises TaskError: no key can be made from *payload*.
    """
    limit, hidden, plain = settings.max_payload_bytes, settings.redact, payload
    if task.arguments.schema:
        plain = task.arguments.encode(payload, limit, hidden)
    policy = task.policies.get(settings.max_attempts) or _policy(task, settings)
    values: dict[str, Any] = {**policy, "payload": payload_text(plain, limit, hidden)}
    if task.fills:
        values |= {**task.keys_for(plain), "label": task.label_for(plain, hidden)}
        if unique and not options.idempotency_key:
            values["idempotency_key"] = task.filled("unique", plain)
    if unique and (task.options.unique is not None or task.options.unique_while is not None):
        options = task.with_unique_while(options)
    if options != AS_THE_TASK_SAYS:
        values |= options.own_values
    return NewRun(**values)


def _policy(task: DeclaredTask, settings: Settings) -> dict[str, object]:
    """Return the values that all runs of *task* share unless a call overrides them."""
    policy = task.policies[settings.max_attempts] = {
        "job_type": task.name,
        "max_attempts": task.retry_policy(settings.max_attempts).max_attempts,
        "concurrency_limit": task.concurrency_limit,
        **task.options.columns,
    }
    return policy
