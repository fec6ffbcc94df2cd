"""Names that other packages have are answered by what to write here."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest

from flask_cronjobs import CronJobs


@pytest.fixture
def bare() -> CronJobs:
    return CronJobs()


@pytest.fixture
def send(bare: CronJobs) -> Any:
    @bare.task
    def send(to: int) -> int:
        return to

    return send


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_retries": 3}, "Write retry=5 for five attempts in all"),
        ({"retries": 3}, "Write retry=5 for five attempts"),
        ({"cron": "0 7 * * *"}, "Write schedule="),
        ({"tz": "UTC"}, "Write timezone="),
        ({"bind": True}, "Write current_run"),
        ({"timeouts": 3}, "Did you mean 'timeout'"),
    ],
)
def test_options_of_a_task(bare: CronJobs, given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=rf"task\(\) has no '{next(iter(given))}'\. ?{said}"):
        bare.task(**given)(lambda: None)
    assert bare.tasks == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timeout": 3}, r"Write it at the task: @jobs\.task\(timeout=…\)"),
        ({"countdown": 3}, "Write delay=…"),
        ({"eta": 3}, "Write run_at=…"),
        ({"task_id": "a"}, "Write idempotency_key=…"),
        ({"dely": 3}, "Did you mean 'delay'"),
    ],
)
def test_options_of_a_run(send: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=rf"using\(\) has no '{next(iter(given))}'\. ?{said}"):
        send.using(**given)


def test_options_among_the_arguments(context: None, jobs: CronJobs) -> None:
    send = jobs.task(name="send")(lambda to: to)
    with pytest.raises(
        TypeError, match=r"'delay'\. Options of the run .*: send\.using\(delay=…\)\.e"
    ):
        send.enqueue(to=1, delay=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'too'$"):
        send.enqueue(to=1, too=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("delay", "enqueue(…)"),
        ("send", "enqueue(…)"),
        ("defer", "enqueue(…)"),
        ("apply_async", "using(delay=…).enqueue(…)"),
    ],
)
def test_methods_of_a_task(send: Any, name: str, said: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(send, name)
    assert str(refused.value) == f"A task has no '{name}'. Write send.{said}."
    assert not hasattr(send, "other")


def test_a_copy_is_no_function(send: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match=r"write send\.using\(…\)\.enqueue\(…\); .* send\(…\)\."):
        send.using(delay=5)(1)
    assert send(1) == 1
    gc.collect()
    assert caplog.text == ""


def test_a_copy_that_is_dropped_says_that_it_did_nothing(
    context: None, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    work = jobs.task(name="work")(lambda: None)
    with caplog.at_level(logging.WARNING, "flask_cronjobs"):
        work.using(commit=True).using(delay=5).enqueue()
        with jobs.batch("b", then=work.using(priority=5)):
            pass
        assert caplog.messages == []
        work.using(delay=5)
        assert caplog.messages == ["work.using(…) enqueues nothing by itself: call its enqueue(…)"]
