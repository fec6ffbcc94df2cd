"""Keys that are released, runs that are replaced, and ``unique=``, the key at the task."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, KeyConflict, RetryLater, Snooze, StateConflict, TaskError
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.run_actions import RETRY
from flask_cronjobs.models import JobDefinition, JobRun
from tests.marks import on_both

pytestmark = pytest.mark.usefixtures("context")
ENDED = datetime.now(timezone.utc) - timedelta(days=1)


@pytest.fixture
def seen() -> list[Any]:
    """The arguments with which `index` was called."""
    return []


@pytest.fixture
def index(jobs: CronJobs, seen: list[Any]) -> Any:
    """A task whose runs all have the same key."""

    @jobs.task(retry=2)
    def index(text: str = "") -> None:
        seen.append(text)
        if text == "later":
            raise RetryLater(3600)
        if text == "snooze":
            raise Snooze(3600)

    return index.using(idempotency_key="index:7")


def set_all(db: SQLAlchemy, **values: Any) -> None:
    db.session.commit()
    db.session.execute(update(JobRun).values(**values))
    db.session.commit()


def runs(db: SQLAlchemy) -> list[JobRun]:
    db.session.expire_all()
    return list(db.session.scalars(select(JobRun).order_by(JobRun.id)))


class TestPending:
    @on_both
    @pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled", "skipped"])
    def test_key_is_free_again_once_its_run_has_ended(
        self, db: SQLAlchemy, index: Any, status: str
    ) -> None:
        pending = index.using(unique_while="pending")
        first = pending.enqueue()
        assert pending.enqueue().id == first.id
        set_all(db, status=status, finished_at=ENDED, started_at=ENDED)
        second = pending.enqueue()
        db.session.commit()
        assert (second.id != first.id, second.is_new) == (True, True)
        assert second.unique_while == "pending"
        assert [run.idempotency_key for run in runs(db)] == ["index:7", "index:7"]

    def test_key_of_another_task_is_refused_only_while_it_is_held(
        self, db: SQLAlchemy, jobs: CronJobs, index: Any
    ) -> None:
        @jobs.task
        def other() -> None: ...

        pending = other.using(idempotency_key="index:7", unique_while="pending")
        index.using(unique_while="pending").enqueue()
        with pytest.raises(KeyConflict, match="is held by run 1 of the task index"):
            pending.enqueue()
        with pytest.raises(KeyConflict):
            other.using(idempotency_key="index:7", replace=True).enqueue()
        set_all(db, status="succeeded", finished_at=ENDED)
        assert pending.enqueue().is_new


@on_both
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"unique_while": "pending"}, [(1, False)]),
        ({"replace": True}, [(1, True), (2, True)]),
    ],
    ids=["pending", "replace"],
)
def test_run_that_is_running_holds_its_key_if_it_is_for_pending_runs(
    db: SQLAlchemy, jobs: CronJobs, options: dict[str, Any], expected: list[tuple[int, bool]]
) -> None:
    """A run that replaces it waits as a new run."""
    results: list[tuple[int, bool]] = []

    @jobs.task
    def save(number: int) -> None:
        if number < 3:
            results.append((number, keyed.enqueue(number + 1).is_new))
            db.session.commit()

    keyed = save.using(idempotency_key="s", **options)
    keyed.using(commit=True).enqueue(1)
    jobs.tick()
    assert results == expected
    assert {run.status for run in runs(db)} == {"succeeded"}


class TestRetryOfAnEndedRun:
    @on_both
    def test_it_is_refused_if_the_key_is_taken(
        self, db: SQLAlchemy, jobs: CronJobs, index: Any
    ) -> None:
        pending = index.using(unique_while="pending")
        first = pending.enqueue()
        set_all(db, status="dead", finished_at=ENDED)
        second = pending.enqueue()
        db.session.commit()
        expected = f"Run {first.id} has released its idempotency key, and run {second.id} holds it"
        with pytest.raises(StateConflict, match=expected):
            jobs.retry(first.id)
        jobs.cancel(second.id)
        assert jobs.retry(first.id).status == "queued"
        with pytest.raises(StateConflict, match=f"run {first.id} holds it now"):
            jobs.retry(second.id)

    @on_both
    def test_of_several_the_last_one_is_retried(
        self, db: SQLAlchemy, state: State, index: Any
    ) -> None:
        pending = index.using(unique_while="pending")
        ids: list[int] = []
        for _ in range(3):
            ids.append(pending.enqueue().id)
            set_all(db, status="dead", finished_at=ENDED)
        result = RETRY.many(state, ids)
        assert (result.changed, result.left) == (1, 2)
        assert result.sentence().endswith("2 are unchanged; to see why, try one of them alone.")
        assert [run.status for run in runs(db)] == ["dead", "dead", "queued"]

    def test_one_that_has_begun_needs_no_key_that_is_for_waiting_runs(
        self, db: SQLAlchemy, jobs: CronJobs, index: Any
    ) -> None:
        waiting = index.using(unique_while="waiting")
        first = waiting.enqueue()
        set_all(db, status="dead", started_at=ENDED, finished_at=ENDED)
        second = waiting.enqueue()
        db.session.commit()
        assert jobs.retry(first.id).status == "queued"
        assert waiting.enqueue().id == second.id


class TestReplace:
    @on_both
    def test_run_that_waits_gets_the_new_payload_and_time(
        self, db: SQLAlchemy, jobs: CronJobs, index: Any, seen: list[Any]
    ) -> None:
        debounced = index.using(replace=True, delay=3600)
        first = debounced.enqueue("old")
        db.session.commit()
        due = first.run_at
        set_all(db, run_at=due - timedelta(minutes=50))
        again = debounced.enqueue("new")
        assert (again.id, again.is_new, again.payload) == (first.id, False, {"text": "new"})
        assert abs((again.run_at - due).total_seconds()) < 60
        db.session.commit()
        set_all(db, run_at=ENDED)
        jobs.tick()
        assert seen == ["new"]

    def test_time_or_payload_alone(self, db: SQLAlchemy, index: Any) -> None:
        when = datetime(2090, 1, 1, tzinfo=timezone.utc)
        index.using(replace=True, delay=60).enqueue("old")
        db.session.commit()
        again = index.using(replace="run_at", run_at=when).enqueue("new")
        assert (again.run_at, again.payload) == (when, {"text": "old"})
        db.session.commit()
        again = index.using(replace="payload", delay=3600).enqueue("new")
        assert (again.run_at, again.payload) == (when, {"text": "new"})
        db.session.rollback()
        assert again.payload == {"text": "old"}

    @pytest.mark.parametrize("text", ["plain", "later", "snooze"])
    def test_run_that_has_begun_stays_and_a_new_one_waits(
        self, db: SQLAlchemy, jobs: CronJobs, index: Any, text: str
    ) -> None:
        debounced = index.using(replace=True)
        first = debounced.using(commit=True).enqueue(text)
        jobs.tick()
        second = debounced.enqueue("new")
        third = debounced.enqueue("newest")
        db.session.commit()
        assert second is third
        assert [run.payload["text"] for run in runs(db)] == [text, "newest"]
        assert first.id != second.id

    def test_key_that_is_held_longer_is_not_given_up(
        self, db: SQLAlchemy, index: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = index.using(unique_while="pending").enqueue("old")
        assert index.using(replace=True).enqueue("new").payload == {"text": "new"}
        set_all(db, started_at=ENDED, status="failed", attempts=1)
        assert index.using(replace=True).enqueue("newer").id == first.id
        assert runs(db)[0].payload == {"text": "new"}


def test_replace_and_unique_while_need_a_key(db: SQLAlchemy, jobs: CronJobs) -> None:
    @jobs.task
    def keyless() -> None: ...

    with pytest.raises(TaskError, match="without an idempotency_key"):
        keyless.using(replace=True).enqueue()
    with pytest.raises(TaskError, match="does not replace"):
        keyless.using(replace=True).enqueue_many([{}])
    unique = keyless.using(unique_while="pending", commit=True)
    with pytest.raises(TaskError, match=r"^unique_while='pending' was given without an idem"):
        unique.enqueue()
    with pytest.raises(TaskError, match=r"^unique_while='pending' was given without an idem"):
        unique.enqueue_many([{}])
    assert runs(db) == []


# unique=: the idempotency key at the task


@pytest.fixture
def load(jobs: CronJobs) -> Any:
    """A task with at most one unfinished run per shop and day."""

    @jobs.task(unique="load:{shop_id}:{day}", unique_while="pending")
    def load(shop_id: int, day: date = date(2026, 1, 1)) -> None: ...

    return load


def keys(db: SQLAlchemy) -> list[str | None]:
    return list(db.session.scalars(select(JobRun.idempotency_key).order_by(JobRun.id)))


@on_both
def test_runs_of_one_key_are_one_until_it_has_ended(
    jobs: CronJobs, db: SQLAlchemy, load: Any
) -> None:
    first = load.enqueue(5)
    again = jobs.enqueue("load", {"shop_id": 5, "day": "2026-01-01"})
    later = load.enqueue(6)
    db.session.commit()
    assert (first.id, first.is_new, again.is_new, later.is_new) == (again.id, False, False, True)
    many = load.enqueue_many({"shop_id": shop} for shop in (5, 7, 7, 8))
    db.session.commit()
    assert many.is_new == [False, True, False, True]
    assert jobs.run_now("load", {"shop_id": 8}) == many[3]
    assert jobs.tick().succeeded == 4
    assert load.enqueue(5).is_new
    assert keys(db)[:2] == ["load:5:2026-01-01", "load:6:2026-01-01"]


@on_both
def test_key_of_the_task_is_held_until_its_run_has_ended_by_default(
    jobs: CronJobs, db: SQLAlchemy
) -> None:
    load = jobs.task(name="load", unique="load:{shop_id}")(lambda shop_id: None)
    own = load.using(idempotency_key="once")
    load.enqueue(5), own.enqueue(8)
    load.enqueue_many([{"shop_id": 6}, {"shop_id": 6}])
    db.session.commit()
    jobs.run_now("load", {"shop_id": 7})
    assert [run.unique_while for run in runs(db)] == ["pending", None, "pending", "pending"]
    assert not load.enqueue(5).is_new
    db.session.commit()
    assert jobs.tick().succeeded == 4
    assert load.enqueue(5).is_new
    assert not own.enqueue(8).is_new
    assert load.enqueue_many([{"shop_id": 6}, {"shop_id": 7}]).is_new == [True, True]
    assert load.using(unique_while="kept").enqueue(10).unique_while is None
    assert load.using(replace=True).enqueue(11).unique_while == "waiting"


def test_key_of_the_call_comes_first(jobs: CronJobs, db: SQLAlchemy, load: Any) -> None:
    load.using(idempotency_key="mine").enqueue(5)
    load.enqueue(5)
    assert keys(db) == ["mine", "load:5:2026-01-01"]
    whiles = db.session.scalars(select(JobRun.unique_while)).all()
    assert whiles == ["pending"] * 2
    assert load.using(unique_while="kept").enqueue(6).unique_while is None


def test_schedules_then_and_runs_again_have_no_key(
    jobs: CronJobs, db: SQLAlchemy, load: Any
) -> None:
    load.schedule("@yearly", name="nightly", payload={"shop_id": 5})
    run = load.enqueue(5)
    with jobs.batch("all", then=load, then_payload={"shop_id": 5}):
        pass
    db.session.commit()
    jobs.tick()
    jobs.run_now("nightly")
    jobs.run_again(run.id)
    assert keys(db) == ["load:5:2026-01-01", None, None, None]


@on_both
def test_schedule_needs_no_payload_that_fills_the_key(jobs: CronJobs, db: SQLAlchemy) -> None:
    jobs.task(name="it", unique="{item[id]}", schedule="@yearly")(lambda item=None: None)
    jobs.tick()
    assert db.session.scalars(select(JobDefinition.name)).all() == ["it"]


def test_replace_gives_the_waiting_run_the_new_payload(jobs: CronJobs, db: SQLAlchemy) -> None:
    @jobs.task(unique="index:{text[0]}", unique_while="waiting")
    def index(text: str) -> None: ...

    index.enqueue("a")
    assert index.using(replace=True).enqueue("ab").payload == {"text": "ab"}
    assert keys(db) == ["index:a"]


def test_what_cannot_be_a_key_is_refused_at_the_call(jobs: CronJobs, load: Any) -> None:
    jobs.task(name="it", unique="{text}")(lambda text: None)
    message = (
        r"^The unique '\{text\}' of the task it makes a key of 501 characters from this payload\."
    )
    with pytest.raises(TaskError, match=message):
        jobs.enqueue("it", {"text": "x" * 501})
    with pytest.raises(TaskError, match="replace was given with unique_while='pending'"):
        load.using(replace=True).enqueue(5)
