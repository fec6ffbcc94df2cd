"""The columns of a new run that its task, its payload and its options decide."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..config import Settings
from .handler import Handler
from .options import EnqueueOptions
from .payload import payload_text

#: The columns that these functions return; a `DefinitionSpec` has fields of the same names.
RUN_COLUMNS = (
    *("job_type", "queue", "priority", "max_attempts", "on_dead"),
    *("payload", "concurrency_key", "concurrency_limit"),
)
_AS_THE_TASK_SAYS = EnqueueOptions()


def run_columns(
    handler: Handler, settings: Settings, payload: Mapping[str, object]
) -> dict[str, Any]:
    """Return `policy_columns` and `payload_columns` together."""
    return {**policy_columns(handler, settings), **payload_columns(handler, settings, payload)}


def policy_columns(
    handler: Handler, settings: Settings, options: EnqueueOptions = _AS_THE_TASK_SAYS
) -> dict[str, Any]:
    """Return the columns that do not depend on the payload; *options* come before the task's."""
    task = handler.options
    policy = handler.retry_policy(settings.max_attempts)
    return {
        "job_type": handler.name,
        "queue": options.queue or task.queue,
        "priority": task.priority if options.priority is None else options.priority,
        "max_attempts": options.max_attempts or policy.max_attempts,
        "on_dead": handler.on_dead,
    }


def payload_columns(
    handler: Handler, settings: Settings, payload: Mapping[str, object]
) -> dict[str, Any]:
    """Return the payload, and the concurrency key and limit that go with it.

    :raises PayloadError: *payload* is not plain JSON, or too large.
    :raises TaskError: no concurrency key can be made from *payload*.
    """
    checked: dict[str, Any] = json.loads(payload_text(payload, settings.max_payload_bytes))
    return {
        "payload": checked,
        "concurrency_key": handler.concurrency_key_for(checked),
        "concurrency_limit": handler.concurrency_limit,
    }


def stored_payload(
    handler: Handler, settings: Settings, payload: Mapping[str, object]
) -> tuple[str, str | None]:
    """Return the payload as JSON text, and the concurrency key; as `payload_columns`, but faster.

    :raises PayloadError: *payload* is not plain JSON, or too large.
    :raises TaskError: no concurrency key can be made from *payload*.
    """
    text = payload_text(payload, settings.max_payload_bytes)
    key = None if handler.concurrency_limit is None else handler.concurrency_key_for(payload)
    return text, key
