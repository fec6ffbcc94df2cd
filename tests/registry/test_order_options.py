"""``order="strict"``: which options go together."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.errors import TaskError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "strict"}, "needs a concurrency_key"),
        ({"order": "loose", "concurrency_key": "a"}, "order is 'loose'. Give one of 'strict'"),
        ({"order": "strict", "concurrency_key": "a", "concurrency": 2}, "concurrency is 2"),
        ({"order": "strict", "concurrency_key": "a", "on_dead": "wait"}, "on_dead is 'wait'"),
        ({"on_dead": "stop"}, "on_dead has no effect without order='strict'"),
        ({"on_dead": "stop", "concurrency_key": "a"}, "on_dead has no effect"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskError, match=said):

        @CronJobs().task(**options)
        def book() -> None: ...


@pytest.mark.parametrize(
    ("options", "on_dead"),
    [
        ({}, None),
        ({"order": "strict", "concurrency_key": "a"}, "skip"),
        ({"order": "strict", "concurrency_key": "a", "concurrency": 1}, "skip"),
        ({"order": "strict", "concurrency_key": "a", "on_dead": "stop"}, "stop"),
    ],
)
def test_dead_runs_are_skipped_unless_they_are_to_stop_the_key(
    options: dict[str, Any], on_dead: str | None
) -> None:
    jobs = CronJobs()
    jobs.task(name="book", **options)(lambda: None)
    assert jobs._registry.tasks["book"].on_dead == on_dead
