"""FAULTS: runs slower than the minute that cron has, and handlers that starve the heartbeat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flask_cronjobs.config import Settings
from flask_cronjobs.engine.worker import monitor as warden_module
from flask_cronjobs.engine.worker.monitor import RunMonitor
from flask_cronjobs.jobs.runs.leases import Renewal
from flask_cronjobs.types import Claim
from tests.clock import Clock
from tests.marks import on_sqlite
from tests.process.support import Site, wait_until


@on_sqlite
def test_ticks_that_cron_starts_beside_slow_runs_do_not_pile_up(site: Site) -> None:
    """Each takes what it can begin within the budget, and goes when its own run has ended."""
    site.config |= {"CRONJOBS_TICK_BUDGET": 1.5, "CRONJOBS_LEASE": 600}
    gates = [site.folder / f"gate-{number}" for number in range(2)]
    slow = [site.enqueue("wait_for", {"path": str(gate)}, priority=1) for gate in gates]
    left = site.enqueue("note")
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
    assert [site.run(run_id).status for run_id in slow] == ["succeeded"] * 2
    assert (site.run(left).status, site.run(left).attempts) == ("queued", 0)
    site.tick_here()
    assert site.run(left).status == "succeeded"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The monitor's clock."""
    made = Clock()
    monkeypatch.setattr(warden_module, "time", made)
    return made


def test_lease_by_default_outlasts_three_missed_heartbeats_and_a_minute() -> None:
    lease = Settings().lease
    assert lease - lease / warden_module.BEATS * 3 >= lease / 4
    assert lease >= 60


def test_heart_beats_four_times_in_a_lease_while_something_is_held(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = cast(Any, SimpleNamespace(settings=Settings(lease=60.0)))
    context = SimpleNamespace(state=state, interrupter=None, watchdog=None)
    runner = cast(Any, SimpleNamespace(at_work=(), context=context))
    renewed: list[float] = []

    def renew(books: object, held: object, lease: float) -> Renewal:
        renewed.append(clock.now)
        return Renewal(frozenset({1}), frozenset(), is_heartbeat=True)

    monkeypatch.setattr(warden_module, "renew", renew)
    held = {1: cast(Claim, object())}
    monitor = RunMonitor(runner, may_kill=False)
    for _ in range(240):
        clock.now += 0.25
        monitor.renew_or_watch(cast(Any, None), held)
    assert renewed == [1015.0, 1030.0, 1045.0, 1060.0]


@on_sqlite
def test_run_whose_regular_expression_starves_the_heartbeat_is_not_taken_away(
    site: Site,
) -> None:
    """It holds the interpreter's lock, so nothing else in its process gets on meanwhile."""
    del site.config["CRONJOBS_LEASE"]
    run_id = site.enqueue("backtrack", {"seconds": 0.25})
    tick = site.start_tick()
    site.wait_for("begun")
    while not site.trace("ended"):
        assert site.tick_here().reclaimed == 0
    assert tick.wait().returncode == 0
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 1)
    assert site.failures(run_id) == []
