"""Several ticks at once: the table is the contract, whatever races."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.process.support import Site


@pytest.mark.slow
def test_four_ticks_execute_each_of_a_thousand_due_runs_once(site: Site) -> None:
    ids = site.enqueue_many("note", [{"label": str(n)} for n in range(996)])
    gate = site.folder / "gate"
    ids += site.enqueue_many("wait_for", [{"path": str(gate)}] * 4, priority=1)
    ticks = [site.start_tick() for _ in range(4)]
    assert len({line["pid"] for line in site.wait_for("begun", 4)}) == 4
    gate.touch()
    for tick in ticks:
        done = tick.wait()
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert Counter(line["run"] for line in site.trace("note", "ended")) == Counter(ids)
    assert site.statuses() == {"succeeded": 1000}
    assert {row.attempts for row in site.query("SELECT attempts FROM job_runs")} == {1}
    assert site.query("SELECT * FROM job_failures") == []


@pytest.mark.slow
def test_handlers_that_write_to_the_database_run_once_each_under_four_ticks(site: Site) -> None:
    ids = site.enqueue_many("entry", [{"label": str(n)} for n in range(100)])
    for tick in [site.start_tick() for _ in range(4)]:
        assert tick.wait().returncode == 0
    rows = site.query("SELECT run_id FROM entries")
    assert Counter(row.run_id for row in rows) == Counter(ids)
    assert site.statuses() == {"succeeded": 100}


@pytest.mark.slow
def test_six_ticks_that_race_for_the_same_slots_make_one_run_of_each(site: Site) -> None:
    assert site.run_tick().returncode == 0  # The first tick makes the definitions.
    make_slots_due(site)
    for tick in [site.start_tick() for _ in range(6)]:
        done = tick.wait()
        assert done.returncode == 0, done.stderr
    runs = site.query(
        "SELECT definition_id, scheduled_for, status FROM job_runs WHERE status <> 'skipped'"
    )
    slots = Counter((row.definition_id, row.scheduled_for) for row in runs)
    assert len({definition for definition, _ in slots}) == 5
    assert set(slots.values()) == {1}
    assert {row.status for row in runs} == {"succeeded"}
    said = Counter((line["name"], line["slot"]) for line in site.trace("slot"))
    assert set(said.values()) == {1}
    assert len(said) == len(runs)


@pytest.mark.slow
def test_ticks_at_once_never_run_two_of_a_concurrency_key(site: Site) -> None:
    site.enqueue_many("one_at_a_time", [{"key": str(n % 2), "seconds": 0.01} for n in range(40)])
    for tick in [site.start_tick() for _ in range(3)]:
        assert tick.wait().returncode == 0
    while site.statuses() != {"succeeded": 40}:
        assert site.run_tick().returncode == 0
    for key in ("0", "1"):
        words = [line["what"] for line in site.trace() if line["key"] == key]
        assert words == ["begun", "ended"] * 20


def make_slots_due(site: Site) -> None:
    """Set all watermarks three minutes back."""
    back = (
        "next_run_at - interval '3 minutes'"
        if site.on_postgresql
        else "strftime('%Y-%m-%d %H:%M:%f000', next_run_at, '-3 minutes')"
    )
    site.query(f"UPDATE job_definitions SET next_run_at = {back}")
