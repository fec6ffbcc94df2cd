"""FAULTS: SIGTERM at any moment, also in the midst of a claim: no run is left held by nobody."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs, TickReport
from flask_cronjobs.engine.worker.keeper import Keeper
from flask_cronjobs.models import JobRun
from tests.process.support import Site

Tick = Callable[[], TickReport]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
def test_worker_asked_to_stop_in_the_midst_of_a_claim_holds_nothing_afterwards(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, moment: str, number: int
) -> None:
    exchanges: list[str] = []
    calls: list[int] = []

    @jobs.task
    def note(n: int) -> None:
        calls.append(n)

    def stop(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "chosen" in statement:
            exchanges.append(statement)
            if len(exchanges) == number:
                keeper = threading.current_thread()
                assert isinstance(keeper, Keeper)
                keeper.stop()

    with app.app_context():
        note.using(commit=True).enqueue_many([{"n": n} for n in range(500)])
        event.listen(db.engine, moment, stop)
    tick()
    assert len(exchanges) >= number
    with app.app_context():
        rows = db.session.execute(
            db.select(JobRun.payload, JobRun.status, JobRun.attempts, JobRun.locked_by)
        ).all()
    left = {(status, attempts, locked) for _, status, attempts, locked in rows}
    assert left <= {("queued", 0, None), ("succeeded", 1, None)}
    done = [payload["n"] for payload, status, *_ in rows if status == "succeeded"]
    assert sorted(calls) == sorted(done)


def test_sigterm_at_random_moments_orphans_no_run(site: Site) -> None:
    site.config["CRONJOBS_LEASE"] = 600
    gate = site.folder / "gate"
    ids = site.enqueue_many("wait_for", [{"path": str(gate)}] * 2, priority=1)
    ids += site.enqueue_many("note", [{}] * 2000)
    ticks = [site.start_tick() for _ in range(2)]
    site.wait_for("begun", 2)
    gate.touch()
    site.wait_for("note")
    chance = random.Random(61)
    for tick in ticks:
        time.sleep(chance.uniform(0, 0.05))
        tick.send(signal.SIGTERM)
    # One that had done its work has given the signal its old meaning back, and holds nothing.
    assert {tick.wait().returncode for tick in ticks} <= {0, -signal.SIGTERM}
    rows = site.query("SELECT DISTINCT status, attempts, locked_by FROM job_runs")
    assert set(rows) <= {("queued", 0, None), ("succeeded", 1, None)}
    while site.tick_here().succeeded:
        pass
    assert site.statuses() == {"succeeded": 2002}
    assert Counter(line["run"] for line in site.trace("note", "ended")) == Counter(ids)
