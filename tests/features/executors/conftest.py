"""A queue whose runs the tests' executor executes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from flask_cronjobs import CronJobs
from flask_cronjobs.features.executors import perform as executor_worker
from tests.features.executors.threads import Threads


@pytest.fixture
def executor(app: Flask) -> Iterator[Threads]:
    """The executor of the queue ``far``, which keeps runs until `deliver` is called."""
    threads = Threads(app, keep=True)
    app.config["CRONJOBS_LEASE"] = 600  # Let no thread end while a test runs.
    yield threads
    threads.close()
    forget_kept_connections()


def forget_kept_connections() -> None:
    """Close the connection that this thread has kept for the next message."""
    vars(executor_worker)["_of_thread"].__dict__.clear()


@pytest.fixture
def far(executor: Threads, context: None, jobs: CronJobs) -> Any:
    """A task of that queue, which returns its argument."""

    @jobs.task(queue="far")
    def far(value: int = 0) -> int:
        return value

    return far.using(commit=True)
