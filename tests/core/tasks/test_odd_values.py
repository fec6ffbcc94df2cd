"""Values that are almost right, in policies, results, payloads and declarations."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select

from flask_cronjobs import CronJobs, TaskError
from flask_cronjobs.models import JobDefinition
from tests.marks import on_both
from tests.rows import the_run

pytestmark = pytest.mark.usefixtures("context")


def test_mapping_that_is_no_dict_is_taken_as_a_payload(jobs: CronJobs, db: SQLAlchemy) -> None:
    jobs.task(name="it")(lambda user: None)
    jobs.enqueue("it", MappingProxyType({"user": 7}), commit=True)
    assert the_run(db).payload == {"user": 7}


def test_one_broken_declaration_stops_no_other(
    jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    """The app's own limit is known only at the tick, not when the schedule is declared."""
    too_large = {"text": "x" * 100_000}
    jobs.task(name="bad", schedule="* * * * *", payload=too_large)(lambda text: None)
    jobs.task(name="good", schedule="@yearly")(lambda: None)
    jobs.get("good").using(commit=True).enqueue()
    assert jobs.tick().succeeded == 1
    assert db.session.scalars(select(JobDefinition.name)).all() == ["good"]
    assert "The definition 'bad' is not valid" in caplog.text


@on_both
def test_definition_with_a_tuple_in_its_payload_is_written_once(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    jobs.task(name="it", schedule="@yearly", payload={"ids": (1, 2)})(lambda ids: None)
    payloads = []
    for _ in range(2):
        jobs.tick()
        payloads.append(
            db.session.execute(select(JobDefinition.updated_at, JobDefinition.payload)).one()
        )
        db.session.rollback()
    assert payloads[0] == payloads[1]
    assert payloads[0].payload == {"ids": [1, 2]}


# A key whose braces are not filled in is refused: all runs would share it


UNFILLED = ["welcome:{user_id}", "{user.id}", "of:{row['id']}", "day:{at:%Y-%m-%d}", "{name!r}"]
MISSING_F = "Write an f before the string"


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
        jobs.batch(key)


@pytest.mark.parametrize(
    "key", ['{"id": 1}', "{}", "{6f9619ff-8b86-d011}", "{1}", "a{b", "}a{", "user:7"]
)
def test_other_braces_are_part_of_a_key(jobs: CronJobs, task: Any, key: str) -> None:
    assert jobs.once(key, lambda: 1) == 1
    assert task.using(idempotency_key=key).enqueue().idempotency_key == key
    with jobs.batch(key):
        task.enqueue()
