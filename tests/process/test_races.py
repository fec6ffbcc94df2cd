"""Several ticks at once: the database decides every race."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.marks import on_sqlite
from tests.process.support import Site, wait_until


def test_four_ticks_execute_each_of_a_thousand_due_runs_once(site: Site) -> None:
    ids = site.enqueue_many("note", [{}] * 896)
    entries = site.enqueue_many("entry", [{}] * 100)
    ids += site.enqueue_many("wait_for", [{"path": str(site.gate)}] * 4, priority=1)
    ticks = [site.start_tick() for _ in range(4)]
    assert len({line["pid"] for line in site.wait_for("begun", 4)}) == 4
    site.gate.touch()
    for tick in ticks:
        result = tick.wait()
        assert (result.returncode, result.stderr) == (0, "")
    counts = Counter(line["run"] for line in site.trace("note", "ended"))
    assert counts == Counter(ids + entries)
    assert Counter(row.run_id for row in site.query("SELECT run_id FROM entries")) == Counter(
        entries
    )
    assert site.statuses() == {"succeeded": 1000}
    assert {row.attempts for row in site.query("SELECT attempts FROM job_runs")} == {1}
    assert site.query("SELECT * FROM job_failures") == []


def test_six_ticks_that_race_for_the_same_slots_make_one_run_of_each(site: Site) -> None:
    assert site.run_tick().returncode == 0  # The first tick makes the definitions.
    site.make_slots_due()
    for tick in [site.start_tick() for _ in range(6)]:
        result = tick.wait()
        assert result.returncode == 0, result.stderr
    runs = site.query(
        "SELECT definition_id, scheduled_for, status FROM job_runs WHERE status <> 'skipped'"
    )
    slots = Counter((row.definition_id, row.scheduled_for) for row in runs)
    assert len({definition for definition, _ in slots}) == 5
    assert set(slots.values()) == {1}
    assert {row.status for row in runs} == {"succeeded"}
    counts = Counter((line["name"], line["slot"]) for line in site.trace("slot"))
    assert set(counts.values()) == {1}
    assert len(counts) == len(runs)


# Concurrency keys: never too many at once, in order, and free again after a kill


@pytest.mark.parametrize("attempts", [1, 2])
def test_share_of_a_killed_worker_comes_free_with_its_lease(site: Site, attempts: int) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    killer = site.enqueue("one_at_a_time", {"key": "k", "harm": True}, max_attempts=attempts)
    waiting = site.enqueue_many("one_at_a_time", [{"key": "k"}] * 3)
    assert site.run_tick().returncode == -9
    site.query('UPDATE job_runs SET payload = \'{"key": "k"}\'')
    assert site.run_tick().returncode == 0
    assert (site.ends(killer), site.ends(*waiting)) == ({("running", 1)}, {("queued", 0)})
    site.expire()
    assert site.run_tick().returncode == 0
    assert site.ends(*waiting) == {("succeeded", 1)}
    assert site.run(killer).status == ("dead" if attempts == 1 else "succeeded")
    assert site.failures(killer) == ["WorkerLost"]


# Runs longer than cron's minute, and handlers that starve the heartbeat


@on_sqlite
def test_ticks_that_cron_starts_beside_slow_runs_do_not_pile_up(site: Site) -> None:
    """Each tick claims what it can begin within its budget, and ends after its own run."""
    site.config |= {"CRONJOBS_TICK_BUDGET": 1.5, "CRONJOBS_LEASE": 600}
    gates = [site.folder / f"gate-{number}" for number in range(2)]
    slow = [site.enqueue("wait_for", {"path": str(gate)}, priority=1) for gate in gates]
    free = site.enqueue("note")
    ticks = []
    for number in range(2):
        ticks.append(site.start_tick())
        site.wait_for("begun", number + 1)
    over = (
        "SELECT count(*) AS number FROM job_ticks"
        " WHERE started_at <= strftime('%Y-%m-%d %H:%M:%f', 'now', '-1.6 seconds')"
    )
    wait_until(lambda: site.query(over)[0].number == 2)
    for tick, gate in zip(ticks, gates, strict=True):
        assert tick.running
        gate.touch()
        assert tick.wait().returncode == 0
    assert {status for status, _ in site.ends(*slow)} == {"succeeded"}
    assert site.ends(free) == {("queued", 0)}
    site.tick_here()
    assert site.ends(free) == {("succeeded", 1)}


@on_sqlite
def test_run_whose_regular_expression_starves_the_heartbeat_is_not_taken_away(
    site: Site,
) -> None:
    """It holds the interpreter's lock, so nothing else in its process runs meanwhile."""
    del site.config["CRONJOBS_LEASE"]
    run, tick = site.begin("backtrack", {"seconds": 0.25})
    while not site.trace("ended"):
        assert site.tick_here().reclaimed == 0
    assert tick.wait().returncode == 0
    assert (site.ends(run), site.failures(run)) == ({("succeeded", 1)}, [])
