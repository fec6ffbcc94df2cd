"""Runs at a rate, and the failpoints that they pass, for `tests/process/test_failpoints.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flask_cronjobs import CronJobs, Retry

if TYPE_CHECKING:
    from tests.process.support import Site

POINTS = ("before-rate", "after-rate")


def declare(jobs: CronJobs, say: Callable[..., None], retry: Retry) -> None:
    """Declare a task with a rate, which says ``rated``."""

    @jobs.task(retry=retry, rate="20/s")
    def rated(number: int) -> None:
        say("rated", number=number)


def enqueue(site: Site) -> None:
    """Enqueue some runs of it."""
    site.enqueue_many("rated", [{"number": number} for number in range(3)])


def check(site: Site) -> None:
    """Check that they have been executed."""
    assert {line["number"] for line in site.trace("rated")} == {0, 1, 2}
