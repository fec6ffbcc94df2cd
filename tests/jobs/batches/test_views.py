"""How far a batch is, with what is inside of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.batches.views import BatchView, batch_facts, find_batch, list_batches
from flask_cronjobs.jobs.definitions.actions import Target, pause
from flask_cronjobs.jobs.state import State
from flask_cronjobs.models import JobBatch
from tests.rows import Rows, ago


@pytest.fixture
def nested(state: State, rows: Rows, db: Any) -> int:
    """The id of a batch with two runs, which has one with four, which has one that has finished."""
    with state.app.app_context():
        made = [JobBatch(key=key) for key in ("outer", "inner", "innermost")]
        db.session.add_all(made)
        db.session.flush()
        outer, inner = made[0].id, made[1].id
        made[1].parent_id, made[2].parent_id = outer, inner
        made[2].closed_at = made[2].finished_at = ago(5)
        made[2].total, made[2].succeeded, made[2].dead = 10, 7, 3
        made[1].pruned = {"succeeded": 2}
        db.session.commit()
    for status, batch in (("succeeded", outer), ("queued", outer), ("running", inner)):
        rows.run(status, batch_id=batch)
    rows.run("dead", batch_id=inner)
    return outer


def found(state: State, key: int | str) -> BatchView:
    batch = find_batch(state, key)
    assert batch is not None
    return batch


def test_outer_batch_counts_what_is_inside_by_its_weight(state: State, nested: int) -> None:
    outer = found(state, nested)
    assert (outer.counts.total, outer.inside) == (3, 1)
    # Its own two and the inner batch; the four of that and the innermost, which died; the ten.
    assert outer.whole == {"succeeded": 10, "dead": 5, "running": 1, "queued": 1, "open": 1}
    assert outer.ended == 15
    assert outer.fraction == pytest.approx(15 / 18)
    assert [name for name, _, _ in outer.segments] == ["succeeded", "dead", "running"]
    _, begins, width = outer.segments[-1]
    assert [begins, width] == pytest.approx([15 / 18, 1 / 18])
    inner, innermost = found(state, "inner"), found(state, "innermost")
    assert inner.whole == {"succeeded": 9, "dead": 5, "running": 1}
    assert (innermost.whole, innermost.fraction) == ({"succeeded": 7, "dead": 3}, 1.0)
    listed = list_batches(state).rows
    assert [each.whole for each in listed] == [innermost.whole, inner.whole, outer.whole]
    assert outer.progress == "15 of 18"
    assert "1 of 3" in [fact.value for fact in batch_facts(outer, ago(0))]  # Its own.


def test_time_left_goes_by_the_pace_so_far(state: State, nested: int) -> None:
    outer = found(state, nested)
    assert outer.left(outer.opened_at + timedelta(seconds=50)) is None  # It is open.
    with state.engine.begin() as connection:
        connection.execute(text("UPDATE job_batches SET closed_at = opened_at"))
    outer = found(state, nested)
    said = [fact.value for fact in batch_facts(outer, outer.opened_at + timedelta(seconds=50))]
    assert "about 10 s, at the pace so far" in said


def facts_at(batch: BatchView, now: datetime) -> dict[str, Any]:
    return {fact.label: fact.value for fact in batch_facts(batch, now)}


def test_no_time_is_claimed_that_a_member_s_wait_makes_untrue(
    jobs: CronJobs, state: State, rows: Rows, db: Any
) -> None:
    jobs.task(name="send")(lambda: None)
    with state.app.app_context():
        made = [JobBatch(key=key, opened_at=ago(60), closed_at=ago(50)) for key in ("one", "two")]
        db.session.add_all(made)
        db.session.commit()
        ids = [each.id for each in made]
    for batch in ids:
        for status in ("succeeded", "running", "queued"):
            rows.run(status, batch_id=batch)
    rows.run("failed", batch_id=ids[0], run_at=ago(-30))
    assert "about 3 min" in facts_at(found(state, "one"), ago(0))["left"]
    late = rows.run("failed", batch_id=ids[0], run_at=ago(-7200))
    said = facts_at(found(state, "one"), ago(0))["waits for"]
    assert said.startswith(f"run {late}, which waits for its time: in ")
    pause(state, Target("queue", "default"))
    for each in list_batches(state).rows:
        facts = facts_at(each, ago(0))
        assert "which waits until the queue default is resumed" in facts["waits for"]
        assert "left" not in facts


def test_outer_batch_that_has_finished_counts_what_is_inside(state: State, nested: int) -> None:
    with state.engine.begin() as connection:
        connection.execute(text("DELETE FROM job_runs"))
        ended = "closed_at = opened_at, finished_at = opened_at, succeeded = 2, dead = 1, total = 3"
        connection.execute(text(f"UPDATE job_batches SET {ended} WHERE id = {nested}"))
    assert found(state, nested).whole == {"succeeded": 2 + 2 + 7, "dead": 1 + 1 + 3}


def test_a_dead_member_that_is_a_batch_leads_to_that_batch(
    state: State, rows: Rows, nested: int
) -> None:
    del nested
    inner = found(state, "inner")
    assert (inner.counts.dead, inner.dead_runs, inner.dead_inside) == (2, 1, ("innermost",))
    facts = {fact.label: fact for fact in batch_facts(inner, ago(0))}
    assert facts["dead"].link == ("runs", {"batch": "inner", "status": "dead"})
    assert facts["a member died in"].link == ("batch", {"key": "innermost"})
    with state.engine.begin() as connection:
        connection.execute(text("DELETE FROM job_runs WHERE status = 'dead'"))
    (dead,) = (fact for fact in batch_facts(found(state, "inner"), ago(0)) if fact.label == "dead")
    assert (dead.value, dead.link) == (1, None)


@pytest.mark.parametrize(
    ("on_dead", "ended", "said"),
    [
        ("continue", {}, None),
        ("stop", {}, "A member died, so what waits is cancelled."),
        (
            "stop",
            {"total": 4, "dead": 1, "cancelled": 3},
            "A member died, so it was stopped: 3 others ended cancelled.",
        ),
        ("stop", {"total": 1, "dead": 1}, "A member died, so it was stopped."),
        ("stop", {"total": 1, "succeeded": 1}, None),
    ],
)
def test_stopped_batch_says_so(
    state: State, rows: Rows, db: Any, on_dead: str, ended: dict[str, int], said: str | None
) -> None:
    with state.app.app_context():
        batch = JobBatch(key="b", on_dead=on_dead, **ended)
        batch.closed_at = batch.finished_at = ago(5) if ended else None
        db.session.add(batch)
        db.session.commit()
        rows.run("dead", batch_id=batch.id)
    assert found(state, "b").stop == said
