"""A kill at each dangerous place; later ticks finish the work, and every promise holds."""

from __future__ import annotations

from collections import Counter

import pytest

from flask_cronjobs.db.failpoints import VARIABLE
from tests.failpoints import POINTS
from tests.features import parts
from tests.process import jobs_app
from tests.process.support import Site
from tests.soak.checker import every_slot_matches_one_row, failures_match_attempts, no_run_is_lost
from tests.soak.history import History, Watched, moment, read_failures, read_runs

#: The failpoints of executors are in `test_executors.py`.
OF_EXECUTORS = ("before-send", "after-send")


@pytest.mark.parametrize("point", [point for point in POINTS if point not in OF_EXECUTORS])
def test_kill_at(point: str, site: Site) -> None:
    site.tick_here()
    watched = watch(site)
    effects = site.enqueue_many("effect", [{"key": "a"}, {"key": "b"}])
    atomic = site.enqueue_many("atomic_entry", [{"label": "a"}, {"label": "b"}])
    site.enqueue_many("note", [{}] * 3)
    site.enqueue("fail", {"attempts": 1})
    fill_batch(site)
    month = site.enqueue("close_month", {"steps": 2, "chunks": 2})
    site.enqueue_many("book", [{"account": "a", "number": n} for n in range(5)])
    for part in parts("kills"):
        part.enqueue(site)
    result = site.run_tick(env={VARIABLE: point})
    assert result.returncode == -9, result.stderr
    site.tick_until_done()
    history = look(site, watched)
    assert list(no_run_is_lost(history)) == []
    assert list(every_slot_matches_one_row(history)) == []
    assert list(failures_match_attempts(history)) == []
    assert site.statuses().keys() <= {"succeeded", "skipped"}
    happened = Counter(line["key"] for line in site.trace("effect"))
    # An effect that was killed after its mark is in doubt, and not repeated.
    states = {row.key: row.state for row in site.query("SELECT key, state FROM job_effects")}
    for key in ("a", "b"):
        assert happened[key] == (1 if states[key] == "done" else happened[key]) <= 1
    doubted = [key for key, state in states.items() if state != "done"]
    assert len(doubted) == (1 if point in ("before-effect", "after-effect") else 0)
    entries = site.query("SELECT run_id, label FROM entries ORDER BY id")
    assert Counter(row.run_id for row in entries if row.run_id != month) == Counter(atomic)
    assert [row.label for row in entries if row.run_id == month] == ["s0", "s1", "c1", "c2"]
    assert len(effects) == 2
    (batch,) = site.query("SELECT total, succeeded, then_run_id FROM job_batches")
    (then_run,) = site.query("SELECT id FROM job_runs WHERE job_type = 'later'")
    assert tuple(batch) == (3, 3, then_run.id)
    # An attempt that was killed after its work is repeated before the account's next run.
    booked = [line["number"] for line in site.trace("booked")]
    assert sorted(set(booked)) == list(range(5))
    assert booked == sorted(booked)
    for part in parts("kills"):
        part.check(site)


def fill_batch(site: Site) -> None:
    """Commit a batch, which is followed by a run of the task `later`."""
    with site.app.app_context():
        with jobs_app.jobs.batch("batch", then=jobs_app.later):
            jobs_app.note.enqueue_many([{}] * 3)
        jobs_app.db.session.commit()


def watch(site: Site) -> list[Watched]:
    """Make slots of the definitions due, and remember the first ones."""
    site.make_slots_due()
    rows = site.query("SELECT id, next_run_at FROM job_definitions ORDER BY id")
    return [Watched(row.id, moment(row.next_run_at), moment(row.next_run_at)) for row in rows]


def look(site: Site, watched: list[Watched]) -> History:
    """Run the checkers of the soak."""
    with site.app.app_context(), jobs_app.db.engine.connect() as connection:
        runs, failures = read_runs(connection), read_failures(connection)
    for definition in watched:
        sql = "SELECT next_run_at FROM job_definitions WHERE id = :id"
        definition.following = moment(site.query(sql, id=definition.id)[0].next_run_at)
    assert all(definition.following > definition.first for definition in watched)
    return History(runs=runs, failures=failures, watched=watched)
