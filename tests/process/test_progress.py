"""Progress: in the row at once, not too often, and only from who holds the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event

from flask_cronjobs import CronJobs, TickReport, current_run
from flask_cronjobs.models import JobRun
from tests.process.support import Site, wait_until

Tick = Callable[[], TickReport]


def test_progress_is_in_the_row_while_the_handler_works(site: Site) -> None:
    gate = site.folder / "gate"
    run_id = site.enqueue("ended_or_waits", {"path": str(gate)})
    tick = site.start_tick()
    wait_until(lambda: site.run(run_id).progress == 0.5)
    run = site.run(run_id)
    assert (run.status, run.progress_message) == ("running", "half")
    gate.touch()
    assert tick.wait().returncode == 0


def test_progress_is_written_rarely_however_often_it_is_told(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
) -> None:
    written: list[str] = []

    @jobs.task
    def busy() -> None:
        for step in range(10_000):
            current_run.progress(step / 10_000)
        current_run.progress(1, "all")

    def note(connection: object, cursor: object, sql: str, *rest: object) -> None:
        if "SET progress =" in sql:
            written.append(sql)

    with app.app_context():
        busy.using(commit=True).enqueue()
        event.listen(db.engine, "before_cursor_execute", note)
    began = time.monotonic()
    assert tick().succeeded == 1
    assert 2 <= len(written) <= 3 + 4 * (time.monotonic() - began)
    with app.app_context():
        run = db.session.scalars(db.select(JobRun)).one()
        assert (run.progress, run.progress_message) == (1.0, "all")


def test_last_word_of_a_handler_that_tells_often_and_then_works_on_is_written(site: Site) -> None:
    gate = site.folder / "gate"
    run_id = site.enqueue("tells_often", {"path": str(gate)})
    tick = site.start_tick()
    wait_until(lambda: site.run(run_id).progress == 0.9)
    gate.touch()
    assert tick.wait().returncode == 0


def test_progress_of_a_zombie_is_refused(site: Site) -> None:
    gate = site.folder / "gate"
    site.config["CRONJOBS_LEASE"] = 300
    run_id = site.enqueue("tells_at_the_end", {"path": str(gate)})
    zombie = site.start_tick()
    site.wait_for("begun")
    site.query("UPDATE job_runs SET locked_by = 'other:1:token', attempts = 2")
    gate.touch()
    zombie.wait()
    assert (site.run(run_id).progress, site.run(run_id).status) == (None, "running")
