"""Two workers beside a model: frozen, killed and stopped, with lost answers, at each statement."""

from __future__ import annotations

import pytest

from flask_cronjobs import CronJobs, Retry
from flask_cronjobs.core import reclaim
from flask_cronjobs.core.app_state import State
from tests.features import parts
from tests.state_machine.store_machine import compare
from tests.state_machine.two_workers import ATTEMPTS, TwoWorkers


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers send the same statements at any speed."""
    monkeypatch.setattr(reclaim, "renewal_window", lambda lease: 0.0)
    for part in parts("machines"):
        part.without_pauses(monkeypatch)


@pytest.mark.parametrize(
    ("on_sqlite", "on_postgresql"),
    [(15, 7), pytest.param(100, 40, marks=pytest.mark.slow)],
)
def test_two_workers_do_as_their_model(
    jobs: CronJobs, state: State, on_sqlite: int, on_postgresql: int
) -> None:
    retry = Retry(ATTEMPTS, backoff="fixed", base=0, jitter=False)

    @jobs.task(retry=retry)
    def plain(version: int) -> None: ...

    examples = on_sqlite if state.engine.dialect.name == "sqlite" else on_postgresql
    tasks, rules = {"plain": plain}, TwoWorkers
    for part in parts("machines"):
        tasks, rules = tasks | part.declare(jobs, retry), part.WORKERS
    compare(rules, examples, state=state, tasks=tasks)
