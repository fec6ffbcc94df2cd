"""What type checkers see of tasks: checked by `make types`, never run.

Each ``type: ignore`` is on a line that must be an error: if it is none, the ignore is unused, which
is an error as well.
"""

from __future__ import annotations

from typing_extensions import assert_type

from flask_cronjobs import CronJobs, RunIds, Task
from flask_cronjobs.models import JobRun

jobs = CronJobs()


@jobs.task
def bare(user_id: int, week: str = "now") -> str:
    return f"{user_id} {week}"


@jobs.task(priority=5)
def with_options(user_id: int) -> None: ...


@jobs.task
async def asynchronous(user_id: int) -> int:
    return user_id


assert_type(bare(1), str)
assert_type(bare(1, week="then"), str)
assert_type(bare.enqueue(1), JobRun)
assert_type(bare.enqueue(user_id=1, week="then").id, int)
assert_type(bare.using(delay=5, idempotency_key="key").enqueue(1, "then"), JobRun)
assert_type(bare.enqueue_many([{"user_id": 1}]), RunIds)
as_before: list[int] = bare.enqueue_many([{"user_id": 1}, {"user_id": 2}])
assert_type(with_options.enqueue(user_id=1), JobRun)
assert_type(with_options.schedule("@daily", name="daily").enqueue(1), JobRun)


@bare.upgrade
def upgrade(payload: dict[str, str]) -> dict[str, int]:
    return {"user_id": int(payload["user"])}


assert_type(upgrade({"user": "1"}), dict[str, int])

bare("one")  # type: ignore[arg-type]
bare()  # type: ignore[call-arg]
bare.enqueue()  # type: ignore[call-arg]
bare.enqueue("one")  # type: ignore[arg-type]
bare.enqueue(1, weak="then")  # type: ignore[call-arg]
bare.enqueue(1, "then", 3)  # type: ignore[call-arg]
bare.using(delay=5).enqueue("one")  # type: ignore[arg-type]
bare.using(deley=5)  # type: ignore[call-arg]
with_options.enqueue(user="one")  # type: ignore[call-arg]
asynchronous.enqueue(user_id="one")  # type: ignore[arg-type]
jobs.task(catchup="some")  # type: ignore[call-overload]
jobs.task(priority="high")  # type: ignore[call-overload]


def takes_task(task: Task[[int], None]) -> None: ...


takes_task(with_options)
takes_task(bare)  # type: ignore[arg-type]
