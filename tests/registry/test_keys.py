"""A key whose braces nobody filled in is refused: it would be one key for all."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import CronJobs, NewRun, TaskError

pytestmark = pytest.mark.usefixtures("context")

UNFILLED = ["welcome:{user_id}", "{user.id}", "of:{row['id']}", "day:{at:%Y-%m-%d}", "{name!r}"]
MISSING_F = "Write the f before the text"


@pytest.fixture
def task(jobs: CronJobs) -> Any:
    return jobs.task(name="it")(lambda: None)


@pytest.mark.parametrize("key", UNFILLED)
def test_key_with_a_name_in_braces_is_refused(jobs: CronJobs, task: Any, key: str) -> None:
    called: list[str] = []
    with pytest.raises(ValueError, match=MISSING_F):
        jobs.once(key, called.append, "x")
    assert called == []
    with pytest.raises(TaskError, match=MISSING_F):
        task.using(idempotency_key=key).enqueue()
    with pytest.raises(TaskError, match=MISSING_F):
        task.enqueue_many([NewRun({}, idempotency_key=key)])
    with pytest.raises(TaskError, match=MISSING_F):
        jobs.batch(key)


@pytest.mark.parametrize(
    "key", ['{"id": 1}', "{}", "{6f9619ff-8b86-d011}", "{1}", "a{b", "}a{", "user:7"]
)
def test_other_braces_are_part_of_a_key(jobs: CronJobs, task: Any, key: str) -> None:
    assert jobs.once(key, lambda: 1) == 1
    assert task.using(idempotency_key=key).enqueue().idempotency_key == key
    with jobs.batch(key):
        task.enqueue()


def test_concurrency_key_is_filled_in_by_us(jobs: CronJobs) -> None:
    jobs.task(name="one", concurrency_key="user:{user_id}")(lambda user_id: None)
    assert jobs.enqueue("one", {"user_id": 7}).concurrency_key == "user:7"
